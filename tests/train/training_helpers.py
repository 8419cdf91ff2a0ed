"""A toy task, a toy model, and rows of random documents."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from dice.model.sdar import SDAR, SDARConfig
from dice.train.packing import Document

MASK_ID, PAD_ID, VOCAB = 3, 0, 64


def tiny_model(block_size: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> SDAR:
    torch.manual_seed(seed)
    config = SDARConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512, block_size=block_size, mask_token_id=MASK_ID,
        initializer_range=0.3,
    )  # fmt: skip
    return SDAR(config).to(dtype)


def random_documents(count: int, seed: int = 0, longest: int = 60) -> list[Document]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(6, longest, size=count)
    return [
        Document(rng.integers(4, VOCAB, size=int(n)).astype(np.int32), int(rng.integers(1, n - 2))) for n in lengths
    ]


def write_toy_pairs(path: Path, count: int, seed: int = 0) -> Path:
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            size, op = rng.randint(1, 999), rng.choice(["relu", "tanh", "exp", "abs"])
            body = f"__global__ void {op}_k(float* x) {{\n    int i = threadIdx.x;\n"
            body += f"    if (i < {size}) x[i] = {op}(x[i]);\n}}"
            file.write(json.dumps({"prompt": f"apply {op} to {size} values", "response": body}) + "\n")
    return path


def checkpoint(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """The tensors of a run's checkpoint, whole, however many processes wrote it."""
    reader = dcp.FileSystemReader(folder / "checkpoints" / f"step-{step:08d}")
    stored = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(item.size, dtype=item.properties.dtype) for name, item in stored.items()}
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors
