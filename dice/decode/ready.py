"""A checkpoint that is ready to decode on this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from dice.model.checkpoint import NANO_FOLDER, load_model
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

SMALL_MODEL = 50_000_000  # parameters


def is_small(model: SDAR) -> bool:
    """A model of the size we train from scratch, which knows its corpus and no instructions."""
    return sum(weight.numel() for weight in model.parameters()) < SMALL_MODEL


def load(folder: Path) -> tuple[SDAR, Tokenizer]:
    """On the GPU where there is one; there in bfloat16, but nano. Raises what `load_model` and `Tokenizer` raise."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = device == "cpu" or folder == NANO_FOLDER
    model = load_model(folder, torch.float32 if exact else torch.bfloat16, device)
    if device == "cpu" and is_small(model):
        # A step is too short to share: threads that wait for one another cost more than they help, and on a busy
        # machine many times more.
        torch.set_num_threads(1)
    return model, Tokenizer.from_folder(folder)
