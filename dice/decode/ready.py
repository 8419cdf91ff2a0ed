"""A checkpoint that is ready to decode on this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model, read_config
from dice.model.config import SDARConfig
from dice.model.sdar import SDAR
from dice.model.shard import check_shards
from dice.model.tokenizer import Tokenizer

# A model of fewer parameters stays in float32 on a GPU, and decodes on one thread on a CPU.
SMALL_MODEL = 50_000_000


def load(folder: Path, tensor_parallel: int = 1) -> tuple[SDAR, Tokenizer]:
    """On the GPU where there is one; there in bfloat16, unless it is small. With `tensor_parallel` above 1 the whole
    model stays in the host's memory, and the engine gives each of so many GPUs (or, without any, of so many processes)
    its part. Raises what `load_model` and `Tokenizer` raise, and what `check_ranks` does."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = read_config(folder)
    check_ranks(config, tensor_parallel, device)
    with torch.device("meta"):
        small = sum(weight.numel() for weight in SDAR(config).parameters()) < SMALL_MODEL
    dtype = torch.float32 if small or device == "cpu" else torch.bfloat16
    model = load_model(folder, dtype, device if tensor_parallel == 1 else "cpu")
    model.tensor_parallel = tensor_parallel
    if device == "cpu" and small:
        # A step is so short that threads wait for one another longer than they compute; on a busy machine many times
        # longer.
        torch.set_num_threads(1)
    return model, Tokenizer.from_folder(folder)


def check_ranks(config: SDARConfig, size: int, device: str) -> None:
    """Raises `UserError` for a model that cannot be cut over `size` ranks, `MachineError` where GPUs are lacking."""
    if size < 1:
        raise UserError(f"--tensor-parallel must be at least 1, not {size}.")
    if size == 1:
        return
    check_shards(config, size)
    if device == "cuda" and torch.cuda.device_count() < size:
        raise MachineError(f"{size} ranks need as many GPUs, and there are {torch.cuda.device_count()} here.")
