"""The whole pipeline on a small mixed pool, by its commands: killed with SIGKILL in the middle, and not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dice.verify.options import find_host_compiler
from tests.conftest import PATIENCE_S

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "cuke_pipeline.py"


@pytest.mark.slow
def test_a_killed_pipeline_keeps_what_should_be_kept(tmp_path: Path) -> None:
    assert find_host_compiler(), "the emulated backend needs g++"
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--pairs", "12", "--generate", "8"]
    command += ["--backend", "emulated", "--workers", "2", "--seed", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    log = tmp_path / "log.txt"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}"
    report = json.loads((tmp_path / "cuke_pipeline.json").read_text())
    assert report["broken"] == []
    assert report["steps"]["killed"]["measure pool"]["killed"] == 1
    assert report["expectation"]["keep"] > 3 and report["expectation"]["leave out"] > 3
    assert report["compared_files"] >= 9
    assert report["split"]["split"] >= 0.99 * report["split"]["pairs"]
