"""The learning rate over a run's progress, from 0 (start) to 1 (end), and AdamW with moments in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# Weights updated at once: a few float32 copies of so many are held meanwhile.
CHUNK = 1 << 26

Schedule = Literal["constant_with_warmup", "cosine"]


def lr_scale(progress: float, schedule: Schedule, *, warmup: float = 0.03, floor: float = 0.0) -> float:
    """What to multiply the peak learning rate with at `progress`.

    Both rise linearly over the first `warmup` share of the run. Then `constant_with_warmup` stays, and `cosine` falls
    to `floor` at the end.
    """
    if progress < warmup:
        return progress / warmup
    if schedule == "constant_with_warmup":
        return 1.0
    done = min(1.0, (progress - warmup) / max(1e-9, 1.0 - warmup))
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))


class BFloat16AdamW(torch.optim.AdamW):
    """AdamW that keeps its moments in bfloat16, half the memory; weights, gradients and arithmetic are float32.

    What is kept is rounded at random, up or down so that it is right on average. To the nearest would not do: the
    second moment changes by a thousandth of itself in a step (beta2 = 0.999) and bfloat16's numbers lie four to eight
    thousandths apart, so that it would stay at the largest gradient it ever saw. The random bits are a function of the
    number of the step and the share of the weights: copies of it stay equal, and a run resumes exactly, on as many
    processes.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        generator: torch.Generator | None = None
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state["step"] += 1
                if generator is None:  # all weights have made as many steps
                    count = int(state["step"])
                    share = weight.device_mesh.get_local_rank(-1) if isinstance(weight, DTensor) else 0
                    generator = torch.Generator(weight.device).manual_seed((count << 16) + share)
                parts = [_local(one) for one in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"])]
                for w, g, mean, square in zip(*(part.view(-1).split(CHUNK) for part in parts), strict=True):
                    _update(w, g, mean, square, group, count, generator)


def _update(
    w: Tensor, g: Tensor, mean: Tensor, square: Tensor, group: dict[str, Any], count: int, generator: torch.Generator
) -> None:
    """One step of some weights `w` [n], after Loshchilov and Hutter (2019), Algorithm 2."""
    beta1, beta2 = group["betas"]
    first = mean.float().lerp_(g, 1.0 - beta1)
    second = square.float().mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
    mean.copy_(rounded_at_random(first, generator))
    square.copy_(rounded_at_random(second, generator))
    w.mul_(1.0 - group["lr"] * group["weight_decay"])
    scale = second.div_(1.0 - beta2**count).sqrt_().add_(group["eps"])
    w.addcdiv_(first, scale, value=-group["lr"] / (1.0 - beta1**count))


def rounded_at_random(x: Tensor, generator: torch.Generator) -> Tensor:
    """Finite float32 `x` as one of the two neighbours in bfloat16, each the likelier the nearer; right on average."""
    bits = x.view(torch.int32)
    noise = torch.randint(1 << 16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    return (noise.add_(bits) & -(1 << 16)).view(torch.float32).bfloat16()


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
