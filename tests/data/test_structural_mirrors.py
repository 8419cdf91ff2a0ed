"""The proof that a structure mirrors its family: the same numbers as `transformers` gives, on the same weights.

A small model of the family runs; what one of its submodules took and gave is recorded; the structure, with the
submodule's weights, must give the same. Where names of weights differ, `names` says how.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dice.data.structural.emit import write_problem
from tests.conftest import skip_without

skip_without("transformers", "the reference for these numbers is transformers")

Weights = dict[str, torch.Tensor]
WIDTHS = {"hidden_size": 48, "intermediate_size": 80, "num_heads": 4, "num_kv_heads": 2, "head_dim": 12}
LENGTH = 21


@dataclass(frozen=True)
class Mirror:
    """`config`: of the model. `path`: the submodule. `sizes`: of the structure. `names`: patterns of their names, and
    ours. `change`: what else happens to the weights."""

    main: str
    model: str
    path: str
    config: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Weights], None] = lambda weights: None


def rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def join(weights: Weights, pattern: str, parts: tuple[str, ...], name: str, dim: int = 0) -> None:
    """Weights (and biases) that they keep apart and we together."""
    for key in [key for key in weights if pattern.format(parts[0]) in key]:
        keys = [key.replace(pattern.format(parts[0]), pattern.format(part)) for part in parts]
        whole = [weights.pop(one, None) for one in keys]
        filled = [torch.zeros_like(whole[0]) if one is None else one for one in whole if whole[0] is not None]
        weights[key.replace(pattern.format(parts[0]), name)] = torch.cat(filled, dim=dim)


def joined(pattern: str, parts: tuple[str, ...], name: str) -> Callable[[Weights], None]:
    return lambda weights: join(weights, pattern, parts, name)


def transposed(weights: Weights) -> None:
    for key, value in weights.items():
        if value.dim() == 2:
            weights[key] = value.T.contiguous()


def flat(*keys: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for key in keys:
            weights[key] = weights[key].flatten()

    return change


def split_experts(weights: Weights) -> None:
    for key in ("experts.gate_up_proj", "block_sparse_moe.experts.gate_up_proj"):
        if key not in weights:
            continue
        prefix, packed, down = (
            key[: -len("gate_up_proj")],
            weights.pop(key),
            weights.pop(key.replace("gate_up", "down")),
        )
        for index, (both, last) in enumerate(zip(packed, down, strict=True)):
            gate, up = both.chunk(2)
            for name, value in (("gate", gate), ("up", up), ("down", last)):
                weights[f"{prefix}{index}.{name}_proj.weight"] = value


def transpose_experts(weights: Weights) -> None:
    gate, up = weights.pop("experts.gate_up_proj").mT.chunk(2, dim=-1)
    weights |= {"gate_proj": gate, "up_proj": up, "down_proj": weights.pop("experts.down_proj").mT}


def pack_shared(weights: Weights) -> None:
    weights["gate_up"] = weights.pop("experts.gate_up_proj").mT.contiguous()
    weights["down"] = weights.pop("experts.down_proj").mT.contiguous()


def join_alpha(weights: Weights) -> None:
    weights["alpha"] = torch.cat((weights.pop("act_fn.alpha_p"), weights.pop("act_fn.alpha_n")))


def one_row(weights: Weights) -> None:
    for name in ("q_norm", "k_norm"):
        for key in [key for key in weights if name in key]:
            weights[key] = weights[key][0]


def equal_rows(model: torch.nn.Module) -> None:
    """Heads that their model normalises with weights of their own get equal ones."""
    for name, value in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            value.data[:] = value.data[:1].clone()


MLA = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
OUR_MLA = {"kv_rank": 20, "nope_dim": 12, "rope_dim": 8, "v_dim": 16}
DENSE_V3 = {"first_k_dense_replace": 0, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
GROUPED = {"n_group": 4, "topk_group": 2, "n_shared_experts": 1}
OUR_GROUPS = {"num_experts": 8, "top_k": 3, "num_groups": 4, "top_groups": 2}
WINDOW = {"sliding_window": 7}
QKV = ("q", "k", "v")
MHA = {"num_key_value_heads": 4}
NEOX = {"num_attention_heads": 3, "head_dim": 16, "rotary_pct": 0.25, "hidden_act": "gelu"} | rope(
    10000.0, partial_rotary_factor=0.25
)
BERT_NAMES = {
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "attention.norm",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
    "output.LayerNorm": "norm",
}

MIRRORS = (
    Mirror("RMSNorm", "llama", "norm"),
    Mirror("SwiGLU", "llama", "layers.0.mlp"),
    Mirror("GroupedQueryAttention", "llama", "layers.0.self_attn", rope(500000.0)),
    Mirror("PreNormLayer", "llama", "layers.0", rope(500000.0)),
    Mirror("LongContextAttention", "llama", "layers.0.self_attn", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}),
    Mirror("RotaryAttention", "llama", "layers.0.self_attn", MHA | rope(10000.0)),
    Mirror("SlidingWindowAttention", "mistral", "layers.0.self_attn", WINDOW | rope(10000.0), {"window": 7}),
    Mirror("BiasedAttentionLayer", "qwen2", "layers.0", rope(1000000.0)),
    Mirror("QueryKeyNormAttention", "qwen3", "layers.0.self_attn", rope(1000000.0)),
    Mirror("PostNormLayer", "olmo2", "layers.0", MHA | {"rms_norm_eps": 1e-6} | rope(500000.0)),
    Mirror("FullRotaryLayer", "olmo", "layers.0", MHA | rope(10000.0), {}, {
        "^self_attn": "attention", "mlp.down_proj": "ff_out",
    }, joined("mlp.{}_proj", ("up", "gate"), "ff_proj")),
    Mirror("UnitOffsetRMSNorm", "gemma", "norm"),
    Mirror("GeGLU", "gemma", "layers.0.mlp"),
    Mirror("SoftCappedLayer", "gemma2", "layers.0", WINDOW | {"query_pre_attn_scalar": 12} | rope(10000.0),
           {"window": 7}),
    Mirror("NormedWindowAttention", "gemma3_text", "layers.0.self_attn", WINDOW | {
        "query_pre_attn_scalar": 12, "layer_types": ["sliding_attention"],
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                            "full_attention": {"rope_type": "default", "rope_theta": 1e6}}}, {"window": 7}),
    Mirror("PackedLayer", "phi3", "layers.0", {"pad_token_id": 0} | rope(10000.0), {}, {"^self_attn.": ""}),
    Mirror("ParallelGatedLayer", "cohere", "layers.0", {"use_qk_norm": True} | rope(75000.0), {}, {}, one_row),
    Mirror("ParallelTwoNormLayer", "gpt_neox", "layers.0", NEOX, {"num_heads": 3}),
    Mirror("LearnedPositionLayer", "gpt2", "h.0", {"n_inner": 80}, {}, {}, transposed),
    Mirror("ParallelOneNormLayer", "falcon", "h.0", {
        "multi_query": True, "parallel_attn": True, "bias": False, "new_decoder_architecture": False,
        "ffn_hidden_size": 80} | rope(10000.0), {}, {"^mlp.": ""}),
    Mirror("AlibiLayer", "bloom", "h.0", {}, {"intermediate_size": 192}, {"^mlp.": ""}),
    Mirror("ClippedAlibiLayer", "mpt", "blocks.0", {
        "d_model": 48, "n_heads": 4, "n_layers": 1, "expansion_ratio": 4, "attn_config": {"clip_qkv": 2.0}},
        {"intermediate_size": 192}, {"^ffn.": ""}),
    Mirror("BiasedWindowLayer", "starcoder2", "layers.0", WINDOW | rope(100000.0), {"window": 7}),
    Mirror("MultipliedLayer", "granite", "layers.0", {
        "attention_multiplier": 0.0625, "residual_multiplier": 0.22, "rms_norm_eps": 1e-6} | rope(10000.0), {}, {},
        joined("self_attn.{}_proj", QKV, "self_attn.qkv_proj")),
    Mirror("SquaredReLULayer", "nemotron", "layers.0", rope(10000.0, partial_rotary_factor=1.0)),
    Mirror("SparseLayer", "mixtral", "layers.0", {"num_local_experts": 8, "sliding_window": None} | rope(1e6),
           {"expert_size": 80, "num_experts": 8, "top_k": 2}, {"^mlp": "block_sparse_moe"}, split_experts),
    Mirror("SharedExpertMixture", "qwen2_moe", "layers.0.mlp", {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 28, "norm_topk_prob": False, "mlp_only_layers": []},
        {"expert_size": 20, "shared_size": 28, "num_experts": 8, "top_k": 3}, {}, pack_shared),
    Mirror("LatentAttention", "deepseek_v3", "layers.0.self_attn", MLA | {"q_lora_rank": 28} | rope(10000.0),
           OUR_MLA | {"q_rank": 28}),
    Mirror("LatentAttentionLite", "deepseek_v2", "layers.0.self_attn", MLA | {
           "q_lora_rank": None, "first_k_dense_replace": 1} | rope(10000.0), OUR_MLA),
    Mirror("FineGrainedMixture", "deepseek_v3", "layers.0.mlp", MLA | DENSE_V3 | GROUPED | {"q_lora_rank": 28},
           OUR_GROUPS | {"expert_size": 20}, {"gate.e_score_correction_bias": "router.bias", "^gate.": "router."},
           transpose_experts),
    Mirror("SinkAttention", "gpt_oss", "layers.0.self_attn", WINDOW | {"layer_types": ["sliding_attention"],
           "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
                               "beta_slow": 1.0, "truncate": True, "original_max_position_embeddings": 4096}},
           {"window": 7}),
    Mirror("ClampedMixture", "gpt_oss", "layers.0.mlp", {"num_local_experts": 8, "num_experts_per_tok": 3},
           {"expert_size": 80, "num_experts": 8, "top_k": 3}, {"^experts.": ""}),
    Mirror("GatedAttention", "qwen3_next", "layers.0.self_attn", {"layer_types": ["full_attention"], "head_dim": 12,
           "mlp_only_layers": [0]} | rope(10000000.0, partial_rotary_factor=1 / 3), {"rotary_dim": 4}),
    Mirror("EncoderAttention", "vit", "layers.0.attention", {"image_size": 20, "patch_size": 5}, {},
           {"^o_proj": "proj"}, joined("{}_proj", QKV, "qkv")),
    Mirror("VisionLayer", "vit", "layers.0", {"image_size": 20, "patch_size": 5}, {},
           {"attention.o_proj": "attention.proj", "^mlp.": ""}, joined("attention.{}_proj", QKV, "attention.qkv")),
    Mirror("CausalTextLayer", "clip_text_model", "encoder.layers.0", {"hidden_act": "quick_gelu"}, {},
           {"self_attn.out_proj": "out_proj"}, joined("self_attn.{}_proj", QKV, "in_proj")),
    Mirror("RelativeEncoderLayer", "t5", "encoder.block.0", {
        "d_model": 48, "d_kv": 12, "d_ff": 80, "num_heads": 4, "num_layers": 1,
        "feed_forward_proj": "gated-gelu"}, {}, {
        "layer.0.SelfAttention": "attention", "layer.0.layer_norm": "norm1", "layer.1.layer_norm": "norm2",
        "layer.1.DenseReluDense.": ""}),
    Mirror("TrainableXIELUMLP", "apertus", "layers.0.mlp", {}, {}, {}, join_alpha),
    Mirror("PostNormEncoderLayer", "bert", "encoder.layer.0", {}, {}, BERT_NAMES,
           joined("attention.self.{}", ("query", "key", "value"), "attention.qkv")),
    Mirror("LocalEncoderLayer", "modernbert", "layers.1", {"local_attention": 8, "pad_token_id": 0,
           "layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2, "norm_eps": 1e-5},
           {"window": 8}),
    Mirror("SelectiveMixer", "mamba", "layers.0.mixer", {"state_size": 6, "time_step_rank": 5},
           {"state_size": 6, "step_rank": 5}),
    Mirror("DualMixer", "mamba2", "layers.0.mixer", {"state_size": 6, "num_heads": 8, "head_dim": 12, "n_groups": 1},
           {"intermediate_size": 96, "num_heads": 8, "state_size": 6}),
    Mirror("ChannelMix", "rwkv", "blocks.0.feed_forward", {"attention_hidden_size": 48, "num_hidden_layers": 2}, {}, {
        "time_mix_key": "mix_key", "time_mix_receptance": "mix_receptance"}, flat("mix_key", "mix_receptance")),
    Mirror("GatedShortConv", "lfm2", "layers.0.conv", {
           "layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "conv_L_cache": 3, "conv_bias": False},
           {"kernel_size": 3}, {"^conv.conv": "conv"}),
)  # fmt: skip


def build_theirs(mirror: Mirror) -> torch.nn.Module:
    import transformers

    widths = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "num_hidden_layers": 1,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
    }
    known = type(transformers.AutoConfig.for_model(mirror.model))
    derived = {name for name in widths if isinstance(getattr(known, name, None), property)}
    options = {name: value for name, value in widths.items() if name not in derived} | dict(mirror.config)
    config = known(**options)
    model = transformers.AutoModel.from_config(config).eval()
    torch.manual_seed(1)
    for value in model.parameters():
        value.data = value.data + 0.2 * torch.randn_like(value)
    equal_rows(model)
    return model


def record(model: torch.nn.Module, path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the submodule took and gave in one forward of the model."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else kwargs["hidden_states"]
        seen.append((given, output[0] if isinstance(output, tuple) else output))

    model.get_submodule(path).register_forward_hook(keep, with_kwargs=True)
    runs = model.get_submodule(path.split(".")[0]) if path.startswith("encoder.block") else model
    if "pixel" in model.main_input_name:
        runs(torch.randn(2, 3, 20, 20))
    elif "inputs_embeds" in inspect.signature(runs.forward).parameters:
        runs(inputs_embeds=torch.randn(2, LENGTH, 48))
    else:
        runs(torch.randint(0, 64, (2, LENGTH)))
    return seen[0]


def rename(weights: Weights, names: Mapping[str, str]) -> Weights:
    def new(key: str) -> str:
        for pattern, name in names.items():
            if re.search(pattern, key):
                return re.sub(pattern, name, key, count=1)
        return key

    return {new(key): value for key, value in weights.items()}


def build_ours(main: str, sizes: Mapping[str, Any]) -> torch.nn.Module:
    space: dict[str, Any] = {}
    exec(write_problem(main, "A test.", ("0",), {**WIDTHS, **sizes}), space)
    model: torch.nn.Module = space["Model"](*space["get_init_inputs"]())
    return model


@pytest.mark.parametrize("mirror", MIRRORS, ids=lambda mirror: f"{mirror.main}-{mirror.model}")
def test_the_same_numbers_as_the_family(mirror: Mirror) -> None:
    torch.manual_seed(0)
    theirs = build_theirs(mirror)
    with torch.no_grad():
        given, expected = record(theirs, mirror.path)
        weights = rename(dict(theirs.get_submodule(mirror.path).state_dict()), mirror.names)
        mirror.change(weights)
        ours = build_ours(mirror.main, mirror.sizes)
        wanted = ours.state_dict().keys()
        ours.load_state_dict({key: value for key, value in weights.items() if key in wanted}, strict=True)
        extra = (torch.full((2,), LENGTH),) if mirror.main == "PostNormEncoderLayer" else ()
        flat_tokens = given.dim() == 3 and "Mixture" in mirror.main
        found = ours(given.flatten(0, 1) if flat_tokens else given, *extra).view_as(expected)
    assert expected.std() > 1e-2
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_gated_delta_rule_gives_the_same_numbers() -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, LENGTH, 4, 12) for _ in range(3))
    a, b = (torch.randn(2, LENGTH, 4) for _ in range(2))
    ours = build_ours("GatedDeltaRule", {})
    with torch.no_grad():
        decay = -ours.A_log.exp() * F.softplus(a + ours.dt_bias)
        theirs, _ = torch_recurrent_gated_delta_rule(q, k, v, decay, b.sigmoid(), use_qk_l2norm_in_kernel=True)
        torch.testing.assert_close(ours(q, k, v, a, b), F.rms_norm(theirs, (12,), eps=1e-6), rtol=1e-3, atol=1e-4)


def test_a_wrong_structure_gives_other_numbers() -> None:
    """The comparison can fail: the same weights in the layer of another family."""
    mirror = next(one for one in MIRRORS if one.main == "PreNormLayer")
    with pytest.raises(AssertionError, match="not close"):
        test_the_same_numbers_as_the_family(replace(mirror, config=rope(10000.0)))
