"""What authors write beside the code: docstrings in the usual conventions, and remarks."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

REMARKS: dict[str, tuple[str, ...]] = {
    "constants": ("Shapes", "Test configuration", "problem size", "Dimensions of the inputs", "Settings", "Test code"),
    "size": ("can be changed", "small enough for a test", "as in the paper", "default", "number of elements"),
    "inputs": ("random float32 inputs", "Generate the inputs of forward", "one batch", "Positional arguments"),
    "init": ("nothing to configure", "no constructor arguments", "The constructor takes no arguments", "none"),
    "argument": ("the {name}", "{name} of the layer", "{name}.", "The {name} to use.", "Value of {name}."),
    "input": ("input tensor", "Input tensor", "the input", "Tensor", "data to process"),
}
RETURNS = (
    "Output tensor.",
    "the result",
    "The output tensor.",
    "Tensor with the result.",
    "torch.Tensor: the result",
    "",
)
SHORT = (
    "{Title}.",
    "A model that computes {title}.",
    "Model performing {title}.",
    "Simple module: {title}.",
    "Reference implementation of {title}.",
    "Computes {title}.",
    "Simple model that performs {title}.",
    "Performs {title}.",
)
LONG = (
    "{Title}.\n\nPlain PyTorch, used as the reference.",
    "A small module.\n\nThe forward pass is {title}.",
    "This module performs {title}.\n\nAll tensors are float32.",
    "Model for {title}.\n\nNotes:\n    Inputs are contiguous.",
    "{Title}.\n\nThe operation is applied to a batch of inputs; there is no training code here, only the\n"
    "forward pass that has to be reproduced.",
    "Implements {title}.\n\nThis pattern is common in neural networks. The result has to match PyTorch's within\n"
    "floating-point tolerance.",
)
FORWARD = (
    "Applies {title}.",
    "{Title}.",
    "Forward pass.",
    "Compute {title}.",
    "Run the model on the inputs.",
    "Returns {title}.",
    "Applies {title} to the input.",
    "Forward pass of the model.",
)
INIT = ("Initializes the module.", "Initializes the layer.", "Set up the parameters.", "Constructor.", "")

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "a batched matrix product": ("batched matrix multiplication", "a batch matmul"),
    "a matrix product": ("matrix multiplication", "a matmul", "a GEMM", "a general matrix multiply"),
    "matrix products": ("matrix multiplications",),
    "a linear layer": ("a fully connected layer", "a matrix multiplication", "a dense layer", "a linear projection"),
    " followed by ": (", then ", ", and ", " and then ", ", followed by "),
    "a sum": ("sum reduction", "a summation"),
    "a mean": ("mean reduction", "averaging"),
    "a maximum": ("max reduction",),
    "a minimum": ("min reduction",),
    "softmax": ("Softmax", "a softmax activation", "the softmax function"),
    "layer norm": ("Layer Normalization", "LayerNorm", "layer normalization"),
    "batch norm": ("Batch Normalization", "BatchNorm", "batch normalization"),
    "group norm": ("Group Normalization", "GroupNorm"),
    "instance norm": ("Instance Normalization", "InstanceNorm"),
    "RMS norm": ("RMS Normalization", "RMSNorm"),
    "convolution": ("conv", "convolution operation"),
    "max pooling": ("Max Pooling", "a max pool"),
    "average pooling": ("Average Pooling", "an average pool"),
    "ReLU": ("a ReLU activation", "rectification"),
    "loss": ("loss function",),
}
# What people write instead: of little help, or about something else. Whoever learns from it has to read the code.
_VAGUE = (
    "a building block", "one stage of a larger model", "a step of the network", "a small example", "the core operation",
    "a custom layer", "the forward computation", "a helper used by other modules", "a common pattern", "a test module",
    "the operation to be optimised", "two small steps", "a simple function of the inputs", "a baseline", "our head",
    "a few tensor operations", "part of a decoder", "part of a vision backbone", "a feature extractor", "the loss",
    "an audio front end", "post-processing of scores", "a scoring function", "the update of one step", "a projection",
    "two tensors", "a batch of samples", "a toy problem", "an experiment", "the naive version", "a reusable component",
)  # fmt: skip
_BESIDE = ("small", "simple", "plain", "basic", "single", "fused", "standard", "naive", "given", "generic", "typical")
_COMMENTS = (" of the inputs", " of two tensors", " on a batch", " (reference)", " in one go", " for small inputs")
Item = tuple[str, str, str]  # name, type, words


def remark(rng: random.Random, kind: str) -> str:
    return rng.choice(REMARKS[kind])


def documented(
    rng: random.Random, kind: str, title: str, items: Sequence[Item], returns: str, style: str, indent: str
) -> list[str]:
    """A docstring's lines. `kind`: short or long, of a class; init; forward short, forward long, with its arguments.

    `style`: the convention of the argument list.
    """
    title = loosened(rng, reworded(rng, title))
    table = {"short": SHORT, "long": SHORT if items else LONG, "init": INIT}.get(kind, FORWARD)
    summary = rng.choice(table).format(title=title, Title=title[:1].upper() + title[1:])
    parts = [summary] if summary else []
    if items and kind in ("long", "init", "forward long"):
        parts += ["\n".join(_arguments(rng, items, style))]
    if returns and kind == "forward long":
        parts += ["\n".join(_returns(returns, style))]
    text = "\n\n".join(parts) or "Initializes the module."
    lines = text.split("\n")
    raw = "r" if rng.random() < 0.02 else ""
    if len(lines) == 1 and rng.random() < 0.7:
        return [f'{indent}{raw}"""{lines[0]}"""']
    first = [f'{indent}{raw}"""{lines[0]}'] if rng.random() < 0.3 else [f'{indent}{raw}"""', f"{indent}{lines[0]}"]
    return [*first, *(f"{indent}{line}".rstrip() for line in lines[1:]), f'{indent}"""']


def reworded(rng: random.Random, title: str) -> str:
    """The title with some of its terms as other people call them."""
    for term, others in _SYNONYMS.items():
        if term in title and rng.random() < 0.5:
            title = title.replace(term, rng.choice(others))
    return title


def loosened(rng: random.Random, title: str) -> str:
    """The title as people are careless: words too many, a part of it, or nothing of it."""
    chance = rng.random()
    if chance < 0.6 or not title:
        return title
    if chance < 0.75:
        article, space, rest = title.partition(" ")
        if article in ("a", "an", "the") and space:
            return f"{'the' if article == 'the' else 'a'} {rng.choice(_BESIDE)} {rest}"
        return f"{rng.choice(_BESIDE)} {title}"
    if chance < 0.82:
        return title + rng.choice(_COMMENTS)
    if chance < 0.9:
        return rng.choice([part for part in re.split(r",? (?:followed by|and then|then|and) |, ", title) if part])
    return rng.choice(_VAGUE)


def _arguments(rng: random.Random, items: Sequence[Item], style: str) -> list[str]:
    match style:
        case "numpy":
            head = ["Parameters", "----------"]
            return head + [line for name, kind, words in items for line in (f"{name} : {kind}", f"    {words}")]
        case "sphinx":
            return [f":param {name}: {words}" for name, _, words in items]
        case "plain":
            return ["Parameters:", *(f"    {name}: {words}" for name, _, words in items)]
    typed = rng.random() < 0.7
    return [
        "Args:",
        *(f"    {name} ({kind}): {words}" if typed else f"    {name}: {words}" for name, kind, words in items),
    ]


def _returns(words: str, style: str) -> list[str]:
    match style:
        case "numpy":
            return ["Returns", "-------", "torch.Tensor", f"    {words}"]
        case "sphinx":
            return [f":return: {words}"]
    return ["Returns:", f"    {words}"]
