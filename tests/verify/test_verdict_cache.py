"""Verdicts on disk: found again only where nothing that matters has changed; trouble with the file costs no more."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import OUTCOMES, Timing, Verdict
from dice.verify import Options, emulator, verdict_cache
from dice.verify.verdict_cache import VerdictCache, VerdictCacheUnavailable, cache_key
from tests.conftest import PATIENCE_S

PROBLEM, KERNEL = Problem("class Model: pass"), Kernel("class ModelNew: pass")
VERDICT = Verdict("wrong", "compare", "it differs", errors=("line 1",), timing=Timing(1.0, 2.0, 2.0, 9), labels=("x",))
GIVEN: dict[str, Any] = {
    "problem": PROBLEM,
    "kernel": KERNEL,
    "options": Options(),
    "backend": "emulated",
    "device": "CPU",
    "toolchain": "g++ 12",
}


def test_what_was_kept_is_found_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "a" / "verdicts"
    for expected in (None, VERDICT):
        cache = VerdictCache(path)
        assert cache.find("key") == expected
        cache.keep("key", VERDICT)
        cache.close()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_only_verdicts_on_the_kernel_are_kept(outcome: Any, tmp_path: Path) -> None:
    verdict = replace(VERDICT, outcome=outcome)
    cache = VerdictCache(tmp_path / "verdicts")
    cache.keep("key", verdict)
    assert len(cache) == verdict.about_kernel == (outcome not in ("infra_error", "unsupported"))


@pytest.mark.parametrize(
    "change",
    [
        {"problem": Problem("class Model: pass  # other")},
        {"kernel": Kernel("class ModelNew: pass  # other")},
        {"options": Options(trials=6)},
        {"options": Options(protocol="kernelbench")},
        {"options": Options(run_timeout_s=1)},
        {"options": Options(sanitize=True)},
        {"backend": "cuda"},
        {"device": "NVIDIA H100"},
        {"toolchain": "g++ 13"},
    ],
)
def test_all_that_a_verdict_depends_on_is_in_its_key(change: dict[str, Any]) -> None:
    assert cache_key(**GIVEN) == cache_key(**GIVEN) != cache_key(**GIVEN | change)


def test_where_builds_are_kept_is_not_in_the_key_and_the_verifiers_source_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = cache_key(**GIVEN)
    assert cache_key(**GIVEN | {"options": Options(cache_dir=tmp_path)}) == key
    monkeypatch.setattr(verdict_cache, "harness_version", lambda: "another")
    assert cache_key(**GIVEN) != key


def test_the_verifiers_source_is_all_that_lies_beside_it() -> None:
    """Also headers whose names have no suffix."""
    found = set(verdict_cache._sources())
    headers = {path for path in emulator.include_dir.rglob("*") if path.is_file()}
    assert headers and headers <= found
    assert not any(path.suffix == ".pyc" for path in found)


@pytest.mark.parametrize("damage", ["garbage", "cut short"])
def test_a_damaged_file_is_put_aside_and_begun_anew(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "verdicts"
    cache = VerdictCache(path)
    for number in range(300):
        cache.keep(str(number), VERDICT)
    cache.close()
    path.write_bytes(b"no database at all" * 500 if damage == "garbage" else path.read_bytes()[:5000])
    cache = VerdictCache(path)
    for number in range(300):
        assert cache.find(str(number)) in (None, VERDICT)
    cache.keep("new", VERDICT)
    assert cache.find("new") == VERDICT
    assert path.with_name("verdicts.damaged").exists() and "is damaged" in caplog.text


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"outcome": "correct", "timing": {"kernel_ms": 1}}'])
def test_an_unreadable_row_is_a_verdict_that_is_not_there(text: str, tmp_path: Path) -> None:
    path = tmp_path / "verdicts"
    cache = VerdictCache(path)
    cache.keep("key", VERDICT)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE verdicts SET verdict = ?", (text,))
    database.close()
    assert cache.find("key") is None


def test_a_place_where_nothing_can_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "verdicts", tmp_path):
        with pytest.raises(VerdictCacheUnavailable, match="Verdicts cannot be kept in .*[.]$"):
            VerdictCache(path)


def test_a_full_disk_costs_the_cache_and_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = VerdictCache(tmp_path / "verdicts")
    cache._database.execute("PRAGMA max_page_count = 8")  # what SQLite says then is what it says of a full disk
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            cache.keep(str(number), VERDICT)
    assert caplog.text.count("are not kept") == 1 and "full" in caplog.text
    assert cache.find("0") == VERDICT and cache.find("99") is None


def test_many_threads_and_two_openers_at_once(tmp_path: Path) -> None:
    both = [VerdictCache(tmp_path / "verdicts") for _ in range(2)]

    def work(worker: int) -> None:
        for number in range(40):
            both[worker % 2].keep(f"{worker} {number}", replace(VERDICT, message=f"{worker} {number}"))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(both[0]) == len(both[1]) == 160
    found = both[0].find("3 39")
    assert found is not None and found.message == "3 39"


def test_many_processes_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)

    def open_many() -> None:
        for number in range(80):
            barrier.wait(PATIENCE_S)
            VerdictCache(tmp_path / str(number)).keep("key", VERDICT)

    openers = [context.Process(target=open_many) for _ in range(8)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(PATIENCE_S)
    assert [opener.exitcode for opener in openers] == [0] * 8
