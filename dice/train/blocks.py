"""How transformer blocks run in training: compiled, computed again in the backward pass, sharded over processes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from dice.model.sdar import SDAR, Layer
from dice.train.world import World

Part = Literal["none", "ffn", "block"]


@dataclass(frozen=True, slots=True)
class Recompute:
    """What is computed again in the backward pass, where the forward pass then keeps its input alone: the whole of a
    block, or its feed-forward half. In the first `layers` blocks; None: in all."""

    part: Part = "none"
    layers: int | None = None

    def of(self, layer: int) -> Part:
        return self.part if self.layers is None or layer < self.layers else "none"

    def __str__(self) -> str:
        what = {"none": "nothing", "ffn": "the feed-forward half of blocks", "block": "blocks"}[self.part]
        return what if self.layers is None or self.part == "none" else f"{what} (the first {self.layers})"


KEEP_ALL, RECOMPUTE_BLOCKS = Recompute("none"), Recompute("block")


def set_blocks(model: SDAR, *, compiled: bool, recompute: Recompute = KEEP_ALL) -> None:
    """Compile the forward of each block, and let it keep less for the backward pass, or undo both.

    All blocks that recompute the same share one compiled graph, so that compiling takes as long for many as for one.
    Only `forward` is replaced, on the instances: parameter names stay, and what FSDP does around a block stays outside
    the graph. Forward passes that fill a cache, which are of any length and need no gradient, run as before.
    """
    for index, layer in enumerate(model.model.blocks()):
        vars(layer).pop("forward", None)
        if compiled or recompute.of(index) != "none":
            vars(layer)["forward"] = _TrainingForward(layer, compiled, recompute.of(index))


class _TrainingForward:
    """Stands for the `forward` of the block `layer`."""

    def __init__(self, layer: Layer, compiled: bool, part: Part) -> None:
        self._layer, self._how = layer, (compiled, part)
        self._plain: Any = layer.forward
        self._whole = _training(layer.forward, compiled, part == "block")
        self._first = _training(layer.through_attention, compiled, False)
        self._second = _training(layer.after_attention, compiled, True)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, mask: object, store: object = None) -> Tensor:
        if store is not None:
            return self._plain(x, cos, sin, mask, store)
        if self._how[1] == "ffn":
            return self._second(self._first(x, cos, sin, mask))
        return self._whole(x, cos, sin, mask)

    def __deepcopy__(self, memo: dict[int, object]) -> _TrainingForward:
        copied = copy.deepcopy(self._plain, memo)  # a method of the copied block
        return _TrainingForward(copied.__self__, *self._how)


def _training(plain: Callable[..., Tensor], compiled: bool, recompute: bool) -> Callable[..., Tensor]:
    run: Callable[..., Tensor] = torch.compile(plain, dynamic=False) if compiled else plain
    if recompute:
        return functools.partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
    return run


def shard(model: SDAR, world: World, dtype: torch.dtype, *, reshard: bool, by_host: bool = False) -> None:
    """Split the weights over the processes (FSDP2), in place; they are gathered in `dtype` to compute.

    Nothing is split where there is one process. `by_host`: over those of each host, which holds all of them (HSDP).
    Gradients are added up, not averaged, in float32 or wider: the loss is divided by the whole batch's tokens already.
    `reshard`: free a block's gathered weights after its forward pass and gather them again for the backward one.
    Without, all weights are gathered at once and kept. That takes the memory of a whole model and its gradients, and in
    a small model saves time: what stands around each block costs the processor more than the block costs the GPU.
    """
    if world.size == 1:
        return
    copies = world.size // world.local_size if by_host else 1
    mesh = init_device_mesh(world.device.type, (copies, world.size // copies), mesh_dim_names=("copy", "share"))
    mesh = mesh if by_host else mesh["share"]
    wide = torch.promote_types(dtype, torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)
    for layer in model.model.layers if reshard else ():
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # The rest stays gathered until its backward pass: the loss reads the head's weight after `hidden`.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_sharded(model: SDAR) -> bool:
    return isinstance(model, FSDPModule)


def reshard(model: SDAR) -> None:
    """Free all gathered weights. Where no backward pass follows a forward pass, they would outlive a change."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gathered(weight: Tensor) -> Tensor:
    """The whole of a weight that may be sharded; all processes must ask for it."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight
