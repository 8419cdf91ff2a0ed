"""Loading a folder of several files takes the memory of the model and of one file, not of a second copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from dice.model.checkpoint import save_model
from dice.model.sdar import SDAR, SDARConfig
from tests.conftest import ROOT

LOAD = """
import re, sys, torch
from dice.model.checkpoint import load_model

def most():  # memory in bytes that this process ever held
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

torch.set_num_threads(1)
torch.aminmax(torch.zeros(8, dtype=torch.bfloat16))
before = most()
model = load_model(sys.argv[1], dtype=torch.float32)
print(most() - before, sum(weight.nbytes for weight in model.parameters()))
"""


def test_peak_memory_is_the_model_and_one_file(tmp_path: Path) -> None:
    config = SDARConfig(
        vocab_size=16000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, mask_token_id=3, max_position_embeddings=256,
    )  # fmt: skip
    with torch.device("meta"):
        names = {name: weight.shape for name, weight in SDAR(config).named_parameters()}
    state = {name: torch.full(shape, 0.5, dtype=torch.bfloat16) for name, shape in names.items()}
    save_model(state, config, tmp_path / "model", dtype=torch.bfloat16, max_shard_bytes=60_000_000)
    files = [path.stat().st_size for path in (tmp_path / "model").glob("*.safetensors")]
    assert len(files) >= 4
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "model")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    peak, weights = (int(number) for number in told.stdout.split())
    assert weights == 2 * sum(tensor.nbytes for tensor in state.values())
    assert weights <= peak + 8_000_000, "nothing was measured"
    code = 60_000_000  # of PyTorch, that is first run meanwhile
    assert peak < weights + max(files) + max(tensor.nbytes for tensor in state.values()) + code < weights + sum(files)
