"""Commands in chunks: what is done is done once, what is stopped goes on, what fails is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job, JobFailed, Jobs

from tests.conftest import ROOT

PATHS = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))

LASTING = """
import pathlib, signal, sys, time
note = pathlib.Path(sys.argv[1])
with note.open("a") as file: file.write("begun\\n")
def stop(*_):
    with note.open("a") as file: file.write("stopped\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
if note.read_text().count("begun") == 1: time.sleep(600)
"""


def python(code: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *map(str, arguments))


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_jobs_run_once_in_order_and_side_by_side(tmp_path: Path) -> None:
    line = "import os, sys; open(sys.argv[1], 'a').write(sys.argv[2] + str(len(os.sched_getaffinity(0))) + ' ')"
    said = tmp_path / "said"
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_text("x")
    jobs = [
        Job("c", python(line, said, "c"), ("b",), keep=(tmp_path / "made", tmp_path / "kept" / "c")),
        Job("b", python(line, said, "b"), ("a",)),
        Job("a", python(line, said, "a")),
        Job("spared", python("raise SystemExit(1)"), ("a",), unless=lambda: True),
    ]
    for _ in range(2):
        assert Jobs(tmp_path, jobs, parallel=2).run(60)
    assert [word[0] for word in said.read_text().split()] == ["a", "b", "c"]
    assert (tmp_path / "kept" / "c" / "file").read_text() == "x"


def test_what_is_stopped_goes_on_in_the_next_call(tmp_path: Path) -> None:
    note = tmp_path / "note"
    jobs = [Job("long", python(LASTING, note))]
    chunks = 0
    while not Jobs(tmp_path, jobs, parallel=1).run(3.0):
        chunks += 1
        assert chunks < 20
        if note.exists() and "stopped" not in note.read_text():
            note.unlink()  # a busy machine: it was stopped before it could begin
    assert note.read_text().split()[-3:] == ["begun", "stopped", "begun"]
    assert (tmp_path / "done" / "long").exists()


def test_a_failure_is_told_and_nothing_that_needs_it_runs(tmp_path: Path) -> None:
    jobs = [Job("bad", python("print('why'); raise SystemExit(3)")), Job("next", python("open('x', 'w')"), ("bad",))]
    with pytest.raises(JobFailed, match=r"bad ended with 3:\nwhy"):
        Jobs(tmp_path, jobs, parallel=2).run(60)
    assert not (tmp_path / "done" / "next").exists() and not (tmp_path / "logs" / "next.log").exists()


def test_jobs_side_by_side_are_on_gpus_of_their_own(tmp_path: Path) -> None:
    line = "import os, sys, time; open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(1)"
    jobs = [Job(name, python(line, tmp_path / name)) for name in "abcd"]
    assert Jobs(tmp_path, jobs, parallel=2, gpus=("3", "7")).run(60)
    assert sorted((tmp_path / name).read_text() for name in "ab") == ["3", "7"]


def test_a_failure_stops_no_other_where_told(tmp_path: Path) -> None:
    jobs = [Job("bad", python("raise SystemExit(3)")), Job("good", python("")), Job("next", python(""), ("bad",))]
    runner = Jobs(tmp_path, jobs, parallel=1, keep_going=True)
    assert not runner.run(60)
    assert runner.failed.keys() == {"bad"} and runner.is_done("good") and not runner.is_done("next")


def test_what_has_too_little_time_is_not_begun(tmp_path: Path) -> None:
    jobs = [Job("short", python("")), Job("long", python(""), least_s=1000.0)]
    assert not Jobs(tmp_path, jobs, parallel=2).run(60)
    assert (tmp_path / "done" / "short").exists() and not (tmp_path / "logs" / "long.log").exists()


def test_jobs_end_with_the_process_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = "import sys; from jobs import *; Jobs(Path(sys.argv[1]), [Job('long', tuple(sys.argv[2:]))], 1).run(600)"
    caller = subprocess.Popen(python(script, tmp_path, *python(LASTING, note)), env=os.environ | {"PYTHONPATH": PATHS})
    wait_for(lambda: note.exists() and "begun" in note.read_text())
    caller.kill()
    caller.wait()
    wait_for(lambda: "stopped" in note.read_text())
