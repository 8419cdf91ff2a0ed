"""What training takes of a GPU's memory, part by part, in bytes; and the least recomputation that fits.

Counted from shapes, for compiled blocks with FlexAttention in bfloat16 on float32 master weights, which is how training
runs on a GPU. Against measured peaks: tests/train/test_plan.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from dice.model.sdar import SDAR, SDARConfig
from dice.train.blocks import Part, Recompute
from dice.train.loss import CHUNK_LOGITS
from dice.train.plan.flops import attention_weights, feed_forward_weights

# Of a GPU's memory; the rest is for the CUDA context, communication, and holes between tensors.
USABLE = 0.92
# And of what an update of RL may take of that: beside it the last kernels of the step are verified on the same GPU.
BESIDE_KERNELS = 0.84
# Of the tokens that are read, those that a loss is computed of: half of a row is clean, half of the rest hidden.
PREDICTED = 0.25
# Bytes held for each logit of a chunk: bfloat16, three times float32, and the gradient in bfloat16.
LOGIT_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a model is trained. `tokens`: those that a micro-batch reads, both copies of a row counted. `gathered`: all
    weights at once, where several GPUs share them."""

    config: SDARConfig
    gpus: int
    tokens: int
    moments: str
    average: bool = False
    gathered: bool = False
    compute_bytes: int = 2
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on each GPU at the moment that takes most. `copies`: what forward passes compute with."""

    weights: float
    gradients: float
    moments: float
    average: float
    copies: float
    activations: float
    logits: float
    passing: float

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


@functools.cache
def parameters(config: SDARConfig) -> int:
    """Numbers in a model of this shape."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in SDAR(config).parameters())


def kept_elements(config: SDARConfig, part: Part) -> int:
    """Numbers that a compiled block keeps for its backward pass, for each token that it reads.

    Every matrix product keeps its input, RMSNorm and rotation theirs, attention what it read and wrote, SiLU's product
    its two factors; the residual stream is kept before each half.
    """
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_attention_heads * head, config.num_key_value_heads * head
    attention = 2 * hidden + (query + 2 * key) + (query + key) + query
    return {"none": attention + 2 * hidden + 3 * inner, "ffn": attention + hidden, "block": hidden}[part]


def activation_bytes(layout: Layout, recompute: Recompute) -> float:
    """Of all blocks at the end of the forward pass, with what the norms and attention divided by in float32."""
    config = layout.config
    queries = 2 * config.num_attention_heads + config.num_key_value_heads  # attention's, and norms of queries and keys
    divisors = {"none": queries + 2, "ffn": queries + 1, "block": 0}
    total = 0.0
    for index in range(config.num_hidden_layers):
        part = recompute.of(index)
        total += layout.tokens * (kept_elements(config, part) * layout.compute_bytes + 4 * divisors[part])
    return total + layout.tokens * 2 * config.hidden_size * layout.compute_bytes  # the last norm's input and output


def memory(layout: Layout, recompute: Recompute) -> Memory:
    """The larger of two moments: the loss, when all activations stand beside the logits, and the backward pass of a
    block, when the gradients of what it computes stand beside what it computed."""
    config, gpus, wide = layout.config, layout.gpus, 4
    count, head = parameters(config), config.vocab_size * config.hidden_size
    block = attention_weights(config) + feed_forward_weights(config)
    narrow, share = layout.compute_bytes, count / gpus
    predicted = layout.tokens * PREDICTED
    loss = min(CHUNK_LOGITS, predicted * config.vocab_size) * LOGIT_BYTES + head * (wide + narrow)
    loss += predicted * 2 * config.hidden_size * narrow  # hidden states of what is predicted, and their gradients
    recomputes = recompute.part if (recompute.layers is None or recompute.layers > 0) else "none"
    one_block = layout.tokens * kept_elements(config, "none") * narrow
    backward = one_block * (1 if recomputes == "none" else 2)
    copies, passing = (count * narrow, 0.0) if narrow < wide else (0.0, 0.0)
    if gpus > 1:
        root = count - config.num_hidden_layers * block
        copies = count * narrow if layout.gathered else (root + 2 * block) * narrow
        # Gradients of two blocks (of all, if gathered at once), and in float32 what is being added up over the GPUs.
        held = count if layout.gathered else 2 * block
        passing = held * narrow + (0 if layout.gathered else held * wide) + head * narrow
    if layout.reference:
        copies += share * narrow
    return Memory(
        weights=share * wide, gradients=share * wide,
        moments=2 * share * (2 if layout.moments == "bfloat16" else 4), average=share * wide * layout.average,
        copies=copies, activations=activation_bytes(layout, recompute), logits=loss,
        passing=max(0.0, passing + backward - loss),
    )  # fmt: skip


def levels(config: SDARConfig) -> Iterator[Recompute]:
    """From nothing to everything. A block at a time is a finer step than halves of all blocks, and what it frees for
    its work is about the same."""
    yield Recompute("none")
    for layers in range(1, config.num_hidden_layers):
        yield Recompute("block", layers)
    yield Recompute("block")


def least_recompute(layout: Layout, available: float) -> tuple[Recompute, Memory]:
    """The least that fits into `available` bytes; where nothing fits, what takes least memory."""
    for recompute in levels(layout.config):
        needed = memory(layout, recompute)
        if needed.total <= available:
            break
    return recompute, needed
