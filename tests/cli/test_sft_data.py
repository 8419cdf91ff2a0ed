"""`runs/sft_data.sh`, at a size at which nothing is learnt: our side of the paper's Tables 4 and 5, resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dice import synth
from dice.data.sample import Sample, write_samples
from dice.model.checkpoint import NANO_FOLDER
from dice.verdict import Timing, Verdict
from tests.conftest import PATIENCE_S, ROOT

PROBLEM = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(4)]


def get_init_inputs():
    return []
"""


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "RECIPE": "tiny_sft", "THRESHOLDS": "1.5 2.5",
        "SFT_FLAGS": f"--tokenizer {NANO_FOLDER} --max-steps 1 --shape.max-position-embeddings 4096 --row-tokens 4096",
        "EVAL_FLAGS": "--max-new-tokens 8 --prompt compact --backend emulated",
    }  # fmt: skip
    command = ["bash", str(ROOT / "runs" / "sft_data.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_it_says_how_it_is_called(tmp_path: Path) -> None:
    for arguments in ([], [tmp_path, "thresholds", "p"], [tmp_path, "other", "p", "m"], [tmp_path, "sets", "p", "x"]):
        done = script(*arguments)
        assert done.returncode and ("usage" in done.stderr or "no NAME=PAIRS" in done.stderr)


@pytest.mark.slow  # each of its commands is run by other tests; here they are chained
def test_thresholds_and_sets_become_the_papers_tables(tmp_path: Path) -> None:
    (tmp_path / "problems" / "level1").mkdir(parents=True)
    (tmp_path / "problems" / "level1" / "1_Add.py").write_text(PROBLEM)
    samples = []
    for number, speedup in enumerate((1.7, 2.2, 2.8)):
        pair = synth.generate(11, number)
        timing = Timing(1.0, speedup, speedup, 8, speedup_low=speedup, speedup_high=speedup)
        verdict = Verdict("correct", "done", timing=timing)
        samples.append(Sample(pair.check_problem.source, pair.kernel.source, source="cudallm-sft", verdict=verdict))
    write_samples(tmp_path / "measured.parquet", samples)
    asked = [tmp_path / "out", "thresholds", tmp_path / "problems", tmp_path / "measured.parquet"]
    for _ in range(2):  # the second time nothing is left to do but the tables
        done = script(*asked, "--", "--prompt", "compact")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    kept = [json.loads((tmp_path / "out" / f"cuke-{t}" / "report.json").read_text())["kept"] for t in ("1.5", "2.5")]
    assert kept == [3, 1]
    table = (tmp_path / "out" / "table_4.md").read_text()
    assert "cuke-1.5/model" in table and "cuke-2.5/model" in table and "*7940*" in table
    assert "0 answers generated" in done.stdout
    assert "Paired comparison" in (tmp_path / "out" / "report.md").read_text()
    one = tmp_path / "out" / "cuke-1.5" / "data"
    done = script(tmp_path / "out", "sets", tmp_path / "problems", f"cuke-1.5={one}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "*ConCuR*" in (tmp_path / "out" / "table_5.md").read_text()
