"""The transformer over the rows of a `Plan`, with keys and values in pages.

Shape letters: N rows, R of them with logits, H hidden, A query heads, K key/value heads, D head dim, V vocabulary,
P positions of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dice.decode.engine.group import Group
from dice.decode.engine.plan import Plan
from dice.decode.engine.slots import Shape, Slots
from dice.decode.engine.weights import FEW_ROWS, Projection, Scaled
from dice.model.fused import can_pack
from dice.model.sdar import SDAR, Layer


def whole(delta: Tensor) -> Tensor:
    """`delta` [N, H] itself, or the sum of its parts [S, N, H]."""
    return delta if delta.dim() == 2 else delta.sum(0)


@dataclass(frozen=True)
class Norm:
    """An RMSNorm: `weight` [H]."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, norm: nn.RMSNorm) -> Norm:
        assert norm.eps is not None
        return cls(norm.weight.detach(), norm.eps)


@dataclass(frozen=True)
class Heads:
    """How a layer's attention is cut into heads. `q_norm`, `k_norm` [D]: None where the family has none."""

    query: int
    key: int
    dim: int
    eps: float
    q_norm: Tensor | None
    k_norm: Tensor | None


@dataclass(frozen=True)
class Context:
    """What all layers of a forward share. `tile`: most positions of a tile. `cos`, `sin`: [positions, D], float32."""

    plan: Plan
    slots: Slots
    tile: int
    cos: Tensor
    sin: Tensor


class Ops(Protocol):
    """What a layer computes besides products of matrices: in plain PyTorch, or as kernels."""

    def add_norm(
        self, x: Tensor, delta: Tensor | None, norm: Norm, *, fp8: bool = False, half: bool = False
    ) -> Tensor | Scaled:
        """Add `delta` [N, H], or its parts [S, N, H], to x [N, H], in place; returns the normalised sum, in fp8 or in
        float16, times HALF_SCALE, if so asked."""
        ...

    def attend(self, qkv: Tensor, heads: Heads, cache: Tensor, context: Context, *, half: bool = False) -> Tensor:
        """Split qkv [N, (A + 2K) * D]; normalise and rotate queries and keys; store keys and values in `cache`
        [2, pages, K, P, D]; returns attention [N, A * D] to the pages of the rows' texts, block-causally. `half`: in
        float16, times HALF_SCALE."""
        ...

    def silu_mul(self, gate_up: Tensor, *, fp8: bool = False) -> Tensor | Scaled:
        """silu(gate) * up for [N, 2 * I]; returns [N, I]."""
        ...

    def quantize(self, x: Tensor) -> Scaled:
        """x [N, C] in fp8."""
        ...


class _Layer:
    """One transformer block as the engine runs it."""

    def __init__(self, layer: Layer, fp8: bool, pack: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = Projection((attention.q_proj, attention.k_proj, attention.v_proj), fp8=fp8, pack=pack)
        self.out = Projection((attention.o_proj,), fp8=fp8, pack=pack)
        self.gate_up = Projection((mlp.gate_proj, mlp.up_proj), fp8=fp8, pack=pack)
        self.down = Projection((mlp.down_proj,), fp8=fp8, pack=pack)
        self.before_attention = Norm.of(layer.input_layernorm)
        self.before_mlp = Norm.of(layer.post_attention_layernorm)
        norms = [
            norm.get_parameter("weight").detach() if attention.qk_norm else None
            for norm in (attention.q_norm, attention.k_norm)
        ]
        self.heads = Heads(attention.heads, attention.kv_heads, attention.head_dim, attention.eps, *norms)

    def projections(self) -> tuple[Projection, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class PagedForward:
    """A model whose keys and values lie in `pages` pages. `fp8` holds for all products but the head's.

    `model` may be one rank's shard: the ranks of `group` then add up what attention and MLP give.
    """

    def __init__(
        self, model: SDAR, shape: Shape, pages: int, ops: Ops, *, fp8: bool = False, group: Group | None = None
    ) -> None:
        config, weight = model.config, model.lm_head.weight
        self.model, self.ops, self.fp8, self.group = model, ops, fp8, group or Group()
        pack = can_pack(weight, sum(weight.numel() for weight in model.parameters()))
        self.layers = [_Layer(layer, fp8, pack) for layer in model.model.blocks()]
        self.head = Projection((model.lm_head,), pack=pack)
        self.norm = Norm.of(model.model.norm)
        size = (config.num_hidden_layers, 2, pages, config.num_key_value_heads, shape.page_size, config.head_dim)
        self.cache = torch.zeros(size, dtype=weight.dtype, device=weight.device)
        self.cos, self.sin = model.rope_cos[:, 0], model.rope_sin[:, 0]
        self.halves = False  # whether few rows are given to products in fp8 as float16, as their `few_rows` ask

    def alike(self) -> list[list[Projection]]:
        """The projections of one kind of all layers, kind by kind, and the head. The third are gate and up."""
        return [
            *(list(kind) for kind in zip(*(layer.projections() for layer in self.layers), strict=True)),
            [self.head],
        ]

    def refresh(self) -> None:
        """Take over what was written into the model's parameters since."""
        for projection in self._projections():
            projection.refresh()

    def holds(self) -> bool:
        """Whether the model's parameters still are where they were."""
        return all(projection.holds() for projection in self._projections())

    def _projections(self) -> list[Projection]:
        return [self.head, *(one for layer in self.layers for one in layer.projections())]

    def hidden(self, plan: Plan, slots: Slots, tile: int) -> Tensor:
        """Hidden states [N, H] before the last norm; keys and values of all rows are in the pages afterwards."""
        context = Context(plan, slots, tile, self.cos, self.sin)
        ops, add = self.ops, self.group.add
        x = F.embedding(plan.ids, self.model.model.embed_tokens.weight)
        half = self.halves and len(x) <= FEW_ROWS
        fp8 = self.fp8 and not half
        delta: Tensor | None = None
        for layer, cache in zip(self.layers, self.cache, strict=True):
            normed = ops.add_norm(x, delta, layer.before_attention, fp8=fp8, half=half)
            attended = ops.attend(layer.qkv(normed), layer.heads, cache, context, half=half)
            delta = add(layer.out(ops.quantize(attended) if fp8 else attended))
            normed = ops.add_norm(x, delta, layer.before_mlp, fp8=fp8, half=half)
            delta = add(layer.down(self._gated(layer.gate_up, normed)))
        assert delta is not None
        return x.add_(whole(delta))

    def _gated(self, projection: Projection, x: Tensor | Scaled) -> Tensor | Scaled:
        """silu(gate) * up of x [N, H], as one kernel where that is quicker."""
        if projection.few_rows_gated is not None and len(x) <= FEW_ROWS:
            return projection.few_rows_gated(x, projection)
        return self.ops.silu_mul(projection(x), fp8=self.fp8)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits [R, V] of the rows [R] of `hidden`, in the model's precision; of a shard's part of the vocabulary."""
        return self.head(self.ops.add_norm(hidden.index_select(0, rows), None, self.norm))
