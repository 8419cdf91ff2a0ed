"""LoRA: adapters alone learn, what is exported is a plain model that computes the same, and a run resumes exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launching import finish, torchrun
from test_sft_world import job, metrics
from training_helpers import checkpoint, tiny_model

from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model
from dice.train.config import SFTConfig
from dice.train.lora import add_adapters, merged
from dice.train.sft import train_sft


def test_merged_weights_compute_what_adapters_do() -> None:
    pytest.importorskip("peft")
    model, plain = tiny_model(4, torch.float32), tiny_model(4, torch.float32)
    add_adapters(model, 4, 16.0, torch.float32)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(trained) == 2 * 2 * 7 and all(".lora_" in name for name in trained)
    with torch.no_grad():
        for name in trained:
            model.get_parameter(name).normal_(0.0, 0.1)
    plain.load_state_dict(merged(model.state_dict(), 16.0 / 4))
    ids = torch.arange(4, 36)[None]
    torch.testing.assert_close(plain(ids), model(ids), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def start(toy: SFTConfig, tmp_path_factory: pytest.TempPathFactory) -> SFTConfig:
    """A model to start from, and how adapters go on from it."""
    pytest.importorskip("peft")
    out = tmp_path_factory.mktemp("base")
    train_sft(replace(toy, max_steps=2, out=out))
    return replace(
        toy, shape=None, tokenizer=None, model=str(out / "model"), max_steps=6, log_every=1, eval_every=3, lr=1e-2,
        micro_rows=2, ema=0.9, lora_rank=4, lora_alpha=16.0, checkpoint_every=1,
    )  # fmt: skip


@pytest.mark.slow  # whole runs; the suite resumes others
def test_adapters_learn_and_resume_exactly(start: SFTConfig, tmp_path: Path) -> None:
    train_sft(replace(start, out=tmp_path / "whole"))
    for _ in range(6):
        train_sft(replace(start, out=tmp_path / "parts", stop_after_seconds=1e-9))
    losses = metrics(tmp_path / "whole", "loss")
    assert losses[-1] < losses[0] - 0.05
    assert metrics(tmp_path / "parts", "loss") == losses
    one, other = (checkpoint(tmp_path / name, 6) for name in ("whole", "parts"))
    assert all(".lora_" in name for name in one) and all(torch.equal(one[name], other[name]) for name in one)
    before, after = load_model(str(start.model)).state_dict(), load_model(tmp_path / "whole" / "model").state_dict()
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.slow  # test_sft_world.py has two processes without adapters
def test_two_processes_share_a_model_with_adapters(start: SFTConfig, tmp_path: Path) -> None:
    train_sft(replace(start, out=tmp_path / "one", precision="bf16"))
    finish(torchrun(tmp_path / "launch", job(replace(start, out=tmp_path / "two", precision="bf16"))))
    for name in ("loss", "val_loss"):
        assert metrics(tmp_path / "two", name) == pytest.approx(metrics(tmp_path / "one", name), rel=2e-3)
    exported = [load_model(tmp_path / name / "model").lm_head.weight for name in ("one", "two")]
    assert torch.equal(*exported)
    assert json.loads((tmp_path / "two" / "config.json").read_text())["lora_rank"] == 4


def test_what_lora_needs_is_said(toy: SFTConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="lora_rank 4 must be positive, and goes with a `model`"):
        train_sft(replace(toy, out=tmp_path, lora_rank=4))
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MachineError, match="install the extra `lora`"):
        add_adapters(tiny_model(4), 4, 8.0, torch.float32)
