"""Whole runs in real processes: they learn, survive kills exactly, refuse nonsense, and say what happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import checkpoint as state

from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import compact
from dice.train.config import SFTConfig
from dice.train.session import TrainingError
from dice.train.sft import train_sft
from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]

# What a child process runs; the configuration comes as a pickle on standard input.
CHILD = """
import pickle, sys, torch
torch.set_num_threads(1)
from dice.errors import MachineError, UserError
from dice.train.sft import train_sft
limit, config = pickle.load(sys.stdin.buffer)
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(train_sft(config).reason)
except (MachineError, UserError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def start(config: SFTConfig, file_limit: int = 0) -> subprocess.Popen[bytes]:
    import pickle

    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(pickle.dumps((file_limit, config)))
    child.stdin.close()
    child.stdin = None
    return child


def wait_for(path: Path, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert child.poll() is None, child.communicate()[1].decode()
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one: Path, other: Path, step: int) -> None:
    ours, theirs = state(one, step), state(other, step)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert timeless(one) == timeless(other)


def timeless(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_s")} for line in metrics(folder)]


@pytest.fixture(scope="session")
def short(toy: SFTConfig) -> SFTConfig:
    return replace(toy, max_steps=6, log_every=1, eval_every=3, micro_rows=2, ema=0.9, checkpoint_every=1, warmup=0.3)


@pytest.fixture(scope="session")
def whole(short: SFTConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run that others must equal."""
    out = tmp_path_factory.mktemp("whole")
    train_sft(replace(short, out=out))
    return out


def test_a_real_run_learns_and_exports(toy: SFTConfig, tmp_path: Path) -> None:
    result = train_sft(replace(toy, out=tmp_path))
    assert result.finished and result.step == 60
    lines = metrics(tmp_path)
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line for line in lines if "val_loss" in line]
    assert losses[-1] < 0.4 * losses[0]
    assert held_out[-1]["val_loss"] < 0.5 * held_out[0]["val_loss"]
    assert held_out[-1]["val_accuracy"] > 0.7
    model, tokenizer = load_model(result.model), Tokenizer.from_folder(result.model)
    assert (model.config.block_size, model.config.mask_token_id) == (4, tokenizer.mask_id)
    trained = state(tmp_path, 60)
    assert all(torch.equal(weight, trained[f"weight.{name}"]) for name, weight in model.state_dict().items())
    assert json.loads((tmp_path / "config.json").read_text())["lr"] == toy.lr
    assert json.loads((tmp_path / "versions.json").read_text())["torch"] == torch.__version__


def test_chunks_of_one_step_equal_one_run(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    for done in range(1, 7):
        result = train_sft(replace(short, out=tmp_path, stop_after_seconds=1e-9))
        assert (result.step, result.finished) == (done, done == 6)
    assert_same_run(tmp_path, whole, 6)
    again = train_sft(replace(short, out=tmp_path))
    assert (again.step, again.finished) == (6, True)


def test_killed_run_resumes_exactly(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    """Killed twice without warning, wherever it just was: the whole run takes some tenths of a second."""
    rng = random.Random(0)
    for _ in range(2):
        child = start(replace(short, out=tmp_path))
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.4))
        child.kill()
        child.wait()
    assert train_sft(replace(short, out=tmp_path)).finished
    assert_same_run(tmp_path, whole, 6)


@pytest.mark.slow  # the suite kills a run and interrupts another
def test_terminated_run_saves_first(short: SFTConfig, tmp_path: Path) -> None:
    child = start(replace(short, out=tmp_path, max_steps=100_000, checkpoint_every=100_000))
    wait_for(tmp_path / "metrics.jsonl", child)
    child.send_signal(signal.SIGTERM)
    output, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0, errors.decode()
    assert output.decode().splitlines()[-1] == "interrupted"
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert saved.name == f"step-{int(metrics(tmp_path)[-1]['step']):08d}"
    assert load_model(tmp_path / "model")


def test_damaged_checkpoint_falls_back_to_the_one_before(
    short: SFTConfig, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        train_sft(replace(short, out=tmp_path, stop_after_seconds=1e-9))
    newest = tmp_path / "checkpoints" / "step-00000003" / "__0_0.distcp"
    newest.write_bytes(newest.read_bytes()[:1000])
    train_sft(replace(short, out=tmp_path))
    shown = capsys.readouterr().out
    assert "step-00000003 is damaged" in shown and "Resuming after step 2" in shown
    assert_same_run(tmp_path, whole, 6)


def test_only_the_newest_checkpoints_are_kept(whole: Path) -> None:
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["step-00000005", "step-00000006"]


def test_full_disk_keeps_the_last_checkpoint(short: SFTConfig, tmp_path: Path) -> None:
    train_sft(replace(short, out=tmp_path, stop_after_seconds=1e-9))
    child = start(replace(short, out=tmp_path), file_limit=100_000)
    _, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 1
    assert "MachineError: Cannot write checkpoint" in errors.decode()
    assert "step-00000002: File too large; the last good one is step-00000001." in errors.decode()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_loss_that_is_not_a_number_stops_the_run(short: SFTConfig, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="Stopped at step 2: .* not a finite number"):
        train_sft(replace(short, out=tmp_path, lr=1e30, ema=None, warmup=0.0))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_micro_batch_size_does_not_change_the_run(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    train_sft(replace(short, out=tmp_path, micro_rows=4))
    ours, theirs = state(tmp_path, 6), state(whole, 6)
    for name in theirs:
        if name.startswith("weight."):
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow  # two whole runs; the steps are compared in test_sft_engine.py
def test_bf16_run_follows_the_float32_one(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    train_sft(replace(short, out=tmp_path, precision="bf16"))
    ours, theirs = ([line["loss"] for line in metrics(f) if "loss" in line] for f in (tmp_path, whole))
    assert ours == pytest.approx(theirs, rel=0.02)
    assert ours != theirs
    assert all(value.dtype == torch.float32 for value in state(tmp_path, 6).values())


def test_average_is_what_is_validated_and_does_not_change_training(
    short: SFTConfig, whole: Path, tmp_path: Path
) -> None:
    train_sft(replace(short, out=tmp_path, ema=None))
    plain, averaged = metrics(tmp_path), metrics(whole)
    assert [line["loss"] for line in plain if "loss" in line] == [line["loss"] for line in averaged if "loss" in line]
    held_out = [[line["val_loss"] for line in lines if "val_loss" in line] for lines in (plain, averaged)]
    assert all(one != other for one, other in zip(*held_out, strict=True))


def test_average_is_what_is_exported(short: SFTConfig, whole: Path) -> None:
    model, saved = load_model(whole / "model").state_dict(), state(whole, 6)
    assert all(torch.equal(weight, saved[f"average.{name}"]) for name, weight in model.items())
    assert not torch.equal(model["lm_head.weight"], saved["weight.lm_head.weight"])


@pytest.mark.parametrize(("shortly", "form"), [(3, "compact"), (1, "one-shot")])
def test_whoever_asks_the_model_is_told_how_it_was_taught(
    short: SFTConfig, tmp_path: Path, shortly: int, form: str
) -> None:
    prompts = [compact(Problem("pass"))] * shortly + ["Please write a kernel."] * (4 - shortly)
    rows = [{"prompt": prompt, "response": "no"} for prompt in prompts]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = train_sft(replace(short, out=tmp_path / "run", data=data, eval_data=None, max_steps=1))
    assert load_model(result.model).config.prompt == form


def test_training_goes_on_from_an_exported_model(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    config = replace(short, out=tmp_path, tokenizer=None, model=str(whole / "model"), ema=None)
    train_sft(config)
    assert metrics(tmp_path)[0]["loss"] < metrics(whole)[0]["loss"]


def test_time_budget_ends_a_run(short: SFTConfig, tmp_path: Path) -> None:
    result = train_sft(replace(short, out=tmp_path, max_steps=10**9, max_seconds=1e-6))
    assert result.finished and result.step == 1


def test_resuming_another_run_is_refused(short: SFTConfig, whole: Path) -> None:
    with pytest.raises(UserError, match="holds a run with other seed"):
        train_sft(replace(short, out=whole, seed=5))


def test_two_processes_cannot_share_a_run_folder(short: SFTConfig, tmp_path: Path) -> None:
    child = start(replace(short, out=tmp_path, max_steps=100_000))
    wait_for(tmp_path / "metrics.jsonl", child)
    with pytest.raises(UserError, match="Another process is training"):
        train_sft(replace(short, out=tmp_path))
    child.kill()
    child.wait()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, "needs `data`"),
        ({"shape": None}, "either `model`"),
        ({"tokenizer": None}, "needs a `tokenizer`"),
        ({"epochs": 1.0}, "either `epochs` or `max_steps`"),
        ({"micro_rows": 3}, "multiple of micro_rows"),
        ({"noise": "block", "t_min": 0.5, "t_max": 0.5}, "t_min 0.5"),
        ({"noise": "count", "t_min": 0.5}, "noise=count integrates"),
        ({"row_tokens": 2048}, "2048 tokens, the model 1024 positions"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"row_tokens": 254}, "multiple of the block size"),
        ({"attention": "flex", "row_tokens": 192}, "whole tiles of 128"),
        ({"data": Path("absent.parquet")}, "no data file"),
        ({"tokenizer": Path("absent")}, "absent holds neither tokenizer.json"),
        ({"shape": None, "model": "absent/"}, "no model folder"),
    ],
)
def test_unusable_settings_are_one_sentence(
    short: SFTConfig, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train_sft(replace(short, out=tmp_path, **change))  # type: ignore[arg-type]


def test_missing_gpu_is_said(short: SFTConfig, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(MachineError, match="no CUDA device"):
        train_sft(replace(short, out=tmp_path, device="cuda"))


def test_a_shape_that_no_memory_holds_is_said(short: SFTConfig, tmp_path: Path) -> None:
    assert short.shape is not None
    with pytest.raises(MachineError, match="does not fit in memory"):
        train_sft(replace(short, out=tmp_path, shape=replace(short.shape, hidden_size=10**12)))
