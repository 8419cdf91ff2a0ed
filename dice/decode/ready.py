"""A checkpoint that is ready to decode on this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from dice.model.checkpoint import load_model, read_config
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

# A model of fewer parameters stays in float32 on a GPU, and decodes on one thread on a CPU.
SMALL_MODEL = 50_000_000


def load(folder: Path) -> tuple[SDAR, Tokenizer]:
    """On the GPU where there is one; there in bfloat16, unless it is small. Raises what `load_model` and `Tokenizer`
    raise."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        small = sum(weight.numel() for weight in SDAR(read_config(folder)).parameters()) < SMALL_MODEL
    model = load_model(folder, torch.float32 if small or device == "cpu" else torch.bfloat16, device)
    if device == "cpu" and small:
        # A step is so short that threads wait for one another longer than they compute; on a busy machine many times
        # longer.
        torch.set_num_threads(1)
    return model, Tokenizer.from_folder(folder)
