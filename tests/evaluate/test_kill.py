"""A run of nano, killed with SIGKILL several times at random points, against an undisturbed one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dice.evaluate.run_folder import RunFolder
from tests.conftest import ROOT

PROBLEMS = ("relu", "row_sum", "log", "add")
# Has imported all that a run needs, and forks a process with a session of its own for each command line it reads.
LAUNCHER = """
import json, os, sys
import dice.evaluate.models.native, dice.evaluate.run, dice.evaluate.metrics
from dice.cli import main

for line in sys.stdin:
    arguments, out = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os._exit(main(arguments))
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Launcher:
    def __init__(self, folder: Path):
        self.folder = folder
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, out: Path, chance: random.Random | None = None) -> dict[str, Any]:
        """What the command printed; {} where it was killed, which `chance` says when to do: any time in its first two
        seconds, or a while after it has stored something."""
        given = ["--model", "nano", "--problems", str(self.folder / "bench"), "--out", str(out), "--batch", "1"]
        judging = ["--backend", "emulated", "--trials", "1", "--json"]
        printed = self.folder / "printed.json"
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([["eval", *given, *judging], str(printed)]) + "\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        if chance is not None:
            stored, soon = files(out), chance.random() < 0.5
            while not soon and files(out) == stored and not self._ended():
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 2.0 if soon else 0.6))
            with contextlib.suppress(ProcessLookupError):  # it was through already
                os.killpg(child, signal.SIGKILL)
        status = int(self._process.stdout.readline())
        assert status == 0 or chance is not None
        return dict(json.loads(printed.read_text())) if status == 0 else {}

    def _ended(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    (tmp_path / "bench" / "level1").mkdir(parents=True)
    for number, name in enumerate(PROBLEMS, start=1):
        shutil.copy(
            ROOT / "tests" / "cases" / "problems" / f"{name}.py", tmp_path / "bench" / "level1" / f"{number}_{name}.py"
        )
    made = Launcher(tmp_path)
    yield made
    made.close()


def facts(path: Path) -> dict[str, Any]:
    """All that must be the same: texts, how they were denoised, verdicts."""
    run = RunFolder(path)
    return {
        "generations": {one.id: (one.reply, one.kernel, one.stop, one.forwards) for one in run.generations()},
        "verdicts": {
            name: {one.id: (one.verdict.outcome, one.verdict.deceptions) for one in run.judgements(name)}
            for name in run.protocols
        },
    }


def files(path: Path) -> dict[str, bytes]:
    """Whole lines of what is appended to."""
    return {
        str(file.relative_to(path)): file.read_bytes().rpartition(b"\n")[0]
        for file in (path / "generations.jsonl", *path.glob("verdicts/*.jsonl"))
        if file.exists()
    }


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_nothing(launcher: Launcher, tmp_path: Path, kills: int) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    launcher.run(calm)
    chance, reached = random.Random(9), set()
    for _ in range(kills):
        launcher.run(killed, chance)
        before = files(killed)
        reached.add(tuple(content.count(b"\n") + 1 for content in before.values()))
    stored = len(RunFolder(killed).generations())
    last = launcher.run(killed)
    after = files(killed)
    assert all(after[name].startswith(content) for name, content in before.items()), "what is stored is never rewritten"
    assert last["generated"] == len(PROBLEMS) - stored
    assert len(reached) > kills // 4, "the kills struck at different points"
    assert facts(killed) == facts(calm) and len(facts(calm)["generations"]) == len(PROBLEMS)
    for name, content in after.items():
        rows = [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]
        ids = [(row["task"], row["sample"]) for row in rows]
        assert len(set(ids)) == len(ids) == len(PROBLEMS), name
