"""The families of models that our one transformer runs. What differs between them is this table, not code.

All are pre-norm decoders with RMSNorm, SwiGLU, grouped heads and half-split rotary positions. They differ in who
attends to whom, in what the logits at position i predict, in biases and head norms, and in how a checkpoint spells its
settings and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

# block_diffusion: block-causal, masks inside a block. autoregressive: causal. diffusion: every token sees every token.
Kind = Literal["block_diffusion", "autoregressive", "diffusion"]
NO_MASK = -1  # the mask id of a model that has no mask token
MASK_SPELLINGS = ("<|MASK|>", "<MASK>", "<[MASK_TOKEN]>")  # in tokenizers


@dataclass(frozen=True)
class Family:
    """One row of the table.

    - `shift`: logits at position i predict token i + 1 instead of token i.
    - `settings`: config.json's name -> ours, where they differ. `defaults`: what the family's own code takes for a
      setting that config.json leaves out. `supported`: values that this package computes; others would change the
      result, so they are refused. None as `head_dim`: hidden size / heads.
    - `tensors`: replacements, applied in order, that turn our tensor names into published ones.
    - `code`: classes that config.json names, as architecture or in `auto_map`, where its `model_type` is another
      family's.
    - `adapts_to`: the block-diffusion family with the same transformer, which an autoregressive model becomes by
      `dice train adapt`.
    """

    name: str
    kind: Kind
    shift: bool
    architecture: str
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    mask_token_id: int = NO_MASK
    rope_types: tuple[str, ...] = ("default",)
    can_tie: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    supported: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    tensors: tuple[tuple[str, str], ...] = ()
    code: tuple[str, ...] = ()
    adapts_to: str = ""

    def published_name(self, name: str) -> str:
        """The tensor that we call `name`, as checkpoints of this family call it."""
        for ours, theirs in self.tensors:
            name = name.replace(ours, theirs)
        return name


_DENSE: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "quantization_config": (None,)}
_LLAMA: dict[str, tuple[Any, ...]] = {**_DENSE, "attention_bias": (False,), "mlp_bias": (False,)}
_QWEN: dict[str, tuple[Any, ...]] = {**_DENSE, "attention_bias": (False,), "use_sliding_window": (False,)}

_LLADA_SETTINGS = {
    "d_model": "hidden_size",
    "mlp_hidden_size": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "max_sequence_length": "max_position_embeddings",
    "weight_tying": "tie_word_embeddings",
}
# The block code is OLMo's, which can do much that LLaDA does not.
_LLADA_DEFAULTS = {
    "activation_type": "swiglu",
    "block_type": "sequential",
    "layer_norm_type": "default",
    "rope": False,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-5,
    "weight_tying": True,
}
_LLADA_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation_type": ("silu",),
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "rope": (True,),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "include_bias": (False,),
    "include_qkv_bias": (False,),
    "input_emb_norm": (False,),
    "layer_norm_with_affine": (True,),
    "multi_query_attention": (None, False),
    "quantization_config": (None,),
    "scale_logits": (False,),
}
_LLADA_TENSORS = (
    ("lm_head.", "model.transformer.ff_out."),
    ("model.embed_tokens.", "model.transformer.wte."),
    ("model.norm.", "model.transformer.ln_f."),
    ("model.layers.", "model.transformer.blocks."),
    (".self_attn.o_proj.", ".attn_out."),
    (".self_attn.", "."),
    (".mlp.gate_proj.", ".ff_proj."),
    (".mlp.down_proj.", ".ff_out."),
    (".mlp.", "."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ff_norm."),
)

SDAR_FAMILY = Family(
    "sdar",
    "block_diffusion",
    shift=False,
    architecture="SDARForCausalLM",
    qk_norm=True,
    head_dim=128,
    mask_token_id=151669,
    defaults={"rope_theta": 1e6},
    supported=_QWEN,
)
_QWEN2 = Family(
    "qwen2",
    "autoregressive",
    shift=True,
    architecture="Qwen2ForCausalLM",
    qkv_bias=True,
    can_tie=True,
    defaults={"rope_theta": 1e4},
    supported={key: values for key, values in _QWEN.items() if key != "attention_bias"},
    adapts_to="sdar-qwen2",
)
_LLAMA_FAMILY = Family(
    "llama",
    "autoregressive",
    shift=True,
    architecture="LlamaForCausalLM",
    can_tie=True,
    rope_types=("default", "llama3"),
    defaults={"rope_theta": 1e4, "max_position_embeddings": 2048},
    supported=_LLAMA,
    adapts_to="sdar-llama",
)


def _in_blocks(family: Family, architecture: str) -> Family:
    """The transformer of an autoregressive family, run as SDAR runs Qwen3's: in blocks, with masks and no shift."""
    return replace(
        family, name=family.adapts_to, kind="block_diffusion", shift=False, architecture=architecture, adapts_to=""
    )


_ROWS = (
    SDAR_FAMILY,
    Family(
        "qwen3",
        "autoregressive",
        shift=True,
        architecture="Qwen3ForCausalLM",
        qk_norm=True,
        head_dim=128,
        can_tie=True,
        defaults={"rope_theta": 1e4},
        supported=_QWEN,
        adapts_to=SDAR_FAMILY.name,
    ),
    _QWEN2,
    _LLAMA_FAMILY,
    _in_blocks(_QWEN2, "SDARQwen2ForCausalLM"),
    _in_blocks(_LLAMA_FAMILY, "SDARLlamaForCausalLM"),
    Family(  # Seed-Coder's transformer, which is Llama's, trained on to denoise blocks
        "stable-diffcoder",
        "block_diffusion",
        shift=False,
        architecture="StableDiffcoderForCausalLM",
        mask_token_id=5,
        defaults={"rope_theta": 1e4, "max_position_embeddings": 2048},
        supported=_LLAMA,
        code=("StableDiffcoderForCausalLM", "SeedDiffcoderForCausalLM"),
    ),
    Family(
        "llada",
        "diffusion",
        shift=False,
        architecture="LLaDAModelLM",
        mask_token_id=126336,
        can_tie=True,
        settings=_LLADA_SETTINGS,
        defaults=_LLADA_DEFAULTS,
        supported=_LLADA_SUPPORTED,
        tensors=_LLADA_TENSORS,
    ),
    Family(
        "dream",
        "diffusion",
        shift=True,
        architecture="DreamModel",
        qkv_bias=True,
        mask_token_id=151666,
        can_tie=True,
        defaults={"rope_theta": 1e4},
        supported={key: values for key, values in _QWEN.items() if key != "attention_bias"},
    ),
)
FAMILIES: dict[str, Family] = {row.name: row for row in _ROWS}


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's stretch of rotary positions: long wavelengths slowed by `factor`, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def stretch(self, frequencies: Tensor) -> Tensor:
        """`frequencies` in radians per position."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, kept)
