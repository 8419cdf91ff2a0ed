"""The paper's further tables: their numbers twice over, and beside runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import VERDICTS, make_run

from dice.cli import main
from dice.evaluate.paper_rows import find
from dice.evaluate.paper_tables import TABLES, Numbers

TYPED = (Path(__file__).parent / "paper_numbers.txt").read_text().splitlines()[1:]
# What Table 7 prints beside its numbers: points gained by SFT in Exec, by level.
GAINS = {
    ("1.7B", "SDAR-Chat"): (16, 6, 8), ("1.7B", "Qwen3"): (6, 5, 8),
    ("4B", "SDAR-Chat"): (24, 20, 6), ("4B", "Qwen3"): (6, -16, -4),
    ("8B", "SDAR-Chat"): (28, 16, 16), ("8B", "Qwen3"): (17, -12, 12),
}  # fmt: skip


def row(table: int, *facts: str) -> Numbers:
    (found,) = [one.levels for one in TABLES[table].rows if one.facts[: len(facts)] == facts]
    return found


@pytest.mark.parametrize("number", [4, 5, 6, 7, 11])
def test_the_numbers_are_the_papers(number: int) -> None:
    typed = [line.partition("|")[2].split() for line in TYPED if int(line.partition("|")[0]) == number]
    ours = [[str(value) for level in (1, 2, 3) for value in one.levels[level]] for one in TABLES[number].rows]
    assert ours == typed
    assert all(len(one.facts) == len(TABLES[number].facts) for one in TABLES[number].rows)


def test_rows_that_the_paper_prints_in_several_tables_are_alike() -> None:
    for size in ("1.7B", "4B", "8B"):
        assert row(6, size, "SDAR-Chat") == row(7, size, "SDAR-Chat") == find(f"SDAR-Chat-{size}").published
        assert row(6, size, "SFT") == row(7, size, "SDAR-Chat + SFT")
        assert row(6, size, "DICE") == find(f"DICE-{size}").published
        assert row(7, size, "Qwen3") == find(f"Qwen3-{size}").published
    assert row(4, "2.0x") == row(6, "4B", "SFT") and row(5, "CuKe") == row(6, "8B", "SFT")
    assert row(11, "cudaLLM", "32768") == find("cudaLLM").published
    assert row(11, "cudaLLM", "4096") == find("cudaLLM (4096 tokens)").published
    assert row(11, "DICE") == find("DICE-8B").published
    assert find("cudaLLM (4096 tokens)").settings == find("cudaLLM").settings | {"max_new_tokens": 4096}


def test_table_7_gains_what_it_says() -> None:
    for (size, model), gains in GAINS.items():
        before, after = row(7, size, model), row(7, size, f"{model} + SFT")
        assert tuple(after[level][0] - before[level][0] for level in (1, 2, 3)) == gains


def test_runs_stand_above_the_published_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "cuke-2.0", model="ours", verdicts={"dice-paper": VERDICTS["dice"]})
    assert main(["report", str(run.path), "--table", "4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [list(one.values())[0] for one in rows] == ["ours", "1.5x", "2.0x", "2.5x"]
    assert rows[0]["threshold, or run"] == "ours" and rows[0]["all Exec"].startswith("20.0 [")
    assert rows[2]["L2 Exec"] == "21" and rows[2]["L2 fast1/fast2"] == "16 / 5"
    assert main(["report", str(run.path), "--table", "4", "-o", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "table_4.md").read_text()
    assert "every problem counts" in text and "*7940*" in text


def test_the_papers_tables_need_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in TABLES:
        assert main(["report", "--table", str(number)]) == 0
    assert "about 960" in capsys.readouterr().out
    run = make_run(tmp_path / "run")
    assert main(["report", str(run.path), "--table", "9"]) != 0
    assert "costs of training" in capsys.readouterr().err
