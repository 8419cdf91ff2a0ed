"""SDAR in plain PyTorch: Qwen3's weights and arithmetic, run with block-diffusion masks and no shift.

Logits at position i predict the token AT position i (SDAR does not shift). The same module runs the other families of
`family.py`, some of which do shift. One module, three ways to call it:

- `model(ids, positions, mask)`: full forward with an explicit mask. Training, scoring, tests.
- `model.prefill(ids, cache, block_size)`: the same forward, block-causal, that also stores keys and values.
- `model.step(ids, starts, cache, block_size)`: a window of one or two blocks per sample against the cache. Decoding.

Block size 1 makes the last two plain causal attention.

Shape letters: B rows, L or N tokens, H hidden, A query heads, K key/value heads, G = A // K, D head dim, V vocabulary.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dice.model.cache import KVCache, Window
from dice.model.config import SDARConfig
from dice.model.fused import FusedLinear, can_pack
from dice.model.mask import block_causal_mask

__all__ = ["MAX_BLOCK_SIZE", "SDAR", "SDARConfig"]

# Tokens of the longest block that can be decoded; rotary tables are this much longer than the context.
MAX_BLOCK_SIZE = 256


@functools.cache
def _compiled_flex_attention() -> Callable[..., Any]:
    """Uncompiled FlexAttention materialises the whole score matrix; compiled, it is one fused kernel."""
    return torch.compile(flex_attention, dynamic=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary embedding. `sin` has its first half negated, so that a roll replaces negate-and-concatenate."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None) -> Tensor:
    """Attention of q [B, L, A, D] to k, v [B, L, K, D] under `mask` (None: all to all); returns [B, L, A * D]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if isinstance(mask, BlockMask):
        flex: Callable[..., Any] = flex_attention
        if q.is_cuda and not torch.compiler.is_compiling():
            flex = _compiled_flex_attention()
        out = flex(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        assert isinstance(out, Tensor)
    else:
        # The memory-efficient kernel takes a mask but no grouped heads, so keys and values are expanded.
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        )  # fmt: skip
        self.eps = config.rms_norm_eps
        hidden, q_size, kv_size = config.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        traits = config.traits
        self.q_proj = nn.Linear(hidden, q_size, bias=traits.qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_size, bias=traits.qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_size, bias=traits.qkv_bias)
        self.o_proj = nn.Linear(q_size, hidden, bias=False)
        self.qk_norm = traits.qk_norm
        self.q_norm = nn.RMSNorm(self.head_dim, eps=self.eps) if self.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim, eps=self.eps) if self.qk_norm else nn.Identity()
        self.fused_qkv: FusedLinear | None = None
        self.fused_out: FusedLinear | None = None
        self.fused_scale: Tensor | None = None

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | BlockMask | None, store: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        rows, length, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(rows, length, self.heads, self.head_dim)), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim)), cos, sin)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim)
        if store is not None:
            store[0][:, :length].copy_(k)
            store[1][:, :length].copy_(v)
        return self.o_proj(attend(q, k, v, mask))

    def step(self, x: Tensor, window: Window, cache: KVCache, layer: int) -> Tensor:
        """The same arithmetic as `forward` for a decoding window, in as few launches as possible."""
        rows, length, _ = x.shape
        qk_heads = self.heads + self.kv_heads
        qkv = self._project(x).view(rows, length, qk_heads + self.kv_heads, self.head_dim)
        qk = qkv[:, :, :qk_heads]
        if self.qk_norm:
            qk = F.rms_norm(qk, (self.head_dim,), eps=self.eps) * self._norm_scale()
        qk = rotate(qk, window.cos, window.sin)
        keys, values = cache.write(layer, window, qk[:, :, self.heads :], qkv[:, :, qk_heads:])
        # Query heads that share a key head become extra query rows: no expanded copy of the cache is ever made.
        groups = self.heads // self.kv_heads
        q = qk[:, :, : self.heads].reshape(rows, length, self.kv_heads, groups, self.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows, self.kv_heads, groups * length, self.head_dim)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=window.mask)
        out = out.view(rows, self.kv_heads, groups, length, self.head_dim).permute(0, 3, 1, 2, 4)
        return (self.fused_out or self.o_proj)(out.reshape(rows, length, -1))

    def fuse(self, pack: bool) -> None:
        self.fused_qkv = FusedLinear((self.q_proj, self.k_proj, self.v_proj), pack)
        self.fused_out = FusedLinear((self.o_proj,), pack)
        self.fused_scale = self._norm_scale(fresh=True) if self.qk_norm else None

    def unfuse(self) -> None:
        self.fused_qkv = self.fused_out = self.fused_scale = None

    def _project(self, x: Tensor) -> Tensor:
        if self.fused_qkv is not None:
            return self.fused_qkv(x)
        return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), -1)

    def _norm_scale(self, fresh: bool = False) -> Tensor:
        if self.fused_qkv is not None and self.fused_scale is not None and not fresh:
            return self.fused_scale
        q_scale, k_scale = (norm.get_parameter("weight").detach() for norm in (self.q_norm, self.k_norm))
        return torch.cat((q_scale.expand(self.heads, -1), k_scale.expand(self.kv_heads, -1)))


class MLP(nn.Module):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.fused_gate_up: FusedLinear | None = None
        self.fused_down: FusedLinear | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def step(self, x: Tensor) -> Tensor:
        if self.fused_gate_up is None or self.fused_down is None:
            return self.forward(x)
        gate, up = self.fused_gate_up(x).chunk(2, -1)
        return self.fused_down(F.silu(gate) * up)

    def fuse(self, pack: bool) -> None:
        self.fused_gate_up = FusedLinear((self.gate_proj, self.up_proj), pack)
        self.fused_down = FusedLinear((self.down_proj,), pack)

    def unfuse(self) -> None:
        self.fused_gate_up = self.fused_down = None


class Layer(nn.Module):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | BlockMask | None,
        store: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        return self.after_attention(self.through_attention(x, cos, sin, mask, store))

    def through_attention(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | BlockMask | None,
        store: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        return x + self.self_attn(self.input_layernorm(x), cos, sin, mask, store)

    def after_attention(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.post_attention_layernorm(x))

    def step(self, x: Tensor, window: Window, cache: KVCache, layer: int) -> Tensor:
        x = x + self.self_attn.step(_rms_norm(x, self.input_layernorm), window, cache, layer)
        return x + self.mlp.step(_rms_norm(x, self.post_attention_layernorm))


class Trunk(nn.Module):
    """Everything but the head; exists so that tensor names start with `model.` as in Qwen3 checkpoints."""

    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def blocks(self) -> Iterator[Layer]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer


class SDAR(nn.Module):
    """An SDAR language model, or one of another family. A new one is initialised for training from scratch, in float32
    on the default device. `tensor_parallel`: how many GPUs the engine is to cut it over when it decodes.
    """

    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.config = config
        self.tensor_parallel = 1
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()
        self.fused_head: FusedLinear | None = None
        self.register_buffer("rope_cos", torch.empty(0), persistent=False)
        self.register_buffer("rope_sin", torch.empty(0), persistent=False)
        if not self.lm_head.weight.is_meta:
            self.init_weights()
            self.init_rope()

    def tie(self) -> None:
        """Where the configuration says so, let the head be the embedding's own parameter."""
        if self.config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    @torch.no_grad()
    def init_weights(self) -> None:
        """Normal(0, initializer_range); projections back into the residual stream scaled by 1/sqrt(2 * layers)."""
        std = self.config.initializer_range
        residual_std = std / (2 * self.config.num_hidden_layers) ** 0.5
        for name, weight in self.named_parameters():
            if name.endswith("norm.weight"):
                weight.fill_(1.0)
            elif name.endswith(".bias"):
                weight.zero_()
            else:
                is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                weight.normal_(0.0, residual_std if is_residual else std)

    def init_rope(self, device: torch.device | str | None = None) -> None:
        """(Re)build the rotary tables [positions, 1, D] in float32. Needed after construction on the meta device."""
        config = self.config
        device = self.lm_head.weight.device if device is None else device
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
        frequencies = config.rope_theta**-exponent
        if config.llama3_rope is not None:
            frequencies = config.llama3_rope.stretch(frequencies)
        # A decoding window may reach one block past the last position that a text can have.
        positions = torch.arange(config.max_position_embeddings + MAX_BLOCK_SIZE, device=device)
        angle = torch.outer(positions.float(), frequencies)[:, None]
        self.rope_cos = torch.cat((angle.cos(), angle.cos()), -1)
        self.rope_sin = torch.cat((-angle.sin(), angle.sin()), -1)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | BlockMask | None = None,
    ) -> Tensor:
        """Logits [B, L, V]; arguments as for `hidden`."""
        return self.lm_head(self.hidden(input_ids, position_ids, attention_mask))

    def hidden(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | BlockMask | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Final normalised hidden states [B, L, H] of `input_ids` [B, L].

        `position_ids` [B, L] defaults to 0..L-1. `attention_mask` is boolean [B or 1, 1, L, L] (True = may attend), a
        FlexAttention BlockMask, or None for the family's own: block-causal with the model's block size (1: causal), or
        every token sees every token.
        With `cache`, keys and values are stored at its first L slots.
        """
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if attention_mask is None and self.config.traits.kind != "diffusion":
            attention_mask = block_causal_mask(position_ids, self.config.block_size)
        x = self.model.embed_tokens(input_ids)
        cos, sin = self.rope_cos[position_ids].to(x.dtype), self.rope_sin[position_ids].to(x.dtype)
        for index, layer in enumerate(self.model.layers):
            store = None if cache is None else cache.layer(index)
            x = layer(x, cos, sin, attention_mask, store)
        return self.model.norm(x)

    def prefill(self, input_ids: Tensor, cache: KVCache, block_size: int) -> None:
        """Store keys and values of `input_ids` [B, L] at positions 0..L-1, block-causal. Rows may be right-padded.

        Padding is harmless: later blocks are invisible to earlier ones, and decoding overwrites the slots.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        self.hidden(input_ids, positions, block_causal_mask(positions, block_size), cache)

    def step(self, input_ids: Tensor, starts: Sequence[int], cache: KVCache, block_size: int) -> Tensor:
        """Hidden states [B, N, H] of a window of whole blocks per row, N a multiple of `block_size`.

        Row i holds positions starts[i] .. starts[i] + N - 1, sees the cache before it and, block-causally, itself. Its
        keys and values are written to the cache; they count as committed only once the caller moves past them.
        """
        window = cache.window(starts, input_ids.shape[1], block_size, self.rope_cos, self.rope_sin)
        x = F.embedding(input_ids, self.model.embed_tokens.weight)
        for index, layer in enumerate(self.model.blocks()):
            x = layer.step(x, window, cache, index)
        return _rms_norm(x, self.model.norm)

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache for `rows` texts of at most `capacity` tokens."""
        config, weight = self.config, self.model.embed_tokens.weight
        groups = config.num_attention_heads // config.num_key_value_heads
        shape = (config.num_hidden_layers, rows, capacity, config.num_key_value_heads, config.head_dim)
        return KVCache(torch.zeros(2, *shape, dtype=weight.dtype, device=weight.device), groups)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states that came from `step`."""
        return (self.fused_head or self.lm_head)(hidden)

    def fuse(self) -> SDAR:
        """Prepare the fused projections that `step` and `logits` use. Call before decoding, after weights changed.

        The separate parameters become views of the fused ones: same names, same values; see `FusedLinear`. Raises
        `TypeError` for sharded parameters, which only exist whole inside a training forward.
        """
        if any(_is_sharded(weight) for weight in self.parameters()):
            raise TypeError("A sharded model cannot decode; gather its weights into an unsharded SDAR first.")
        pack = can_pack(self.lm_head.weight, sum(weight.numel() for weight in self.parameters()))
        for layer in self.model.blocks():
            layer.self_attn.fuse(pack)
            layer.mlp.fuse(pack)
        self.fused_head = FusedLinear((self.lm_head,), pack)
        return self

    def unfuse(self) -> None:
        """Drop what `fuse` prepared."""
        for layer in self.model.blocks():
            layer.self_attn.unfuse()
            layer.mlp.unfuse()
        self.fused_head = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moving or casting replaces the parameters, so fused views of the old ones must go."""
        self.unfuse()
        super()._apply(fn, recurse)
        if self.rope_cos.dtype != torch.float32:  # bfloat16 cannot hold large angles
            self.init_rope()
        return self


def _is_sharded(weight: Tensor) -> bool:
    """Whether `weight` is a DTensor. The class is not imported here, which takes half a second: where no one else has
    imported it, there are no DTensors."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(weight, distributed.DTensor)


def _rms_norm(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    return F.rms_norm(x, norm.normalized_shape, norm.weight, norm.eps)
