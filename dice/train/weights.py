"""What training changes: float32 master weights, the copies computed with, AdamW's moments, a running average."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from dice.model.sdar import SDAR
from dice.train.blocks import gathered, is_sharded, reshard
from dice.train.lora import adapter_scale, merged
from dice.train.optimizer import BFloat16AdamW

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
    @property
    def moments(self) -> Literal["float32", "bfloat16"]: ...


class Weights:
    """`master` holds the float32 weights that the optimiser updates; `model` is what forward passes use.

    In bf16 `model` is a bfloat16 copy, refreshed after every update, whose gradients are added up in float32. In fp32
    both are one object. So they are when `master` is sharded, because FSDP casts what it gathers, and when it has LoRA
    adapters, which alone are float32 and alone are trained.
    """

    def __init__(
        self, master: SDAR, config: AdamWSettings, compute_dtype: torch.dtype, ema: float | None = None
    ) -> None:
        self.master = master
        trained = {name: weight for name, weight in master.named_parameters() if weight.requires_grad}
        self.names = list(trained)
        self.params: list[Tensor] = list(trained.values())
        self._frozen = {name: weight for name, weight in master.named_parameters() if not weight.requires_grad}
        for weight in self.params:
            weight.grad = torch.zeros_like(weight)
        self._dtype = compute_dtype
        shared = compute_dtype == master.lm_head.weight.dtype or is_sharded(master)
        self.model = master if shared else copy.deepcopy(master).to(compute_dtype)
        self._copies: list[Tensor] = list(self.model.parameters())
        if self.model is not master:
            self._collect_gradients()
        self.average = None if ema is None else [weight.detach().clone() for weight in self.params]
        self._decay = ema
        decayed = [weight for weight in self.params if weight.ndim > 1]
        others = [weight for weight in self.params if weight.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        settings: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.adam_eps}
        small = config.moments == "bfloat16"
        self.optimizer: torch.optim.AdamW = (
            BFloat16AdamW(groups, **settings)
            if small
            else torch.optim.AdamW(groups, **settings, fused=self.params[0].is_cuda)
        )
        for weight in self.params:  # AdamW's first step would make them; a checkpoint is loaded before it
            dtype = torch.bfloat16 if small else weight.dtype
            moments = {moment: torch.zeros_like(weight, dtype=dtype) for moment in MOMENTS}
            self.optimizer.state[weight] = {"step": torch.tensor(0.0, device=weight.device), **moments}

    def _collect_gradients(self) -> None:
        """Add each gradient of the copies to the master's as soon as a backward pass has it, and let go of it: all of
        them at once would take as much memory as the copies."""
        for weight, part in zip(self.params, self._copies, strict=True):

            def collect(part: Tensor, weight: Tensor = weight) -> None:
                _gradient(weight).add_(_gradient(part))
                part.grad = None

            part.register_post_accumulate_grad_hook(collect)

    def zero_gradients(self) -> None:
        """Before the backward passes of an update; the first makes those of a `model` that is the master itself."""
        self.model.zero_grad(set_to_none=True)
        if self.model is not self.master:
            for weight in self.params:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.zero_()

    def release_gradients(self) -> None:
        """Until the next update nobody needs them, and they are as large as the weights."""
        for weight in self.params:
            weight.grad = None

    def clip(self, limit: float) -> float:
        """Scale the gradient down to norm `limit`; returns the norm it had."""
        norm = gathered(torch.nn.utils.get_total_norm([_gradient(weight) for weight in self.params]))
        torch.nn.utils.clip_grads_with_norm_(self.params, limit, norm)
        return float(norm)

    @torch.no_grad()
    def update(self, lr: float, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        if self.average is not None and self._decay is not None:
            # Early weights are far from the final ones, so the average forgets them faster in the first steps.
            decay = min(self._decay, (1.0 + step) / (10.0 + step))
            torch._foreach_lerp_(self.average, self.params, 1.0 - decay)
        self.publish(self.params)

    @torch.no_grad()
    def restart(self, dtype: torch.dtype) -> None:
        """Go on as if from a checkpoint in `dtype` without the optimiser's state: round the weights, forget moments."""
        for weight in self.params:
            weight.copy_(weight.to(dtype))
            for value in self.optimizer.state[weight].values():
                value.zero_()
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

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """In the block, `model` computes with the running average of the weights, where there is one.

        Average and weights are exchanged meanwhile: no third copy of them is made."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        reshard(self.model)
        if self.average is not None:
            for weight, value in zip(self.params, self.average, strict=True):
                kept = weight.clone()
                weight.copy_(value)
                value.copy_(kept)
            self.publish(self.params)

    def whole(self) -> SDAR:
        """A model to decode with: `model` itself or, when it is sharded or has adapters, a new one without either."""
        if not is_sharded(self.model) and not self._frozen:
            return self.model
        state = self._state(self.params, dtype=self._dtype)
        with torch.device("meta"):
            model = SDAR(self.model.config)
        if model.config.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state, assign=True)
        model.tie()
        model.init_rope(self.params[0].device)
        return model

    def export(self, leads: bool = True) -> dict[str, Tensor]:
        """The weights to keep, whole; on the CPU if they were sharded, and only where `leads`."""
        return self._state(self.best, device=torch.device("cpu") if is_sharded(self.model) else None, keep=leads)

    @torch.no_grad()
    def _state(
        self, values: list[Tensor], *, device: torch.device | None = None, dtype: torch.dtype | None = None,
        keep: bool = True,
    ) -> dict[str, Tensor]:  # fmt: skip
        """`values` and the frozen weights, gathered one by one and cast at once; adapters are cast once merged."""
        state = {}
        for name, value in (self._frozen | dict(zip(self.names, values, strict=True))).items():
            whole = gathered(value)  # by all processes
            if keep:
                state[name] = whole.to(device, None if ".lora_" in name else dtype)
        return {name: weight.to(dtype=dtype) for name, weight in merged(state, adapter_scale(self.model)).items()}

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name; not copies."""
        named = {f"weight.{name}": weight.detach() for name, weight in zip(self.names, self.params, strict=True)}
        for name, weight in zip(self.names, self.params, strict=True):
            named |= {f"{moment}.{name}": self.optimizer.state[weight][moment] for moment in MOMENTS}
        if self.average is not None:
            named |= {f"average.{name}": value for name, value in zip(self.names, self.average, strict=True)}
        return named

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from what `tensors` returned after `step` updates; those may have been overwritten in place."""
        for name, weight in zip(self.names, self.params, strict=True):
            weight.copy_(tensors[f"weight.{name}"])
            state = self.optimizer.state[weight]
            state["step"].fill_(step)
            for moment in MOMENTS:  # not in the last checkpoint of a finished run
                state[moment].copy_(tensors.get(f"{moment}.{name}", state[moment]))
        if self.average is not None:
            for name, value, weight in zip(self.names, self.average, self.params, strict=True):
                value.copy_(tensors.get(f"average.{name}", weight))  # averaging may begin in a later chunk
        self.publish(self.params)


def without_moments(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of what `Weights.tensors` returned, what is not there only to train further."""
    return {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] not in MOMENTS}


def stored_bytes(tensors: dict[str, Tensor]) -> int:
    """Bytes of the whole of `tensors`, which may be sharded."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad
