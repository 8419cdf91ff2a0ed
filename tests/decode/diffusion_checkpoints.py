"""Small random checkpoints in the published layouts of LLaDA and Dream: settings, tensor names, shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

MASK, STOP, LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 96, 1, 3, 48, 80, 6, 2, 8
LLADA: dict[str, Any] = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"],
    "activation_type": "silu", "alibi": False, "attention_dropout": 0.0, "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True, "bias_for_layer_norm": False, "block_group_size": 1,
    "block_type": "llama", "d_model": HIDDEN, "embedding_dropout": 0.0, "embedding_size": 104, "eos_token_id": STOP,
    "flash_attention": False, "include_bias": False, "include_qkv_bias": False, "init_device": "meta",
    "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms",
    "layer_norm_with_affine": True, "mask_token_id": MASK, "max_sequence_length": 128, "mlp_hidden_size": INNER,
    "mlp_ratio": 4, "multi_query_attention": None, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "n_layers": LAYERS,
    "pad_token_id": STOP, "residual_dropout": 0.0, "rms_norm_eps": 1e-5, "rope": True, "rope_full_precision": True,
    "rope_theta": 500000.0, "scale_logits": False, "use_cache": False, "vocab_size": 100, "weight_tying": False,
}  # fmt: skip
DREAM: dict[str, Any] = {
    "model_type": "Dream", "architectures": ["DreamModel"],
    "attention_dropout": 0.0, "bos_token_id": STOP, "eos_token_id": STOP, "hidden_act": "silu", "hidden_size": HIDDEN,
    "intermediate_size": INNER, "mask_token_id": MASK, "max_position_embeddings": 128, "max_window_layers": LAYERS,
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KV_HEADS, "pad_token_id": STOP,
    "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "use_cache": False, "use_sliding_window": False, "vocab_size": 97,
}  # fmt: skip


def llada_shapes(rows: int = 104) -> dict[str, tuple[int, ...]]:
    keys = KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.transformer.wte.weight": (rows, HIDDEN),
        "model.transformer.ln_f.weight": (HIDDEN,),
        "model.transformer.ff_out.weight": (rows, HIDDEN),
    }
    for layer in range(LAYERS):
        block = f"model.transformer.blocks.{layer}"
        shapes |= {f"{block}.{name}.weight": (HIDDEN,) for name in ("attn_norm", "ff_norm")}
        shapes |= {f"{block}.{name}.weight": (HIDDEN, HIDDEN) for name in ("q_proj", "attn_out")}
        shapes |= {f"{block}.{name}.weight": (keys, HIDDEN) for name in ("k_proj", "v_proj")}
        shapes |= {f"{block}.{name}.weight": (INNER, HIDDEN) for name in ("ff_proj", "up_proj")}
        shapes[f"{block}.ff_out.weight"] = (HIDDEN, INNER)
    return shapes


def dream_shapes(rows: int = 97) -> dict[str, tuple[int, ...]]:
    keys = KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (rows, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (rows, HIDDEN),
    }
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{block}.self_attn.{name}.weight": (HIDDEN, HIDDEN) for name in ("q_proj", "o_proj")}
        shapes |= {f"{block}.self_attn.{name}.weight": (keys, HIDDEN) for name in ("k_proj", "v_proj")}
        shapes |= {f"{block}.self_attn.{name}.bias": (keys,) for name in ("k_proj", "v_proj")}
        shapes[f"{block}.self_attn.q_proj.bias"] = (HIDDEN,)
        shapes |= {f"{block}.mlp.{name}.weight": (INNER, HIDDEN) for name in ("gate_proj", "up_proj")}
        shapes[f"{block}.mlp.down_proj.weight"] = (HIDDEN, INNER)
    return shapes


def lively_state(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in sorted(shapes.items()):
        normed = len(shape) == 1 and name.endswith("weight")
        weight = torch.empty(shape)
        weight.uniform_(0.5, 1.5, generator=generator) if normed else weight.normal_(0, 0.25, generator=generator)
        state[name] = weight
    return state


def write_checkpoint(folder: Path, config: dict[str, Any], **changes: Any) -> dict[str, Tensor]:
    """Write a model folder and return its tensors."""
    config = {**config, **changes}
    llada = config["model_type"] == "llada"
    state = lively_state(llada_shapes(config["embedding_size"]) if llada else dream_shapes(config["vocab_size"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return state


def random_ids(rows: int, length: int) -> list[list[int]]:
    """Ids of real tokens: no stop, no mask, no spare row."""
    ids = torch.randint(2, MASK - 1, (rows, length), generator=torch.Generator().manual_seed(3))
    return ids.tolist()
