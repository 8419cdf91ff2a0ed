"""Constructors of torch.nn as engineers write them: by position or by keyword, with numbers or with settings.

A family writes a layer in one plain way, `nn.Conv2d(c_in, c_out, 3, padding=1)`; a style turns it into
`nn.Conv2d(in_channels=c_in, out_channels=c_out, kernel_size=kernel_size, padding=pad)`. What the layer computes stays.
"""

from __future__ import annotations

import ast
import random
import re
from typing import Protocol

from dice.synth.problem.style import Style

_NORM = "num_features eps momentum affine track_running_stats"
# Layer -> its parameters by position; a name without its digit and "d" stands for all ranks.
PARAMETERS: dict[str, tuple[str, ...]] = {
    name: tuple(text.split())
    for name, text in {
        "Linear": "in_features out_features bias",
        "Conv": "in_channels out_channels kernel_size stride padding dilation groups bias",
        "ConvTranspose": "in_channels out_channels kernel_size stride padding output_padding groups bias dilation",
        "MaxPool": "kernel_size stride padding dilation return_indices ceil_mode",
        "AvgPool": "kernel_size stride padding ceil_mode count_include_pad",
        "LPPool": "norm_type kernel_size stride ceil_mode",
        "AdaptiveAvgPool": "output_size",
        "AdaptiveMaxPool": "output_size",
        "BatchNorm": _NORM,
        "InstanceNorm": _NORM,
        "GroupNorm": "num_groups num_channels eps affine",
        "LayerNorm": "normalized_shape eps elementwise_affine",
        "RMSNorm": "normalized_shape eps elementwise_affine",
        "LocalResponseNorm": "size alpha beta k",
        "Embedding": "num_embeddings embedding_dim",
        "Softmax": "dim",
        "LogSoftmax": "dim",
        "Softmin": "dim",
        "GLU": "dim",
        "LeakyReLU": "negative_slope inplace",
        "ELU": "alpha inplace",
        "CELU": "alpha inplace",
        "Hardtanh": "min_val max_val inplace",
        "Softplus": "beta threshold",
        "Softshrink": "lambd",
        "Hardshrink": "lambd",
        "Threshold": "threshold value",
        "TripletMarginLoss": "margin",
        "PReLU": "num_parameters init",
    }.items()
}
# What PyTorch takes when nothing is said: a constructor may repeat it, whatever it is given.
DEFAULTS: dict[str, str] = {
    "stride": "1",
    "padding": "0",
    "output_padding": "0",
    "dilation": "1",
    "groups": "1",
    "bias": "True",
    "eps": "1e-5",
    "affine": "True",
    "elementwise_affine": "True",
    "ceil_mode": "False",
    "count_include_pad": "True",
    "negative_slope": "0.01",
    "alpha": "1.0",
    "dim": "-1",
    "keepdim": "False",
    "kernel_size": "3",
}
# Parameters that are sizes of tensors: they are never given to the constructor as settings.
_SIZES = frozenset(["in_features", "out_features", "in_channels", "out_channels", "num_features", "num_channels"])
_RANK = re.compile(r"[123]d$")
# What engineers pass along although it changes nothing.
_OPTIONAL: dict[str, dict[str, str]] = {
    "Conv": {"stride": "1", "padding": "0", "dilation": "1", "groups": "1"},
    "ConvTranspose": {"stride": "1", "padding": "0", "output_padding": "0", "groups": "1"},
    "MaxPool": {"stride": "None", "padding": "0", "dilation": "1", "return_indices": "False", "ceil_mode": "False"},
    "AvgPool": {"stride": "None", "padding": "0"},
    "BatchNorm": {"momentum": "0.1"},
    "Softplus": {"threshold": "20"},
}
_OWNERS = {"MaxPool": "pool", "AvgPool": "pool", "GroupNorm": "norm", "BatchNorm": "norm", "Conv": "conv"}


class Setting(Protocol):
    """Gives a number of a layer to the constructor, where that is the style, and returns its spelling."""

    def __call__(self, role: str, text: str, *, owner: str = "") -> str: ...


def written(rng: random.Random, style: Style, setting: Setting, expression: str) -> str:
    """The layer `nn.Name(...)` in that style; any other expression as it is."""
    name = _RANK.sub("", expression.removeprefix("nn.").partition("(")[0])
    if not expression.startswith("nn.") or name not in PARAMETERS or "@" in expression:
        return expression
    call = ast.parse(expression, mode="eval").body
    assert isinstance(call, ast.Call)
    names = PARAMETERS[name]
    positional = [(names[place], ast.unparse(item)) for place, item in enumerate(call.args)]
    named = [(str(item.arg), ast.unparse(item.value)) for item in call.keywords]
    if style.positional and not style.keywords:
        positional, named = _by_position(names, positional, named)
    given = dict(positional + named)
    size, owner = given.get("kernel_size", ""), _OWNERS.get(name, "")
    parts, kernel = [], ""
    for place, (parameter, text) in enumerate([*positional, *named]):
        if _is_number(text) and parameter not in _SIZES:
            number, text = text, setting(parameter, text, owner=owner)
            is_side = parameter == "kernel_size" and expression.startswith("nn.Conv2d") and number.isdigit()
            if is_side and rng.random() < 0.12:
                text = f"({text}, {text})"  # a square window written as a pair
        if parameter == "kernel_size":
            kernel = text
        if parameter == "padding" and kernel.isidentifier() and _is_half(text, size) and rng.random() < 0.9:
            text = f"{kernel} // 2"
        by_position = place < len(positional) and not style.keywords
        parts.append(text if by_position else f"{parameter}={text}")
    if style.setting_rate == 1 and rng.random() < 0.5:
        for option, value in _OPTIONAL.get(name, {}).items():
            if option not in given and rng.random() < 0.7:
                parts.append(f"{option}={setting(option, value, owner=owner)}")
    return f"{expression.partition('(')[0]}({', '.join(parts)})"


def _by_position(
    names: tuple[str, ...], positional: list[tuple[str, str]], named: list[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """As many arguments as possible by position: `nn.Conv2d(3, 8, 3, 1, 1)`, `nn.MaxPool2d(2, 2)`."""
    rest = dict(named)
    if names[3:4] == ("stride",) and "padding" in rest:  # of a convolution: a pooling's is not 1
        rest.setdefault("stride", "1")
    while len(positional) < len(names) and names[len(positional)] in rest:
        name = names[len(positional)]
        positional = [*positional, (name, rest.pop(name))]
    return positional, list(rest.items())


def _is_number(text: str) -> bool:
    """A number, a tuple of numbers, or a truth value."""
    return re.fullmatch(r"-?[\d.]+(e-?\d+)?|True|False|None|\(\d+(, \d+)*,?\)", text) is not None


def _is_half(text: str, size: str) -> bool:
    return text.isdigit() and size.isdigit() and int(size) % 2 == 1 and int(text) == int(size) // 2
