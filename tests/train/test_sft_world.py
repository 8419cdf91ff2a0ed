"""Two processes that torchrun starts train as one does, and either goes on with what the other left."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from launching import finish, kill, torchrun, wait_for
from training_helpers import checkpoint

from dice.errors import UserError
from dice.model.checkpoint import load_model
from dice.train.config import SFTConfig
from dice.train.noise import Corruption
from dice.train.packing import PackedRows
from dice.train.sft import train_sft
from dice.train.sft_objective import MicroBatch, deal, micro_rows
from dice.train.world import World
from tests.conftest import PATIENCE_S


def job(config: SFTConfig) -> partial[str]:
    return partial(train, config)


def train(config: SFTConfig) -> str:
    return train_sft(config).reason


def metrics(folder: Path, name: str) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def assert_follows(folder: Path, whole: Path, rel: float = 1e-5) -> None:
    """The same losses and weights to rounding; Adam's first steps magnify what is left of it."""
    for name in ("loss", "nll", "grad_norm", "val_loss"):
        assert metrics(folder, name) == pytest.approx(metrics(whole, name), rel=rel), name
    ours, theirs = checkpoint(folder, 6), checkpoint(whole, 6)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if not name.startswith("exp_avg_sq."):
            torch.testing.assert_close(ours[name], tensor, rtol=2e-3, atol=2e-5, msg=name)


@pytest.fixture(scope="session")
def short(toy: SFTConfig) -> SFTConfig:
    return replace(toy, max_steps=6, log_every=1, eval_every=3, micro_rows=2, ema=0.9, checkpoint_every=2, warmup=0.3)


@pytest.fixture(scope="session")
def whole(short: SFTConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process comes to."""
    out = tmp_path_factory.mktemp("one_process")
    train_sft(replace(short, out=out))
    return out


def test_two_processes_follow_one(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    """Weights sharded, blocks recomputed; a batch that does not deal evenly; and a run that one process began."""
    uneven = replace(short, micro_rows=3, batch_rows=3)
    train_sft(replace(uneven, out=tmp_path / "uneven_alone"))
    train_sft(replace(short, out=tmp_path / "handed_over", stop_after_seconds=1e-9))
    halves = replace(short, activation_checkpointing="ffn", recompute_layers=1, moments="bfloat16")
    launched = torchrun(
        tmp_path / "launch",
        job(replace(short, out=tmp_path / "two", activation_checkpointing="block")),
        job(replace(halves, out=tmp_path / "small")),
        job(replace(uneven, out=tmp_path / "uneven", reshard=False)),
        job(replace(short, out=tmp_path / "handed_over")),
    )
    output = finish(launched)
    assert output.count("finished\n") == 8 and output.count("Resuming after step 1.") == 1
    assert output.count("2 x cpu") == 4, "only one process speaks"
    small, wide = checkpoint(tmp_path / "small", 6), checkpoint(tmp_path / "two", 6)
    assert {small[name].dtype for name in small if name.startswith("exp_avg")} == {torch.bfloat16}
    apart = torch.cat([(small[name] - wide[name]).flatten() for name in small if name.startswith("exp_avg.")])
    whole_moments = torch.cat([wide[name].flatten() for name in small if name.startswith("exp_avg.")])
    assert 0 < float(apart.norm() / whole_moments.norm()) < 0.05
    assert_follows(tmp_path / "two", whole)
    assert_follows(tmp_path / "uneven", tmp_path / "uneven_alone")
    assert_follows(tmp_path / "handed_over", whole)
    exported, average = load_model(tmp_path / "two" / "model").state_dict(), checkpoint(tmp_path / "two", 6)
    assert all(torch.equal(weight, average[f"average.{name}"]) for name, weight in exported.items())


@pytest.mark.slow
def test_one_process_goes_on_where_two_were_killed(short: SFTConfig, whole: Path, tmp_path: Path) -> None:
    launched = torchrun(tmp_path / "launch", job(replace(short, out=tmp_path)))
    wait_for(tmp_path / "checkpoints" / "step-00000002", launched)
    kill(tmp_path / "launch", launched)
    names = {path.name for path in (tmp_path / "checkpoints").glob("step-*")}
    assert names and all((tmp_path / "checkpoints" / name / "manifest.json").exists() for name in names)
    assert train_sft(replace(short, out=tmp_path)).finished
    assert_follows(tmp_path, whole)


@pytest.mark.slow
def test_terminated_processes_save_first(short: SFTConfig, tmp_path: Path) -> None:
    endless = replace(short, out=tmp_path, max_steps=10**6, checkpoint_every=10**6)
    launched = torchrun(tmp_path / "launch", job(endless))
    wait_for(tmp_path / "metrics.jsonl", launched)
    os.kill(launched.pid, signal.SIGTERM)
    output, errors = launched.communicate(timeout=PATIENCE_S)
    assert output.count("interrupted\n") == 2, output + errors
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert (
        saved.name == f"step-{int(json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])['step']):08d}"
    )
    assert load_model(tmp_path / "model")


def part(row: int, rows: int = 1) -> MicroBatch:
    tokens = torch.full((rows, 4), row)
    batch = PackedRows(tokens, tokens, tokens, torch.ones(rows, 4, dtype=torch.bool), used=1)
    return batch, Corruption(torch.ones(rows, 4, dtype=torch.bool), torch.ones(rows, 4))


@pytest.mark.parametrize(("parts", "processes"), [(8, 1), (8, 2), (8, 3), (5, 4), (1, 2)])
def test_every_micro_batch_is_trained_once_and_all_take_as_many_turns(parts: int, processes: int) -> None:
    dealt = [
        list(deal([part(n) for n in range(parts)], World(torch.device("cpu"), rank, processes)))
        for rank in range(processes)
    ]
    assert {len(turns) for turns in dealt} == {-(-parts // processes)}
    trained = [int(rows.tokens[0, 0]) for turns in dealt for rows, noise in turns if noise.masked.any()]
    assert sorted(trained) == list(range(parts))
    idle = [noise for turns in dealt for _, noise in turns if not noise.masked.any()]
    assert all(float(noise.weight.sum()) == 0.0 for noise in idle)


@pytest.mark.parametrize(
    ("batch", "limit", "processes", "size"), [(16, 8, 1, 8), (16, 8, 2, 8), (16, 8, 4, 4), (16, 8, 3, 4), (3, 2, 2, 1)]
)
def test_micro_batches_divide_the_batch_and_leave_each_process_some(
    short: SFTConfig, batch: int, limit: int, processes: int, size: int
) -> None:
    assert micro_rows(replace(short, batch_rows=batch, micro_rows=limit), processes) == size


def test_more_processes_than_rows_is_refused(short: SFTConfig) -> None:
    with pytest.raises(UserError, match="4 rows cannot be dealt over 5 processes"):
        micro_rows(short, 5)
