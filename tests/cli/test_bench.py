"""`dice bench verify`: what its figures mean, how it resumes, and one small run as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from dice.bench import verify
from dice.cli import main
from dice.commands.bench import verify as command
from dice.commands.bench.bars import Bar, draw_bars
from dice.verdict import Backend
from dice.verify import Verifier
from dice.verify.build.service import BuildService
from tests.conftest import PATIENCE_S, borrowed_cache

PAIRS = tuple(command.distinct_pairs(5, seed=3))


def test_candidates_are_distinct_and_the_same_for_a_seed() -> None:
    again = command.distinct_pairs(5, seed=3)
    assert [kernel.id for _, kernel in again] == [kernel.id for _, kernel in PAIRS]
    assert len({kernel.id for _, kernel in PAIRS}) == 5


def test_rates_count_to_the_last_end_and_show_their_spread() -> None:
    found = verify.rates([1.0, 2.0, 3.0, 5.0, 7.0, 9.0])
    assert found["count"] == 6 and found["wall_s"] == 9.0
    assert found["per_minute"] == pytest.approx(40.0)
    assert found["per_minute_thirds"] == pytest.approx([30.0, 40.0, 60.0])
    assert verify.rates([])["per_minute"] == 0.0
    assert verify.rates([2.0])["per_minute_thirds"] == []


def test_quantiles() -> None:
    found = verify.quantiles([float(value) for value in range(101)])
    assert (found["min"], found["p10"], found["median"], found["p90"], found["max"]) == (0, 10, 50, 90, 100)
    assert verify.quantiles([]) == {}


def test_sources_are_read_from_the_file_without_running_it() -> None:
    sources = verify.sources_of(PAIRS[0][1].source)
    assert sources is not None
    assert "__global__" in sources.cuda[0] and sources.functions
    assert verify.sources_of("import torch\nraise SystemExit(1)\n") is None
    computed = "a = str(1)\nload_inline(name='x', cpp_sources=a, cuda_sources='')\n"
    assert verify.sources_of(computed) is None


def test_ratios_need_both_sides_and_name_the_sample() -> None:
    ours: dict[str, Any] = verify.rates([1.0, 2.0]) | {"seconds": verify.quantiles([1.0, 1.0])}
    stock: dict[str, Any] = verify.rates([60.0]) | {"seconds": verify.quantiles([60.0])}
    assert command.ratios({"builds": ours}) == {}
    found = command.ratios({"builds": ours, "stock": stock, "alone": ours, "stock_alone": stock})
    assert found["builds"] == pytest.approx(60.0)
    assert found["latency"] == pytest.approx(60.0)
    assert found["of"] == "2 builds of ours, 1 of stock's"


def plan(**changes: Any) -> verify.VerifyBenchPlan:
    values: dict[str, Any] = {"stock": 0, "stock_alone": 0, "workers": 2, "budget_s": 60.0}
    return verify.VerifyBenchPlan(PAIRS[:2], PAIRS[2:3], "emulated", **(values | changes))


def test_finished_phases_are_not_run_again_and_the_rest_is_stored_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    stored: list[list[str]] = []
    monkeypatch.setattr(verify, "builds", lambda *_: ran.append("builds") or {"count": 1})
    monkeypatch.setattr(verify, "stock", lambda pairs, *_: ran.append(f"stock {len(pairs)}") or {"count": len(pairs)})
    known = {"builds": {}, "verdicts": {}, "alone": {}, "warm": {}, "remembered": {}, "stock_alone": {}}
    runner = verify.Bench(
        plan(stock=2, stock_alone=1), known, lambda figures: stored.append([*figures]), lambda _: None
    )
    figures = runner.run()
    assert ran == ["stock 2"]
    assert stored == [[*known, "stock"]]
    assert figures["stock"] == {"count": 2}


def test_no_stock_build_starts_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "stock", lambda *_: pytest.fail("started after the budget"))
    known = {"builds": {}, "verdicts": {}, "alone": {}, "warm": {}, "remembered": {}}
    verify.Bench(plan(stock=2, stock_alone=1, budget_s=0.0), known, lambda _: None, lambda _: None).run()


def test_a_stock_run_that_is_cut_off_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = tmp_path / "endless.py"
    mark = f"endless-{time.time_ns()}"
    sleeper = f"[sys.executable, '-c', 'import time; time.sleep(300)', '{mark}']"
    endless.write_text(f"import subprocess, sys\nsubprocess.run({sleeper})\n")
    monkeypatch.setattr(verify, "STOCK", endless)
    found = verify.stock(PAIRS[:2], "emulated", 2, 2.0, tmp_path / "stock")
    assert found["count"] == 0 and found["unfinished"] == 2
    time.sleep(0.2)
    assert mark not in subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout


def test_a_failing_stock_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("raise SystemExit('no such toolkit')\n")
    monkeypatch.setattr(verify, "STOCK", failing)
    found = verify.stock(PAIRS[:1], "emulated", 1, 30.0, tmp_path / "stock")
    assert found["errors"] == ["no such toolkit"] and found["count"] == 0


def test_results_of_another_question_are_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "bench_verify.json"
    head = {"asked": {"candidates": 2}, "machine": {"gpu": None}}
    path.write_text(json.dumps(head | {"figures": {"builds": {"count": 2}}}))
    assert command._resume(path, head) == {"builds": {"count": 2}}
    assert command._resume(path, head | {"asked": {"candidates": 3}}) == {}
    path.write_text("{half")
    assert command._resume(path, head) == {}


def test_the_picture_is_xml_with_every_bar_that_was_measured() -> None:
    bars = [Bar("ours <fast>", 400.0, "400 a minute", True), Bar("stock", 10.0, "10", False)]
    root = ElementTree.fromstring(draw_bars("title & more", "where", [("a minute", bars), ("nothing", [])]))
    texts = {item.text for item in root.iter() if item.tag.endswith("text")}
    assert {"ours <fast>", "400 a minute", "stock", "10", "a minute", "title & more", "where"} <= texts
    assert "nothing" not in texts


@pytest.fixture
def lent_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of a run begin without builds, but with what all builds share, which takes half a minute to make."""

    def service(backend: Backend, cache_dir: Path) -> BuildService:
        return BuildService(backend, borrowed_cache(cache_dir))

    with Verifier(backend="emulated") as verifier:
        verifier.verify(*PAIRS[0])  # so that there is something to borrow
    monkeypatch.setattr(verify, "BuildService", service)
    monkeypatch.setattr("shutil.copytree", lambda source, target: target.symlink_to(source.resolve()))


@pytest.mark.slow
@pytest.mark.usefixtures("lent_headers")
def test_a_small_run_and_its_resumption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is resumed by a process, as a user starts it."""
    arguments = ["--candidates", "2", "--alone", "1", "--workers", "1", "--stock-candidates", "0", "--stock-alone", "0"]
    words = ["bench", "verify", "--backend", "emulated", "--out", str(tmp_path), *arguments]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["figures"]["builds"]["took"] == {"slim": 2}
    assert result["figures"]["verdicts"]["outcomes"] == result["figures"]["warm"]["outcomes"] == {"correct": 2}
    assert result["figures"]["alone"]["count"] == 1
    assert result["figures"]["remembered"]["per_minute"] > result["figures"]["verdicts"]["per_minute"]
    assert json.loads((tmp_path / "bench_verify.json").read_text())["figures"] == result["figures"]
    ElementTree.parse(tmp_path / "bench_verify.svg")
    line = [sys.executable, "-m", "dice", *words]
    again = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
    assert again.returncode == 0, again.stderr
    assert "measuring" not in again.stderr
    assert "No GPU here" in again.stdout
