"""`dice bench decode`: what is counted is what was revealed, and a limit is what must be read and computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dice.bench.decode import Ceilings, DecodeBench, DecodePlan, forward_limit
from dice.cli import main
from dice.commands.bench.decode import draw
from dice.recipes import SHAPES

SMALL = ["--shape", "tiny", "--context", "24", "--steps", "8", "--device", "cpu"]


def test_as_a_user_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "made" / "bench.json", tmp_path / "bench.svg"
    more = ["--batch", "1", "3", "--revealed", "2", "--contenders", "engine", "plain", "engine fp8"]
    assert main(["bench", "decode", *SMALL, *more, "--json", "--out", str(out), "--plot", str(plot)]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert json.loads(out.read_text()) == result
    assert "engine fp8 is left out" in output.err
    assert {(row["who"], row["batch"]) for row in result["rows"]} == {
        ("engine", 1), ("engine", 3), ("plain", 1), ("plain", 3),
    }  # fmt: skip
    for row in result["rows"]:
        assert row["tokens_a_forward"] == pytest.approx(2 * row["batch"], rel=0.1)
        assert row["tokens_per_s"] == pytest.approx(1000 * row["tokens_a_forward"] / row["forward_ms"], rel=0.01)
        assert row["share_of_limit"] == pytest.approx(row["limit_ms"] / row["forward_ms"])
        assert row["first_block_s"] > 0
    assert result["machine"]["torch"] == torch.__version__ and result["published"]
    text = plot.read_text()
    assert text.count("<svg") == 1 and "limit" in text


def test_rows_are_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "bench",
        "decode",
        *SMALL,
        "--revealed",
        "4",
        "--contenders",
        "engine",
        "--out",
        str(tmp_path / "b.json"),
    ]
    assert main([*command, "--batch", "1"]) == 0
    first = json.loads((tmp_path / "b.json").read_text())["rows"]
    capsys.readouterr()
    assert main([*command, "--batch", "1", "2"]) == 0
    output = capsys.readouterr()
    again = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert again[0] == first[0] and [row["batch"] for row in again] == [1, 2]
    assert "batch 1," not in output.err and "batch 2," in output.err
    assert "tokens/s" in output.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--revealed", "3"], "does not divide a block of 4"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["--context", "4000"], "the model has"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", *SMALL, "--contenders", "plain", "--batch", "1", *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_limit_is_what_must_be_read_or_computed() -> None:
    """By hand, for SDAR-8B on a memory of 4.35 TB/s at 680 TFLOP/s."""
    shape, vocabulary = SHAPES["8b"]
    config = DecodePlan(shape, vocabulary, 4, (1,), (1024,), (2,), 1).model
    ceilings = Ceilings(4.35e12, 680e12, None)
    products, head, attention = forward_limit(config, ceilings, 1, 1024, 2, torch.bfloat16, fp8=False)
    assert products == pytest.approx(2 * 6.946e9 / 4.35e12, rel=1e-3)
    assert head == pytest.approx(2 * 0.6223e9 / 4.35e12, rel=1e-3)
    assert attention == pytest.approx(147_456 * 1024 / 4.35e12, rel=1e-3)
    products, head, attention = forward_limit(config, ceilings, 128, 1024, 2, torch.bfloat16, fp8=False)
    assert products == pytest.approx(2 * 128 * 6 * 6.946e9 / 680e12, rel=1e-3)
    assert head == pytest.approx(2 * 128 * 3 * 0.6223e9 / 680e12, rel=1e-3)


def test_memory_that_does_not_suffice_is_a_row_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, object]] = []
    plan = DecodePlan(SHAPES["tiny"][0], 512, 4, (1,), (16,), (4,), 2)
    bench = DecodeBench(plan, torch.device("cpu"), lambda text: None, rows.append)

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "_run_engine", fail)
    bench.run(["engine", "plain"])
    assert [row.get("failed") for row in rows] == ["out of memory", None]
    assert "limit" in draw({"rows": rows})
