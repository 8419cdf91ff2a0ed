"""How hidden states are computed: FlexAttention or a dense mask, compiled or not, checked on the device itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dice.errors import MachineError, UserError
from dice.model.sdar import SDAR
from dice.train.attention import DenseMask, FlexMask, fits_tiles
from dice.train.blocks import KEEP_ALL, Recompute, set_blocks
from dice.train.packing import PackedRows

Attention = Literal["auto", "flex", "dense"]
Hidden = Callable[[Tensor, Tensor, Tensor | BlockMask], Tensor]

# What a kernel or a compiler that does not work on this machine may raise. Running out of memory is treated apart.
BROKEN = (RuntimeError, ImportError, OSError, ValueError, TypeError, AttributeError, AssertionError)
# How far outputs and gradients may differ from the reference's, relative to their norm. In bfloat16 rounding gives
# 0.011, and one missing tile of the mask 0.07.
TOLERANCE = {torch.bfloat16: 0.04, torch.float32: 0.01}


@dataclass(frozen=True, slots=True)
class Engine:
    """`hidden(ids [R, N], positions [R, N], mask)` -> [R, N, H], and the maker of its masks."""

    hidden: Hidden
    mask: DenseMask | FlexMask
    name: str

    def __call__(self, noisy: Tensor, batch: PackedRows) -> Tensor:
        """Hidden states [R, N, H] of `batch.ids(noisy)`; `noisy` [R, L] is the batch with some tokens hidden."""
        positions = batch.layout(self.mask.block_size).position_ids
        return self.hidden(batch.ids(noisy), positions, self.mask(batch))

    def of(self, model: SDAR) -> Engine:
        """The same way to attend for another model, not compiled."""
        return Engine(model.hidden, self.mask, self.name)


def pick_engine(
    model: SDAR,
    probe: PackedRows,
    block_size: int,
    mask_id: int,
    *,
    attention: Attention,
    compiled: bool,
    say: Callable[[str], None],
    recompute: Recompute = KEEP_ALL,
    dtype: torch.dtype | None = None,
) -> Engine:
    """The fastest engine that agrees with the reference (dense mask, eager) on the micro-batch `probe`.

    Tried in order: flex before dense, compiled before eager, as far as asked for. Each that raises or differs is
    named through `say`. They are tried on a model of two such blocks, because `model` may be sharded, and too large for
    the dense mask of a whole micro-batch. The probe has the shape of training: what is compiled to check serves it too.
    `recompute`: what is computed again in the backward pass instead of being kept. `dtype`: what a
    sharded model computes in; its parameters do not tell.
    Raises `MachineError` when FlexAttention was demanded and fails, `UserError` when it cannot serve these shapes.
    """
    trial: SDAR | None = None
    tiled = fits_tiles(probe.row_tokens, block_size)
    if attention == "flex" and not tiled:
        raise UserError(f"FlexAttention needs row_tokens ({probe.row_tokens}) in whole tiles of 128, of whole blocks.")
    automatic = ["flex", "dense"] if probe.tokens.is_cuda and tiled else ["dense"]
    kinds = automatic if attention == "auto" else [attention]
    trials = [(kind, how) for kind in kinds for how in ([True, False] if compiled else [False])]
    for kind, how in trials:
        mask = FlexMask(block_size) if kind == "flex" else DenseMask(block_size)
        engine = Engine(model.hidden, mask, f"{kind}, compiled" if how else kind)
        problem = None
        if engine.name != "dense":  # which is the reference
            trial = trial or _two_blocks(model, dtype or model.lm_head.weight.dtype)
            set_blocks(trial, compiled=how, recompute=_of_two_blocks(recompute))
            reference = Engine(trial.hidden, DenseMask(block_size), "dense")
            problem = disagreement(replace(engine, hidden=trial.hidden), reference, trial, probe, mask_id)
        if problem is None:
            set_blocks(model, compiled=how, recompute=recompute)
            return engine
        say(f"Not using {engine.name} attention: {problem}.")
    raise MachineError("FlexAttention does not work on this machine; use attention=dense.")


def _of_two_blocks(recompute: Recompute) -> Recompute:
    """With a block of each kind that the model has."""
    return recompute if recompute.layers is None else replace(recompute, layers=min(1, recompute.layers))


def _two_blocks(model: SDAR, dtype: torch.dtype) -> SDAR:
    with torch.device(model.lm_head.weight.device):
        trial = SDAR(replace(model.config, num_hidden_layers=min(2, model.config.num_hidden_layers)))
    return trial.to(dtype)


def disagreement(engine: Engine, reference: Engine, model: SDAR, probe: PackedRows, mask_id: int) -> str | None:
    """Why `engine` cannot be trusted on `probe`; None when outputs and gradients match those of `reference`.

    Hidden states are compared token by token over the first two rows, gradients over the first.
    """
    noisy = torch.where(probe.trainable & (probe.positions % 3 != 0), mask_id, probe.tokens)
    with _loud_attention(model):
        try:
            ours, our_gradient = _run(engine, model, noisy, probe)
        except torch.OutOfMemoryError:
            raise
        except BROKEN as failure:
            reason = (str(failure).strip() or "no message").splitlines()[0][:200]
            return f"it fails here ({type(failure).__name__}: {reason})"
        few = next(probe.split(2))
        with torch.compiler.set_stance("force_eager"):
            theirs, their_gradient = _run(reference, model, noisy[: len(few)], few)
    limit = TOLERANCE.get(ours.dtype, 0.01)
    ours, theirs = ours[: len(few)].float(), theirs.float()
    worst = float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max())
    if not worst <= limit:
        return f"its output differs from the dense mask's by {worst:.2g}"
    error = float((our_gradient - their_gradient).norm() / their_gradient.norm())
    return None if error <= limit else f"its gradient differs from the dense mask's by {error:.2g}"


def _run(engine: Engine, model: SDAR, noisy: Tensor, batch: PackedRows) -> tuple[Tensor, Tensor]:
    """Hidden states of the batch, and the gradient of a fixed function of its first row, flattened in float32."""
    model.zero_grad(set_to_none=True)
    hidden = engine(noisy, batch)
    direction = torch.randn(hidden.shape[1:], generator=torch.Generator().manual_seed(0)).to(hidden)
    (hidden[0] * direction).sum().backward()
    gradient = torch.cat([weight.grad.float().flatten() for weight in model.parameters() if weight.grad is not None])
    model.zero_grad(set_to_none=True)
    return hidden.detach(), gradient


@contextmanager
def _loud_attention(model: SDAR) -> Iterator[None]:
    """Scale the value projections up: in a fresh model attention adds so little that a wrong mask would not show."""
    values = [weight for name, weight in model.named_parameters() if name.endswith("v_proj.weight")]
    kept = [weight.detach().clone() for weight in values]
    with torch.no_grad():
        for weight in values:
            weight.mul_(32.0)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(values, kept, strict=True):
                weight.copy_(old)
