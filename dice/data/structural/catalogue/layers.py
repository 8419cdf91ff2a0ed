"""Whole layers."""

from __future__ import annotations

from dice.data.structural.structure import Structure, at

HIDDEN = ("torch.randn(batch_size, seq_len, hidden_size)",)
ENCODED = (*HIDDEN, "torch.randn(batch_size, source_len, hidden_size)")
PADDED = (*HIDDEN, "torch.randint(seq_len // 2, seq_len + 1, (batch_size,))")

DECODERS = (
    Structure("PreNormLayer", "layer", HIDDEN, (
        at("Llama 3 8B", 4, batch_size=2, seq_len=1024),
        at("Llama 3.2 1B", batch_size=1, seq_len=900),
        at("SmolLM2 360M", batch_size=4, seq_len=512),
        at("TinyLlama 1.1B", batch_size=2, seq_len=600),
    )),
    Structure("WindowLayer", "layer", HIDDEN, (
        at("Mistral 7B", 4, batch_size=2, seq_len=1024, window=256),
        at("Mistral Nemo 12B", 4, batch_size=1, seq_len=1500, window=400),
    )),
    Structure("FullRotaryLayer", "layer", HIDDEN, (
        at("OLMo 7B", 4, batch_size=2, seq_len=1024),
        at("OLMo 7B", 2, batch_size=1, seq_len=777),
    )),
    Structure("BiasedAttentionLayer", "layer", HIDDEN, (
        at("Qwen2.5 0.5B", batch_size=4, seq_len=512),
        at("Qwen2.5 1.5B", batch_size=1, seq_len=800),
    )),
    Structure("QueryKeyNormLayer", "layer", HIDDEN, (
        at("Qwen3 0.6B", batch_size=2, seq_len=1024),
        at("Qwen3 4B", 2, batch_size=2, seq_len=600),
    )),
    Structure("PostNormLayer", "layer", HIDDEN, (
        at("OLMo 2 1B", batch_size=1, seq_len=1024),
        at("OLMo 2 7B", 4, batch_size=4, seq_len=700),
    )),
    Structure("UnitOffsetLayer", "layer", HIDDEN, (
        at("Gemma 2B", 2, batch_size=2, seq_len=1024),
        at("Gemma 2B", batch_size=1, seq_len=600),
    )),
    Structure("SoftCappedLayer", "layer", HIDDEN, (
        at("Gemma 2 2B", batch_size=1, seq_len=1024, window=512),
        at("Gemma 2 9B", 4, batch_size=2, seq_len=900, window=300),
    )),
    Structure("LocalNormedLayer", "layer", HIDDEN, (
        at("Gemma 3 1B", batch_size=2, seq_len=1024, window=512),
        at("Gemma 3 4B", 2, batch_size=2, seq_len=777, window=256),
    )),
    Structure("PackedLayer", "layer", HIDDEN, (
        at("Phi-3 mini", 2, batch_size=2, seq_len=1024),
        at("Phi-4 14B", 5, batch_size=2, seq_len=700),
    )),
    Structure("LearnedPositionLayer", "layer", HIDDEN, (
        at("GPT-2", batch_size=4, seq_len=1024),
        at("GPT-2 XL", batch_size=2, seq_len=500),
    )),
    Structure("ParallelTwoNormLayer", "layer", HIDDEN, (
        at("Pythia 410M", batch_size=4, seq_len=1024),
        at("Pythia 1.4B", batch_size=1, seq_len=900),
    )),
    Structure("ParallelOneNormLayer", "layer", HIDDEN, (
        at("Falcon 7B", batch_size=1, seq_len=512),
    )),
    Structure("ParallelGatedLayer", "layer", HIDDEN, (
        at("Command R+ 104B", 8, batch_size=2, seq_len=1024),
        at("Command R+ 104B", 12, batch_size=4, seq_len=700),
    )),
    Structure("AlibiLayer", "layer", HIDDEN, (
        at("Bloom 560M", batch_size=2, seq_len=1024),
        at("Bloom 7B", 4, batch_size=4, seq_len=600),
    )),
    Structure("ClippedAlibiLayer", "layer", HIDDEN, (at("MPT 7B", 4, batch_size=2, seq_len=1024),)),
    Structure("BiasedWindowLayer", "layer", HIDDEN, (
        at("StarCoder2 3B", 2, batch_size=2, seq_len=1024, window=256),
        at("StarCoder2 7B", 4, batch_size=4, seq_len=700, window=300),
    )),
    Structure("MultipliedLayer", "layer", HIDDEN, (
        at("Granite 3 2B", batch_size=1, seq_len=1024),
        at("Granite 3 8B", 4, batch_size=4, seq_len=600),
    )),
    Structure("SquaredReLULayer", "layer", HIDDEN, (
        at("Minitron 4B", 2, batch_size=2, seq_len=1024),
        at("Nemotron 4 15B", 4, batch_size=2, seq_len=700),
    )),
)  # fmt: skip

SPARSE = (
    Structure("SparseLayer", "layer", HIDDEN, (
        at("Mixtral 8x7B", 4, batch_size=2, seq_len=512, expert_size=3584, num_experts=8, top_k=2),
        at("Qwen3-30B-A3B", 2, batch_size=2, seq_len=512, expert_size=384, num_experts=32, top_k=8),
    )),
    Structure("LatentMixtureLayer", "layer", HIDDEN, (
        at("DeepSeek-V2-Lite", 2, batch_size=2, seq_len=512, expert_size=352, kv_rank=256, nope_dim=128, rope_dim=64,
           v_dim=128, num_experts=16, top_k=6, num_groups=4, top_groups=2),
    )),
    Structure("SinkLayer", "layer", HIDDEN, (
        at("gpt-oss 20B", 2, batch_size=2, seq_len=1024, window=128),
        at("gpt-oss 20B", batch_size=1, seq_len=777, window=128),
    )),
    Structure("ClippedLayer", "layer", HIDDEN, (at("DBRX", 4, batch_size=2, seq_len=1024),)),
)  # fmt: skip

OTHERS = (
    Structure("MaskedDiffusionLayer", "layer", HIDDEN, (
        at("LLaDA 8B", 4, batch_size=2, seq_len=1024),
        at("LLaDA 8B", 2, batch_size=2, seq_len=500),
    )),
    Structure("BlockDiffusionLayer", "layer", HIDDEN, (
        at("SDAR 1.7B", batch_size=1, seq_len=1024, block_size=4),
        at("SDAR 4B", 2, batch_size=2, seq_len=640, block_size=32),
    )),
    Structure("PostNormEncoderLayer", "layer", PADDED, (
        at("BERT base", batch_size=16, seq_len=128),
        at("RoBERTa large", batch_size=4, seq_len=500),
    )),
    Structure("VisionLayer", "layer", HIDDEN, (
        at("ViT-L/14", batch_size=8, seq_len=257),
        at("ViT-B/16", batch_size=16, seq_len=197),
    )),
    Structure("ScaledVisionLayer", "layer", HIDDEN, (
        at("DINOv2 large", batch_size=4, seq_len=600),
        at("DINOv2 base", batch_size=12, seq_len=257),
    )),
    Structure("CausalTextLayer", "layer", HIDDEN, (
        at("CLIP ViT-L/14 text", batch_size=64, seq_len=77),
        at("CLIP ViT-B/32 text", batch_size=100, seq_len=77),
    )),
    Structure("SpeechDecoderLayer", "layer", ENCODED, (
        at("Whisper small", batch_size=4, seq_len=200, source_len=1500),
        at("Whisper medium", batch_size=2, seq_len=448, source_len=1500),
    )),
    Structure("RelativeEncoderLayer", "layer", HIDDEN, (
        at("T5 large", batch_size=4, seq_len=512),
        at("Flan-T5 XL", batch_size=1, seq_len=777),
    )),
    Structure("CrossMLPLayer", "layer", ENCODED, (
        at("T5 base", batch_size=8, seq_len=256, source_len=512),
        at("T5 large", batch_size=4, seq_len=114, source_len=700),
    )),
    Structure("LocalEncoderLayer", "layer", HIDDEN, (
        at("ModernBERT base", batch_size=4, seq_len=1024, window=128),
        at("ModernBERT large", batch_size=2, seq_len=1000, window=128),
    )),
    Structure("AdaptiveLayer", "layer", (*HIDDEN, "torch.randn(batch_size, hidden_size)"), (
        at("DiT-XL/2", batch_size=8, seq_len=256),
        at("DiT-L/2", batch_size=4, seq_len=1024),
    )),
    Structure("SelectiveLayer", "layer", HIDDEN, (
        at("Mamba 370M", batch_size=8, seq_len=100, state_size=16, step_rank=64),
        at("Mamba 1.4B", 2, batch_size=12, seq_len=75, state_size=16, step_rank=64),
    )),
    Structure("HybridLayer", "layer", HIDDEN, (
        at("Nemotron-H 8B", 4, batch_size=4, seq_len=75, intermediate_size=2048, num_heads=32, state_size=128,
           mlp_size=5376),
    )),
    Structure("TimeMixLayer", "layer", HIDDEN, (
        at("RWKV-4 1.5B", batch_size=4, seq_len=100),
        at("RWKV-4 1.5B", 2, batch_size=16, seq_len=90),
    )),
    Structure("GatedRecurrentLayer", "layer", HIDDEN, (at("RecurrentGemma 2B", batch_size=4, seq_len=128),)),
    Structure("ShortConvLayer", "layer", HIDDEN, (
        at("LFM2 1.2B", batch_size=1, seq_len=1024, kernel_size=3),
        at("LFM2 350M", batch_size=4, seq_len=700, kernel_size=3),
    )),
    Structure("DeltaNetLayer", "layer", HIDDEN, (at("DeltaNet 1.3B", 2, batch_size=8, seq_len=75),)),
)  # fmt: skip

STRUCTURES = DECODERS + SPARSE + OTHERS
