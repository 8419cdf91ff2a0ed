"""What GPUs hold and compute, and how much of that training was measured to use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dice.errors import UserError

PEAKS = {  # dense bf16 FLOP/s by the makers' data sheets; the first name that the device's name contains
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12,
    "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GPU:
    """`memory`: bytes, as the driver tells them. `flops`: dense bf16 a second by the data sheet. `bandwidth`: bytes a
    second, likewise."""

    name: str
    memory: float
    flops: float
    bandwidth: float


GPUS = {
    "h200": GPU("H200", 150.1e9, 989e12, 4.8e12),
    "h100": GPU("H100", 85.0e9, 989e12, 3.35e12),
    "a100": GPU("A100", 85.1e9, 312e12, 2.04e12),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The share of the peak that a step of SFT computed at, recomputed work included, for a model of a hidden size.

    `together`: what is left of that on several GPUs, each.
    """

    hidden_size: int
    share: float
    together: float
    source: str


# By hidden size. Between two of them the logarithm is interpolated, beyond them the nearest one holds.
MEASURED = (
    Measured(384, 0.1675, 0.845, "benchmarks/README.md (nano on one H200: 1.35 million clean tokens/s)"),
    Measured(768, 0.2094, 0.845, "benchmarks/train/mini.json (H100), benchmarks/README.md (two H200: 422 of 2 x 250)"),
    Measured(2048, 0.4371, 0.95, "benchmarks/train/1.7b.json (H100); on several GPUs between its neighbours"),
    Measured(4096, 0.499, 1.0, "benchmarks/train/train8b_h200.json (8B on two H200: 5,322 clean tokens/s a GPU)"),
)  # fmt: skip
# A whole step of RL with SDAR-8B's shapes, 1,024 answers of 2,000 tokens on two H200, two tokens a forward: tokens that
# are decoded (prompts are read and kernels verified beside), what the update reaches of SFT's share of the peak, and
# verdicts, for which there are the cores that both leave of 32.
RL_SOURCE = "benchmarks/train/train8b_h200.json (a step of RL at 8B on two H200)"
DECODED_TOKENS_PER_S, DECODED_PARAMETERS = 7512.0, 8.19e9
UPDATE_OF_SFT = 0.866
VERDICTS_PER_S = 1024 / 411.9
# benchmarks/train/rl_step_h100.json: nano, whole kernels, by the plain decoder.
SMALL_TOKENS_PER_S, SMALL_PARAMETERS = 12_700.0, 0.5e9
SMALL_SOURCE = "benchmarks/train/rl_step_h100.json (nano, plain decoder)"


def gpu_named(name: str) -> GPU:
    """Raises `UserError` for a name that the table lacks."""
    if name.lower() not in GPUS:
        raise UserError(f"There are no figures for a GPU named {name!r}; there are for {', '.join(GPUS)}.")
    return GPUS[name.lower()]


def utilisation(hidden_size: int, gpus: int) -> tuple[float, list[str]]:
    """The share of the peak that each of `gpus` will compute at, and the measurements that say so."""
    below = [one for one in MEASURED if one.hidden_size <= hidden_size][-1:] or [MEASURED[0]]
    above = [one for one in MEASURED if one.hidden_size >= hidden_size][:1] or [MEASURED[-1]]
    low, high = below[0], above[0]
    span = math.log(high.hidden_size / low.hidden_size)
    part = math.log(hidden_size / low.hidden_size) / span if span else 0.0
    share = low.share + part * (high.share - low.share)
    if gpus > 1:
        share *= low.together + part * (high.together - low.together)
    return share, list(dict.fromkeys((low.source, high.source)))


def peak_flops(device: torch.device) -> float | None:
    """The device's dense bf16 rate; None where the table does not know it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for key, peak in PEAKS.items() if key in name), None)
