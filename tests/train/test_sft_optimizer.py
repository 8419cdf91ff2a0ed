"""AdamW with moments in bfloat16: right on average, resumable, and as good as float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import checkpoint

from dice.train.config import SFTConfig
from dice.train.optimizer import BFloat16AdamW, rounded_at_random
from dice.train.sft import train_sft


def test_rounding_takes_a_neighbour_and_is_right_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    for value in (1.0 + 2**-10, -3.14159, 1e-20, 65504.3, 0.0, 0.5):
        exact = torch.full((200_000,), value)
        found = rounded_at_random(exact, generator)
        # bfloat16's neighbours: the truncated value, and the one after it.
        below = (exact[:1].view(torch.int32) & -(1 << 16)).view(torch.float32)
        above = ((below.view(torch.int32)) + (1 << 16)).view(torch.float32)
        assert found.dtype == torch.bfloat16 and set(found.float().unique().tolist()) <= {float(below), float(above)}
        gap = abs(float(above - below))
        assert abs(float(found.double().mean() - exact[0].double())) < 4 * gap / 2 / 200_000**0.5


def moments_after(steps: int, settings: dict[str, object]) -> tuple[torch.Tensor, torch.Tensor]:
    """The second moments of 4,096 weights that saw one large gradient and then none."""
    weight = torch.zeros(4096)
    optimizer = BFloat16AdamW([weight], lr=0.0, betas=(0.9, 0.999), **settings)
    state = optimizer.state[weight] = {"step": torch.tensor(0.0)}
    state |= {name: torch.zeros(4096, dtype=torch.bfloat16) for name in ("exp_avg", "exp_avg_sq")}
    weight.grad = torch.full((4096,), 30.0)
    for _ in range(steps):
        optimizer.step()
        weight.grad.zero_()
    return weight, state["exp_avg_sq"].float()


def test_second_moments_forget_as_float32_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth less in each step is less than half of bfloat16's spacing: rounded to the nearest it never comes."""
    expected = 0.9 * 0.999**1000
    _, found = moments_after(1001, {})
    assert float(found.mean()) == pytest.approx(expected, rel=0.01)
    monkeypatch.setattr("dice.train.optimizer.rounded_at_random", lambda x, _: x.bfloat16())
    _, stuck = moments_after(1001, {})
    assert float(stuck.mean()) == pytest.approx(0.9, rel=0.01)


@pytest.fixture(scope="session")
def small_moments(toy: SFTConfig) -> SFTConfig:
    return replace(toy, moments="bfloat16", beta2=0.999, ema=None)


@pytest.mark.slow  # whole runs; the suite resumes others
def test_a_run_learns_as_with_float32_moments_and_resumes_exactly(small_moments: SFTConfig, tmp_path: Path) -> None:
    whole = replace(small_moments, out=tmp_path / "whole", max_steps=12)
    train_sft(whole)
    stored = checkpoint(tmp_path / "whole", 12)
    assert {name.split(".")[0] for name, value in stored.items() if value.dtype == torch.bfloat16} == {
        "exp_avg",
        "exp_avg_sq",
    }
    wide = replace(whole, out=tmp_path / "wide", moments="float32")
    train_sft(wide)
    theirs = checkpoint(tmp_path / "wide", 12)
    moved = torch.cat([(theirs[name] - checkpoint_start(whole)[name]).flatten() for name in weights(stored)])
    apart = torch.cat([(theirs[name] - stored[name]).flatten() for name in weights(stored)])
    assert float(apart.norm() / moved.norm()) < 0.05
    parts = replace(whole, out=tmp_path / "parts")
    train_sft(replace(parts, stop_after_seconds=1e-9))
    assert train_sft(replace(parts, stop_after_seconds=None)).finished
    again = checkpoint(tmp_path / "parts", 12)
    assert all(torch.equal(stored[name], again[name]) for name in stored)


def weights(stored: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in stored if name.startswith("weight.")]


def checkpoint_start(config: SFTConfig) -> dict[str, torch.Tensor]:
    """The weights that `config` starts from."""
    from dice.model.tokenizer import Tokenizer
    from dice.train.initial_model import initial_model

    model = initial_model(config, Tokenizer.from_folder(config.tokenizer), torch.device("cpu"))  # type: ignore[arg-type]
    return {f"weight.{name}": weight.detach() for name, weight in model.named_parameters()}
