"""The ablation's table and figure: `benchmarks/ablation.py` over run folders whose counts are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import CORRECT, DECEPTIVE, WRONG, make_run

from tests.conftest import PATIENCE_S, ROOT

pytest.importorskip("matplotlib")


def run(out: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "ablation.py"), str(out), "--to", str(to)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False)


def test_arms_stand_beside_the_checkpoint_they_began_with(tmp_path: Path) -> None:
    make_run(tmp_path / "eval" / "sft")
    make_run(tmp_path / "eval" / "full-0", verdicts={"dice": [CORRECT, CORRECT, CORRECT, DECEPTIVE, WRONG]})
    steps = tmp_path / "rl" / "full-0" / "metrics.jsonl"
    steps.parent.mkdir(parents=True)
    lines = [{"step": 1, "stage": "infill", "exec": 0.5, "deceptive": 0.25}, {"step": 1, "val_exec": 0.1}]
    steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = run(tmp_path, tmp_path / "made")
    assert found.returncode == 0, found.stderr
    _, _, sft, full = found.stdout.splitlines()
    assert sft.startswith("| none: SFT alone | – | – | 20.0 [") and sft.endswith("| – |")
    assert full.startswith("| + both (BiC-RL) | 0 | 1 | 60.0 [") and "| 100 / 0 |" in full and "| +40.0 [" in full
    made = json.loads((tmp_path / "made" / "ablation.json").read_text())
    assert made["full-0"]["curve"] == [lines[0]]
    assert made["full-0"]["evaluation"]["against_sft"]["better"] == 2
    assert made["sft"]["evaluation"]["outcomes"] == {"correct": 1, "compile_error": 2, "deceptive": 1, "wrong": 1}
    assert (tmp_path / "made" / "ablation.png").stat().st_size > 10_000


def test_without_the_checkpoint_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    make_run(tmp_path / "eval" / "full-0")
    found = run(tmp_path, tmp_path / "made")
    assert found.returncode == 2 and "no eval/sft" in found.stderr and "Traceback" not in found.stderr
