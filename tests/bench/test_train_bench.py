"""`dice bench train`: both compute the same loss; what is counted is what must be computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dice.bench.train import Contender, TrainBench, TrainBenchPlan, needed_flops, random_rows, spread
from dice.cli import main
from dice.recipes import SHAPES
from dice.train.attention import DenseMask
from dice.train.noise import corrupt, step_generator
from dice.train.world import World

PLAN = TrainBenchPlan(
    shape=SHAPES["tiny"][0], vocab_size=512, block_size=4, row_tokens=128, batch_rows=4, micro_rows=4, rounds=2,
    shortest=20, longest=128,
)  # fmt: skip


def test_as_a_user_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--shape", "tiny", "--row-tokens", "128", "--batch-rows", "4", "--micro-rows", "2", "--rounds", "3"]
    more = ["--documents", "20", "128", "--device", "cpu", "--json", "--out", str(tmp_path / "made" / "result.json")]
    assert main(["bench", "train", *size, *more]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert json.loads((tmp_path / "made" / "result.json").read_text()) == result
    ours, stock = result["figures"]["ours"], result["figures"]["stock"]
    assert ours["loss"] == pytest.approx(stock["loss"], rel=1e-4)
    for found in (ours, stock):
        assert found["tokens_per_s"]["n"] == 3 and found["tokens_per_s"]["median"] > 0
        assert (found["micro_rows"], found["recompute"], found["mfu"]) == (2, False, None)
    assert result["figures"]["ratio"]["p10"] <= result["figures"]["ratio"]["median"]
    assert result["machine"]["torch"] == torch.__version__
    assert "round 3 of 3" in output.err


def test_each_takes_the_largest_setting_that_fits() -> None:
    said: list[str] = []
    bench = TrainBench(PLAN, World(torch.device("cpu")), said.append)
    real = bench._step

    def step(contender: Contender) -> float:
        if contender.setting.micro_rows > 1 or (contender.name == "stock" and not contender.setting.recompute):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(contender)

    bench._step = step  # type: ignore[method-assign]
    figures = bench.run()
    assert [(figures[name]["micro_rows"], figures[name]["recompute"]) for name in ("ours", "stock")] == [
        (1, False), (1, True),
    ]  # fmt: skip
    assert [text for text in said if "out of memory" in text][:2] == [
        "out of memory with 4 rows at a time", "out of memory with 2 rows at a time",
    ]  # fmt: skip
    assert figures["ours"]["loss"] == pytest.approx(figures["stock"]["loss"], rel=1e-4)


def test_needed_work_counts_the_doubled_sequence_and_the_pairs_of_the_mask() -> None:
    rows = random_rows(PLAN)
    batch = rows.take(torch.arange(4))
    noise = corrupt(batch.trainable, batch.documents, 4, "count", step_generator(0, "f", 0, "cpu"))
    model = PLAN.model
    pairs, hidden, tokens = int(DenseMask(4)(batch).sum()), int(noise.masked.sum()), 4 * 128
    matrices = 2 * 64 * (2 * 64 + 2 * 32 + 3 * 128)  # two layers: q and o, k and v, and the MLP's three
    attention = 2 * 2 * 64 * pairs * 3  # QK and PV in two layers of two heads, forward and twice backward
    expected = 6 * matrices * 2 * tokens + 2 * attention + 6 * 64 * 512 * hidden
    assert needed_flops(model, batch, noise) == expected


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "p10": pytest.approx(1.2), "p90": pytest.approx(2.8), "n": 3}
