"""Jobs in real processes that torchrun starts."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import PATIENCE_S

HERE = Path(__file__).parent
CHILD = """
import os, pickle, sys, torch
open(f"{sys.argv[1]}.{os.environ['RANK']}.{os.getpid()}.process", "w").close()
torch.set_num_threads(1)
from dice.train.world import joined
with joined(sys.argv[2]):
    for job in pickle.load(open(sys.argv[1], "rb")):
        os.write(1, f"{job()}\\n".encode())  # at once: torchrun's Python writes print() in pieces
"""


def torchrun(
    folder: Path, *jobs: Callable[[], object], processes: int = 2, device: str = "cpu"
) -> subprocess.Popen[str]:
    """`jobs` one after the other by the same processes, each of which prints what they return. Files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "child.py").write_text(CHILD)
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    path = os.pathsep.join((str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*launch, str(folder / "child.py"), str(folder / "jobs"), device],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def process_ids(folder: Path) -> list[int]:
    """Of the processes launched in `folder`, by rank."""
    return [int(path.name.split(".")[-2]) for path in sorted(folder.glob("*.process"))]


def finish(launched: subprocess.Popen[str]) -> str:
    output, errors = launched.communicate(timeout=PATIENCE_S)
    assert launched.returncode == 0, output + errors
    return output


def kill(folder: Path, launched: subprocess.Popen[str]) -> None:
    """All processes at once, with -9."""
    for process in process_ids(folder):
        os.kill(process, signal.SIGKILL)
    assert launched.wait(PATIENCE_S) != 0


def wait_for(path: Path, launched: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert launched.poll() is None, launched.communicate()[1]
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
