"""Which tokens a training step hides, and what each hidden token weighs (paper Eq. 2).

Shapes: R rows, L tokens per row, K = L / B blocks per row. Documents start at multiples of B, so a block belongs to
one document and blocks are plain slices of the row.

Three samplers of the same corruption process:
- `block`: t per block, as Eq. 2 and the block-diffusion paper say; each trainable token hidden with probability t,
  weight 1/t. A block that draws no hidden token is a legitimate draw and stays so: forcing one would bias Eq. 2.
- `sample`: t per document, as the code released with SDAR and DICE does. Where nothing of a whole row is hidden, the
  row's t are drawn again, up to `TRIES` times in all; then one of its trainable tokens is hidden, as in that code.
- `count`: Eq. 2 with t integrated out. For t ~ U(0, 1) the number k of hidden tokens among a block's n trainable ones
  is uniform, and the expected weight of every hidden set of size k adds up to what k ~ U{1..n}, a random k-subset and
  weight n/k give: (1/n) sum_k (n/k) E[sum of losses] = sum_k (1/k) E[sum of losses] = E_t[(1/t) sum of losses]. Same
  expected loss and gradient; weights never above n instead of 1/t_min, and every block trains in every step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Noise = Literal["block", "sample", "count"]
NOISES: tuple[str, ...] = get_args(Noise)
TRIES = 10  # draws of `sample` for a row, as in the released code


@dataclass(frozen=True, slots=True)
class Corruption:
    """`masked` [R, L] bool: the hidden tokens. `weight` [R, L] float32: their loss weights, 0 elsewhere."""

    masked: Tensor
    weight: Tensor


def all_of(trainable: Tensor) -> Corruption:
    """Every trainable token is to be predicted, and weighs 1: autoregressive training, which hides none."""
    return Corruption(trainable, trainable.float())


def step_generator(seed: int, purpose: str, step: int, device: torch.device | str) -> torch.Generator:
    """A generator that depends on its arguments only: a resumed run draws what an uninterrupted one would have."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def corrupt(
    trainable: Tensor,
    documents: Tensor,
    block_size: int,
    noise: Noise,
    generator: torch.Generator,
    *,
    t_min: float = 1e-3,
    t_max: float = 1.0,
    stratified: bool = True,
) -> Corruption:
    """Hide some of the `trainable` [R, L] bool tokens; never any other.

    `documents` [R, L] int numbers the documents of each row from 0. `stratified` spreads the draws of a batch evenly
    over their range (every draw keeps its own uniform distribution; only the batch varies less). `t_min`, `t_max`
    bound t; `count` has no t and takes the full range only.
    """
    if not 0 <= t_min < t_max <= 1:
        raise ValueError(f"t_min {t_min} and t_max {t_max} must satisfy 0 <= t_min < t_max <= 1.")
    if noise == "count":
        return _corrupt_by_count(trainable, block_size, generator, stratified)
    draws = torch.rand(trainable.shape, generator=generator, device=trainable.device)
    if noise == "block":
        used = trainable.unflatten(1, (-1, block_size)).any(-1)
        t = _times(used, generator, t_min, t_max, stratified).repeat_interleave(block_size, dim=1)
        return _at(trainable & (draws < t), t)
    used = _documents_with(trainable, documents, block_size)
    t = _times(used, generator, t_min, t_max, stratified).gather(1, documents)
    for _ in range(TRIES - 1):
        idle = trainable.any(1) & ~(trainable & (draws < t)).any(1)
        if not bool(idle.any()):
            break
        again = _times(used, generator, t_min, t_max, stratified=False).gather(1, documents)
        fresh = torch.rand(trainable.shape, generator=generator, device=trainable.device)
        t, draws = torch.where(idle[:, None], again, t), torch.where(idle[:, None], fresh, draws)
    masked = trainable & (draws < t)
    candidates = torch.where(trainable, draws, 2.0)  # the lowest of uniform draws is a uniform choice
    forced = trainable & (candidates == candidates.amin(1, keepdim=True)) & ~masked.any(1, keepdim=True)
    return _at(masked | forced, t)


def _corrupt_by_count(trainable: Tensor, block_size: int, generator: torch.Generator, stratified: bool) -> Corruption:
    blocks = trainable.unflatten(1, (-1, block_size))
    n = blocks.sum(-1)
    k = (_uniform(n > 0, generator, stratified) * n).long().clamp(max=n - 1) + 1
    draws = torch.rand(blocks.shape, generator=generator, device=trainable.device)
    rank = torch.where(blocks, draws, 2.0).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    masked = blocks & (rank < k[..., None])
    return _at(masked.flatten(1), (k / n.clamp(min=1)).repeat_interleave(block_size, dim=1))


def _at(masked: Tensor, t: Tensor) -> Corruption:
    return Corruption(masked, torch.where(masked, 1.0 / t, 0.0).float())


def _times(used: Tensor, generator: torch.Generator, t_min: float, t_max: float, stratified: bool) -> Tensor:
    # 1 - u lies in (0, 1]: with t_min = 0 a weight of 1/0 cannot occur.
    return t_min + (t_max - t_min) * (1.0 - _uniform(used, generator, stratified))


def _uniform(used: Tensor, generator: torch.Generator, stratified: bool) -> Tensor:
    """U[0, 1) for each entry of `used`; stratified: the used entries each take one of as many equal strata."""
    draws = torch.rand(used.shape, generator=generator, device=used.device)
    if not stratified:
        return draws
    keys = torch.rand(used.shape, generator=generator, device=used.device)
    stratum = torch.where(used, keys, 2.0).flatten().argsort(stable=True).argsort(stable=True).view_as(used)
    spread = (stratum + draws) / used.sum().clamp(min=1)
    return torch.where(used, spread, draws).clamp(max=1.0 - 2.0**-24)  # rounding can reach 1.0 in the last stratum


def _documents_with(trainable: Tensor, documents: Tensor, block_size: int) -> Tensor:
    """[R, K] bool: the documents with a trainable token; K bounds the documents of a row."""
    counts = torch.zeros((len(trainable), trainable.shape[1] // block_size), device=trainable.device)
    return counts.scatter_reduce(1, documents, trainable.float(), "amax") > 0
