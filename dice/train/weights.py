"""What training changes: float32 master weights, the copies computed with, AdamW's moments, a running average."""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor

from dice.model.sdar import SDAR

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamWSettings(Protocol):
    """The part of a training configuration that the optimiser reads."""

    @property
    def lr(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def adam_eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


class Weights:
    """`master` holds the float32 weights that the optimiser updates; `model` is what forward passes use.

    In bf16 `model` is a bfloat16 copy, refreshed after every update, whose gradients are added up in float32. In fp32
    without an average both are one object.
    """

    def __init__(
        self, master: SDAR, config: AdamWSettings, compute_dtype: torch.dtype, ema: float | None = None
    ) -> None:
        self.master = master
        self.names = [name for name, _ in master.named_parameters()]
        self.params: list[Tensor] = list(master.parameters())
        for weight in self.params:
            weight.grad = torch.zeros_like(weight)
        shared = compute_dtype == master.lm_head.weight.dtype and ema is None
        self.model = master if shared else copy.deepcopy(master).to(compute_dtype)
        self._copies: list[Tensor] = list(self.model.parameters())
        self.average = None if ema is None else [weight.detach().clone() for weight in self.params]
        self._decay = ema
        decayed = [weight for weight in self.params if weight.ndim > 1]
        others = [weight for weight in self.params if weight.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            fused=self.params[0].is_cuda,
        )

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of one micro-batch to the master's."""
        if self.model is self.master:
            return
        totals = [_gradient(weight) for weight in self.params]
        torch._foreach_add_(totals, [_gradient(part).float() for part in self._copies])
        self.model.zero_grad(set_to_none=True)

    def clip(self, limit: float) -> float:
        """Scale the gradient down to norm `limit`; returns the norm it had."""
        return float(torch.nn.utils.clip_grad_norm_(self.params, limit))

    @torch.no_grad()
    def update(self, lr: float, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        if self.average is not None and self._decay is not None:
            # Early weights are far from the final ones: a young average forgets faster.
            decay = min(self._decay, (1.0 + step) / (10.0 + step))
            torch._foreach_lerp_(self.average, self.params, 1.0 - decay)
        self.publish(self.params)

    @torch.no_grad()
    def publish(self, values: list[Tensor]) -> None:
        """Make forward passes use `values`."""
        if self.model is not self.master:
            torch._foreach_copy_(self._copies, values)

    @property
    def best(self) -> list[Tensor]:
        """The weights to validate and export: the average where there is one."""
        return self.params if self.average is None else self.average

    def export(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.best, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name."""
        named = {f"weight.{name}": weight for name, weight in zip(self.names, self.params, strict=True)}
        for name, weight in zip(self.names, self.params, strict=True):
            state = self.optimizer.state.get(weight, {})  # empty before the first update
            named |= {f"{moment}.{name}": state[moment] for moment in MOMENTS if moment in state}
        if self.average is not None:
            named |= {f"average.{name}": value for name, value in zip(self.names, self.average, strict=True)}
        return named

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from what `tensors` returned after `step` updates."""
        for name, weight in zip(self.names, self.params, strict=True):
            weight.copy_(tensors[f"weight.{name}"])
            self.optimizer.state.pop(weight, None)
            if step:
                state = {moment: tensors[f"{moment}.{name}"].to(weight.device, copy=True) for moment in MOMENTS}
                self.optimizer.state[weight] = {"step": torch.tensor(float(step), device=weight.device), **state}
        if self.average is not None:
            for name, value, weight in zip(self.names, self.average, self.params, strict=True):
                value.copy_(tensors.get(f"average.{name}", weight))  # averaging may begin in a later chunk
        self.publish(self.params)


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad
