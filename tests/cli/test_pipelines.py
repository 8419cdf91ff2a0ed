"""The shell pipelines in runs/: each is valid shell, and the one for a CPU runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", sorted((ROOT / "runs").glob("*.sh")), ids=lambda path: path.name)
def test_pipeline_is_valid_shell(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.slow  # each of its commands is run by `test_cli.py`, with less to do
def test_tiny_pipeline_runs_to_its_end(tmp_path: Path) -> None:
    """With everything cut down to a first look. The seed draws problems that the emulator runs in moments."""
    spaced = tmp_path / "a folder" / "python"
    spaced.parent.mkdir()
    spaced.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    spaced.chmod(0o755)
    environment = os.environ | {
        "PYTHON": str(spaced), "PYTHONPATH": str(ROOT), "PAIRS": "2",
        "SYNTH_FLAGS": "--seed 2", "SFT_FLAGS": "--max-steps 2",
        "RL_FLAGS": "--infill-steps 1 --generate-steps 1 --problems 2 --responses 2 --max-new-tokens 64",
        "EVAL_FLAGS": "--max-new-tokens 64",
    }  # fmt: skip
    command = ["bash", str(ROOT / "runs" / "tiny.sh"), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "out" / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines if "stage" in line] == ["infill", "generate"]
    assert {line["eval_trained_on"] for line in lines if "eval_exec" in line} == {2}
    assert "2 of them also trained on" in done.stdout + done.stderr
    assert (tmp_path / "out" / "rl" / "reward.png").stat().st_size > 5000
    assert "answers generated" in done.stdout
