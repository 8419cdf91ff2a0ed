"""LoRA by `peft` (extra `lora`): small float32 weights beside each projection learn, the model itself stays."""

from __future__ import annotations

import torch
from torch import Tensor

from dice.errors import MachineError
from dice.model.sdar import SDAR

# The projections that get an adapter: all of a block's.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def add_adapters(model: SDAR, rank: int, alpha: float, dtype: torch.dtype) -> None:
    """Put adapters into `model`, whose own weights are frozen in `dtype`. Raises `MachineError` without peft."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise MachineError("LoRA needs peft: install the extra `lora`.") from None
    model.to(dtype)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(TARGETS))  # type: ignore[arg-type]  # or float
    inject_adapter_in_model(config, model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()


def adapter_scale(model: SDAR) -> float:
    """How many times the adapters of `model` count; 1 without any."""
    return next((vars(layer)["scaling"]["default"] for layer in model.modules() if hasattr(layer, "lora_A")), 1.0)


def merged(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """A state with adapters as one of a plain SDAR: W + scale * B A, float32 where there was an adapter."""
    found = {}
    for name, weight in state.items():
        if ".lora_" in name:
            continue
        if ".base_layer." in name:
            path = name.removesuffix(".base_layer.weight")
            up, down = (state[f"{path}.lora_{part}.default.weight"].float() for part in "BA")
            weight = weight.float() + scale * (up @ down)
        found[name.replace(".base_layer.", ".")] = weight
    return found
