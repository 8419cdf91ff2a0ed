"""Runs of compilers: how long they may take, on the clock and of the processor."""

from __future__ import annotations

import sys
from pathlib import Path

from dice.verify.build.compiler_process import run_all

BUSY = "import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"


def run(text: str, tmp_path: Path, timeout_s: float, cpu_s: float) -> int | None:
    (finished,) = run_all([[sys.executable, "-S", "-c", text]], tmp_path, timeout_s, cpu_s)
    return finished.status


def test_other_work_on_the_machine_is_not_the_compilers(tmp_path: Path) -> None:
    assert run("import time; time.sleep(1.5)", tmp_path, 60, 1) == 0


def test_who_computes_for_longer_than_allowed_is_out_of_time(tmp_path: Path) -> None:
    assert run(BUSY.format(seconds=60), tmp_path, 120, 1) is None


def test_a_compiler_whose_part_was_ended_is_out_of_time(tmp_path: Path) -> None:
    assert (
        run("print('g++: CPU time limit exceeded signal terminated program cc1plus'); exit(1)", tmp_path, 60, 9) is None
    )


def test_what_only_waits_ends_with_the_clock(tmp_path: Path) -> None:
    assert run("import time; time.sleep(600)", tmp_path, 0.3, 60) is None
