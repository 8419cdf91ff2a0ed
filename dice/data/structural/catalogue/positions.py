"""Norms and positions."""

from __future__ import annotations

from dice.data.structural.structure import Structure, at

HIDDEN = ("torch.randn(batch_size, seq_len, hidden_size)",)
STREAM = HIDDEN * 2  # the output of a sublayer, and the residual stream
PACKED_QK = ("torch.randn(batch_size, seq_len, (num_heads + num_kv_heads) * head_dim)",)
INNER = ("torch.randn(batch_size, seq_len, intermediate_size)",)
HEADS = ("torch.randn(batch_size, num_heads, seq_len, head_dim)",)
IN_HEADS = ("torch.randn(batch_size, seq_len, num_heads, head_dim)",)

NORMS = (
    Structure("RMSNorm", "norm", HIDDEN, (
        at("Llama 3 8B", batch_size=4, seq_len=1024),
        at("Qwen2.5 0.5B", batch_size=16, seq_len=777),
        at("Flan-T5 XL", batch_size=32, seq_len=512),
    )),
    Structure("UnitOffsetRMSNorm", "norm", HIDDEN, (
        at("Gemma 2 2B", batch_size=8, seq_len=1000),
        at("Gemma 7B", batch_size=4, seq_len=2048),
    )),
    Structure("BiasFreeLayerNorm", "norm", HIDDEN, (
        at("Command R7B", batch_size=4, seq_len=1024),
        at("MPT 7B", batch_size=3, seq_len=900),
    )),
    Structure("PlainLayerNorm", "norm", HIDDEN, (at("OLMo 7B", batch_size=8, seq_len=512),)),
    Structure("UnitOffsetLayerNorm", "norm", HIDDEN, (
        at("Nemotron 4 15B", batch_size=4, seq_len=768),
        at("Minitron 4B", batch_size=2, seq_len=3000),
    )),
    Structure("AddRMSNorm", "norm", STREAM, (
        at("Mistral 7B", batch_size=2, seq_len=2048),
        at("Qwen2 7B", batch_size=4, seq_len=999),
        at("Phi-3 mini", batch_size=8, seq_len=640),
    )),
    Structure("AddLayerNorm", "norm", STREAM, (
        at("BERT large", batch_size=32, seq_len=384),
        at("BERT base", batch_size=64, seq_len=128),
    )),
    Structure("ScaledAddRMSNorm", "norm", STREAM, (
        at("Granite 3 8B", batch_size=4, seq_len=1024),
        at("Granite 3 2B", batch_size=6, seq_len=1100),
    )),
    Structure("PostNormResidual", "norm", STREAM, (
        at("OLMo 2 7B", batch_size=4, seq_len=1024),
        at("OLMo 2 1B", batch_size=5, seq_len=1536),
    )),
    Structure("SandwichNorm", "norm", STREAM, (
        at("Gemma 2 9B", batch_size=4, seq_len=1024),
        at("Gemma 3 1B", batch_size=8, seq_len=1000),
    )),
    Structure("DeepNorm", "norm", STREAM, (at("GLM-130B", 4, batch_size=4, seq_len=1024, num_layers=70),)),
    Structure("ParallelNorms", "norm", HIDDEN, (
        at("GPT-NeoX 20B", 2, batch_size=4, seq_len=1024),
        at("Falcon 40B", 4, batch_size=3, seq_len=1500),
    )),
    Structure("HeadRMSNorm", "norm", PACKED_QK, (
        at("Qwen3 8B", batch_size=4, seq_len=1024),
        at("Qwen3 0.6B", batch_size=7, seq_len=1024),
    )),
    Structure("WideQKNorm", "norm", PACKED_QK, (
        at("OLMo 2 7B", batch_size=2, seq_len=1024),
        at("OLMoE 7B", batch_size=4, seq_len=900),
    )),
    Structure("GatedGroupRMSNorm", "norm", INNER * 2, (
        at("Mamba 2 1.3B", batch_size=4, seq_len=1024, num_groups=1),
        at("Nemotron-H 8B", 2, batch_size=2, seq_len=1024, num_groups=8),
    )),
    Structure("NormThenGate", "norm", IN_HEADS * 2, (
        at("Qwen3-Next 80B", batch_size=4, seq_len=1024, num_heads=32, head_dim=128),
    )),
    Structure("HeadGroupNorm", "norm", STREAM, (at("RWKV-6 1.6B", batch_size=4, seq_len=1024),)),
    Structure("UnitKeys", "norm", IN_HEADS * 2, (
        at("DeltaNet 1.3B", batch_size=4, seq_len=1024),
        at("Kimi Linear 48B", batch_size=2, seq_len=1000),
    )),
    Structure("AdaptiveLayerNorm", "norm", (*HIDDEN, "torch.randn(batch_size, hidden_size)"), (
        at("DiT-XL/2", batch_size=32, seq_len=256),
        at("DiT-L/2", batch_size=8, seq_len=1024),
    )),
    Structure("LayerScaleResidual", "norm", STREAM, (at("DINOv2 large", batch_size=16, seq_len=257),)),
    Structure("DynamicTanh", "norm", HIDDEN, (at("Llama 2 7B", batch_size=4, seq_len=1024),)),
)  # fmt: skip

ROTARY = (
    Structure("RotaryHalves", "rotary", HEADS, (
        at("Llama 3 8B", batch_size=2, seq_len=2048),
        at("Qwen2.5 0.5B", batch_size=8, seq_len=1000),
        at("Phi-3 mini", batch_size=2, seq_len=1500),
    )),
    Structure("RotaryAdjacent", "rotary", HEADS, (
        at("Command R", batch_size=1, seq_len=2048),
        at("GPT-J 6B", batch_size=2, seq_len=1024),
    )),
    Structure("RotaryComplex", "rotary", IN_HEADS, (
        at("Llama 2 7B", batch_size=2, seq_len=1024),
        at("Llama 2 70B", batch_size=1, seq_len=1500),
    )),
    Structure("PartialRotary", "rotary", HEADS, (
        at("GPT-NeoX 20B", batch_size=2, seq_len=1024, rotary_dim=24),
        at("Phi-2", batch_size=2, seq_len=1500, rotary_dim=32),
        at("StableLM 2 1.6B", batch_size=4, seq_len=2048, rotary_dim=16),
    )),
    Structure("RotaryLlama3", "rotary", PACKED_QK, (
        at("Llama 3 8B", batch_size=2, seq_len=1024),
        at("Llama 3.2 1B", batch_size=4, seq_len=1000),
    )),
    Structure("RotaryYarn", "rotary", HEADS, (
        at("gpt-oss 20B", batch_size=2, seq_len=2048),
        at("Qwen2.5 3B", batch_size=4, seq_len=1111, factor=4, context=32768, theta=1000000),
    ), {"context": 32768}),
    Structure("RotaryDynamicNTK", "rotary", HEADS, (
        at("Qwen 7B", batch_size=2, seq_len=1024, context=512),
        at("Llama 2 7B", batch_size=1, seq_len=3000, context=2048),
    ), {"context": 12}),
    Structure("RotaryInterpolated", "rotary", (*HEADS, "torch.randint(0, 8 * seq_len, (batch_size, seq_len))"), (
        at("Gemma 3 4B", batch_size=4, seq_len=2048),
        at("Gemma 3 4B", 2, batch_size=8, seq_len=1500),
    )),
    Structure("RotaryLongFactors", "rotary", HEADS, (
        at("Phi-3 mini", batch_size=2, seq_len=1024),
        at("Phi-3 mini", 2, batch_size=2, seq_len=2000),
    )),
    Structure("RotaryMultimodal", "rotary", (*HEADS, "torch.randint(0, seq_len, (3, batch_size, seq_len))"), (
        at("Qwen2-VL 2B", batch_size=4, seq_len=1024),
        at("Qwen2-VL 7B", batch_size=2, seq_len=1300),
    )),
    Structure("RotaryPatches", "rotary", ("torch.randn(batch_size, num_heads, grid_size * grid_size, head_dim)",), (
        at("Qwen2-VL 7B", batch_size=8, grid_size=27, head_dim=80, num_heads=16),
        at("Qwen2-VL 2B", batch_size=4, grid_size=32, head_dim=80, num_heads=16),
    )),
    Structure("SinusoidPositions", "rotary", HIDDEN, (
        at("Whisper large-v3", batch_size=8, seq_len=1500),
        at("Whisper small", batch_size=16, seq_len=1500),
    )),
)  # fmt: skip

STRUCTURES = NORMS + ROTARY
