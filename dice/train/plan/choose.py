"""The settings that a run's memory asks for: what `auto` means in SFT and in RL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch

from dice.model.sdar import SDARConfig
from dice.train.blocks import KEEP_ALL, Recompute
from dice.train.plan.disk import size
from dice.train.plan.memory import USABLE, Layout, Memory, least_recompute, memory
from dice.train.world import World


class Recomputing(Protocol):
    """The part of a training configuration that says what is recomputed."""

    @property
    def activation_checkpointing(self) -> Literal["auto", "none", "ffn", "block"]: ...
    @property
    def recompute_layers(self) -> int | None: ...


def recompute_for(config: Recomputing, layout: Layout, available: float) -> tuple[Recompute, Memory]:
    """What `config` asks for; for `auto`, the least that fits into `available` bytes."""
    asked = config.activation_checkpointing
    if asked == "auto":
        return least_recompute(layout, available)
    recompute = Recompute(asked, config.recompute_layers)
    return recompute, memory(layout, recompute)


def choose_recompute(
    config: Recomputing, model: SDARConfig, world: World, *, tokens: int, moments: str, average: bool = False,
    gathered: bool = False, reference: bool = False, dtype: torch.dtype, say: Callable[[str], None],
    usable: float = USABLE,
) -> Recompute:  # fmt: skip
    """What a run on this machine recomputes. Where there is no GPU to fit into, `auto` keeps everything.

    `tokens`: those that a micro-batch reads. `usable`: the part of the GPU's memory. The plan is told through `say`; so
    is that it does not fit, for it may still: a plan is right within some percent.
    """
    if world.device.type != "cuda":
        return KEEP_ALL if config.activation_checkpointing == "auto" else recompute_for(config, _none(model), 0)[0]
    layout = Layout(
        config=model, gpus=world.size, tokens=tokens, moments=moments, average=average, gathered=gathered,
        reference=reference, compute_bytes=dtype.itemsize,
    )  # fmt: skip
    total = torch.cuda.get_device_properties(world.device).total_memory
    (least,) = world.all_reduce_max(-float(total))  # of all GPUs, so that all processes choose alike
    recompute, needed = recompute_for(config, layout, -least * usable)
    text = f"Plan: {size(needed.total)} of {size(-least)} of GPU memory at the peak, recomputing {recompute}"
    fits = needed.total <= -least * usable
    say(f"{text}." if fits else f"{text}: that may not fit; `dice plan` says what would.")
    return recompute


def _none(model: SDARConfig) -> Layout:
    return Layout(config=model, gpus=1, tokens=0, moments="float32")
