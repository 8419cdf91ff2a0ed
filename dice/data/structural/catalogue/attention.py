"""Attention: dense decoders, masks and biases, latent, decoding, encoders and across sequences."""

from __future__ import annotations

from dice.data.structural.structure import Structure, at

HIDDEN = ("torch.randn(batch_size, seq_len, hidden_size)",)
TOKEN = ("torch.randn(batch_size, hidden_size)",)
QUERIES = "torch.randn(batch_size, num_heads, seq_len, head_dim)"
CACHE = ("torch.randn(batch_size, num_kv_heads, seq_len, head_dim)",) * 2
ENCODED = (*HIDDEN, "torch.randn(batch_size, source_len, hidden_size)")
LENGTHS = "torch.randint(seq_len // 2, seq_len + 1, (batch_size,))"
PAGES = ("torch.randn(num_pages, page_size, num_kv_heads, head_dim)",) * 2
INT8 = "torch.randint(-127, 128, (batch_size, num_kv_heads, seq_len, head_dim), dtype=torch.int8)"
SCALES = "torch.rand(batch_size, num_kv_heads, seq_len) / 64"

DENSE = (
    Structure("FusedCausalAttention", "attention", HIDDEN, (
        at("GPT-2", batch_size=8, seq_len=1024),
        at("GPT-2 XL", batch_size=4, seq_len=640),
    )),
    Structure("RotaryAttention", "attention", HIDDEN, (
        at("Llama 2 7B", 2, batch_size=2, seq_len=1024),
        at("OLMo 7B", 4, batch_size=4, seq_len=777),
    )),
    Structure("GroupedQueryAttention", "attention", HIDDEN, (
        at("Llama 3 8B", 2, batch_size=2, seq_len=1024),
        at("Llama 3.2 3B", batch_size=1, seq_len=900),
        at("SmolLM2 360M", batch_size=8, seq_len=512, theta=100000),
        at("Llama 2 70B", 4, batch_size=2, seq_len=768, theta=10000),
    )),
    Structure("LongContextAttention", "attention", HIDDEN, (
        at("Llama 3.2 1B", batch_size=2, seq_len=2048),
        at("Llama 3 8B", 2, batch_size=1, seq_len=3000),
    )),
    Structure("MultiQueryAttention", "attention", HIDDEN, (
        at("Falcon 7B", batch_size=1, seq_len=1024),
    )),
    Structure("BiasedQueryKeyValueAttention", "attention", HIDDEN, (
        at("Qwen2.5 0.5B", batch_size=8, seq_len=512),
        at("Qwen2 7B", 2, batch_size=2, seq_len=1024),
        at("Dream 7B", 4, batch_size=4, seq_len=600),
    )),
    Structure("QueryKeyNormAttention", "attention", HIDDEN, (
        at("Qwen3 0.6B", batch_size=4, seq_len=1024),
        at("Qwen3 4B", 2, batch_size=2, seq_len=900),
        at("Qwen3-30B-A3B", 2, batch_size=2, seq_len=1024),
    )),
    Structure("WideQueryKeyNormAttention", "attention", HIDDEN, (
        at("OLMo 2 1B", batch_size=2, seq_len=1024),
        at("OLMo 2 7B", 2, batch_size=2, seq_len=1500),
    )),
    Structure("AdjacentRotaryAttention", "attention", HIDDEN, (
        at("Command R+ 104B", 8, batch_size=2, seq_len=1024),
        at("Command R+ 104B", 4, batch_size=1, seq_len=700),
    )),
    Structure("PartialRotaryAttention", "attention", HIDDEN, (
        at("Pythia 410M", batch_size=8, seq_len=1024),
        at("GPT-NeoX 20B", 4, batch_size=2, seq_len=1400),
    )),
    Structure("ScaledRotaryAttention", "attention", HIDDEN, (
        at("Granite 3 2B", batch_size=2, seq_len=1024),
        at("Granite 3 8B", 2, batch_size=3, seq_len=777),
    )),
    Structure("ClippedAttention", "attention", HIDDEN, (at("DBRX", 4, batch_size=4, seq_len=1024),)),
    Structure("GatedAttention", "attention", HIDDEN, (
        at("Qwen3-Next 80B", batch_size=2, seq_len=1024, rotary_dim=64),
        at("Qwen3-Next 80B", 2, batch_size=5, seq_len=800, rotary_dim=64),
    )),
    Structure("DifferentialAttention", "attention", HIDDEN, (
        at("DIFF Transformer 3B", 2, batch_size=2, seq_len=1024),
    )),
    Structure("LogLengthAttention", "attention", HIDDEN, (at("Qwen 7B", 4, batch_size=4, seq_len=1500),)),
)  # fmt: skip

MASKED = (
    Structure("SlidingWindowAttention", "attention", HIDDEN, (
        at("Mistral 7B", 2, batch_size=2, seq_len=1024, window=256),
        at("Mistral Nemo 12B", 4, batch_size=2, seq_len=1500, window=512),
    )),
    Structure("BiasedWindowAttention", "attention", HIDDEN, (
        at("StarCoder2 3B", 2, batch_size=4, seq_len=1024, window=256),
    )),
    Structure("SoftCappedAttention", "attention", HIDDEN, (
        at("Gemma 2 2B", batch_size=2, seq_len=1024, window=512),
        at("Gemma 2 9B", 2, batch_size=2, seq_len=1200, window=300),
    )),
    Structure("SinkAttention", "attention", HIDDEN, (
        at("gpt-oss 20B", 2, batch_size=2, seq_len=1024, window=128),
        at("gpt-oss 20B", batch_size=1, seq_len=1500, window=128),
    )),
    Structure("NormedWindowAttention", "attention", HIDDEN, (
        at("Gemma 3 1B", batch_size=4, seq_len=1024, window=512),
        at("Gemma 3 4B", batch_size=2, seq_len=900, window=256),
    )),
    Structure("AlibiAttention", "attention", HIDDEN, (
        at("Bloom 560M", batch_size=4, seq_len=1024),
        at("Bloom 7B", 2, batch_size=2, seq_len=777),
    )),
    Structure("ClippedAlibiAttention", "attention", HIDDEN, (
        at("MPT 7B", 2, batch_size=2, seq_len=1024),
        at("MPT 7B", 4, batch_size=4, seq_len=900),
    )),
    Structure("RelativeBiasAttention", "attention", HIDDEN, (
        at("T5 large", batch_size=8, seq_len=512),
        at("Flan-T5 XL", batch_size=2, seq_len=600),
    )),
    Structure("BidirectionalRotaryAttention", "attention", HIDDEN, (
        at("LLaDA 8B", 2, batch_size=4, seq_len=512),
        at("LLaDA 8B", 4, batch_size=8, seq_len=333),
    )),
    Structure("BlockDiffusionAttention", "attention", HIDDEN, (
        at("SDAR 1.7B", batch_size=2, seq_len=1024, block_size=4),
        at("SDAR 4B", 2, batch_size=2, seq_len=1000, block_size=8),
        at("SDAR 8B", 2, batch_size=1, seq_len=1536, block_size=32),
    )),
    Structure("ChunkedAttention", "attention", HIDDEN, (
        at("Llama 4 Scout", 4, batch_size=2, seq_len=1024, chunk_size=256),
    )),
    Structure("TemperedAttention", "attention", HIDDEN, (at("Llama 4 Scout", 2, batch_size=2, seq_len=1024),)),
    Structure("PrefixAttention", "attention", HIDDEN, (
        at("PaliGemma 3B", batch_size=2, seq_len=768, prefix=256),
        at("GLM-130B", 8, batch_size=2, seq_len=1024, prefix=400),
    )),
    Structure("PackedAttention", "attention", (
        *HIDDEN, "torch.randint(0, 6, (batch_size, seq_len)).sort(dim=1).values",
    ), (
        at("Llama 3.2 1B", batch_size=2, seq_len=1024),
        at("SmolLM2 360M", batch_size=4, seq_len=900),
    )),
)  # fmt: skip

LATENT_V2 = {"kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}
LATENT = (
    Structure("LatentAttention", "attention", HIDDEN, (
        at("DeepSeek-V3", 8, batch_size=2, seq_len=1024, q_rank=768, **LATENT_V2),
        at("DeepSeek-V2", 8, batch_size=2, seq_len=900, q_rank=768, **LATENT_V2),
        at("Kimi Linear 48B", 2, batch_size=4, seq_len=512, q_rank=640, **LATENT_V2),
    )),
    Structure("LatentAttentionLite", "attention", HIDDEN, (
        at("DeepSeek-V2-Lite", batch_size=2, seq_len=1024, **LATENT_V2),
        at("DeepSeek-V2-Lite", 2, batch_size=8, seq_len=500, **LATENT_V2),
    )),
    Structure("LatentCompression", "attention", HIDDEN, (
        at("DeepSeek-V3", batch_size=1, seq_len=1024, kv_rank=512, rope_dim=64),
        at("DeepSeek-V2-Lite", batch_size=4, seq_len=1000, kv_rank=512, rope_dim=64),
    )),
    Structure("LightningIndexer", "attention", HIDDEN, (
        at("DeepSeek-V3", 4, batch_size=2, seq_len=1024, index_heads=16, index_dim=128),
    )),
    Structure("LatentDecode", "decode", (
        *TOKEN, "torch.randn(batch_size, seq_len, kv_rank)", "torch.randn(batch_size, seq_len, rope_dim)",
    ), (
        at("DeepSeek-V3", 4, batch_size=16, seq_len=2048, **LATENT_V2),
        at("DeepSeek-V2-Lite", batch_size=32, seq_len=1500, **LATENT_V2),
    )),
)  # fmt: skip

DECODE = (
    Structure("CachedDecode", "decode", ("torch.randn(batch_size, 1, hidden_size)", *CACHE), (
        at("Llama 3 8B", batch_size=16, seq_len=2048),
        at("Mistral 7B", 2, batch_size=32, seq_len=1500),
    )),
    Structure("NormedDecode", "decode", (
        *TOKEN, *("torch.randn(batch_size, seq_len, num_kv_heads, head_dim)",) * 2, LENGTHS,
    ), (
        at("Qwen3 4B", batch_size=16, seq_len=1024),
        at("Qwen3-30B-A3B", batch_size=32, seq_len=1333),
    )),
    Structure("MultiQueryDecode", "decode", (*TOKEN, "torch.randn(batch_size, seq_len, 2 * head_dim)"), (
        at("StarCoder 15B", 2, batch_size=32, seq_len=2048),
        at("StarCoder 15B", 4, batch_size=64, seq_len=1000),
    )),
    Structure("ChunkedPrefill", "decode", (
        *HIDDEN, *("torch.randn(batch_size, num_kv_heads, source_len, head_dim)",) * 2,
    ), (
        at("Qwen2.5 3B", batch_size=2, seq_len=256, source_len=2048),
        at("Qwen2 7B", 2, batch_size=4, seq_len=200, source_len=1000),
    )),
    Structure("PagedDecode", "decode", (
        "torch.randn(batch_size, num_heads, head_dim)", *PAGES,
        "torch.randint(0, num_pages, (batch_size, table_size))",
    ), (
        at("Llama 3 8B", batch_size=16, num_pages=2048, page_size=16, table_size=96),
        at("Qwen2.5 1.5B", batch_size=32, num_pages=4096, page_size=16, table_size=100),
    )),
    Structure("VerifyDrafts", "decode", (
        "torch.randn(batch_size, num_heads, drafts, head_dim)", *CACHE,
        "torch.randint(0, 2, (drafts, drafts)).float().tril(-1)",
    ), (
        at("Llama 3 8B", batch_size=8, seq_len=2048, drafts=8),
        at("Qwen3 8B", batch_size=4, seq_len=3000, drafts=24),
    )),
    Structure("QuantizedCacheDecode", "decode", (
        "torch.randn(batch_size, num_kv_heads, num_heads // num_kv_heads, head_dim)", INT8, SCALES, INT8, SCALES,
    ), (
        at("Llama 3 8B", batch_size=16, seq_len=2048),
        at("Qwen2 7B", batch_size=24, seq_len=3000),
    )),
    Structure("SoftCapCore", "attention", (QUERIES,) * 3, (
        at("Gemma 2 9B", batch_size=1, seq_len=1024),
        at("Gemma 2 2B", batch_size=4, seq_len=900),
    )),
    Structure("SinkCore", "attention", (QUERIES,) * 3, (at("gpt-oss 20B", batch_size=2, seq_len=1024),)),
    Structure("AlibiCore", "attention", (QUERIES,) * 3, (
        at("Bloom 7B", batch_size=1, seq_len=1024),
        at("MPT 7B", batch_size=2, seq_len=768),
    )),
    Structure("StackedQueryInput", "attention", HIDDEN, (
        at("Phi-3 mini", batch_size=1, seq_len=1024),
        at("Phi-4 14B", 2, batch_size=2, seq_len=777),
    )),
    Structure("AttentionOutput", "attention", (QUERIES, *HIDDEN), (
        at("Mistral 7B", batch_size=1, seq_len=1024),
        at("Llama 2 7B", batch_size=1, seq_len=900),
    )),
)  # fmt: skip

ENCODERS = (
    Structure("EncoderAttention", "attention", HIDDEN, (
        at("ViT-B/16", batch_size=32, seq_len=197),
        at("SigLIP so400m", batch_size=4, seq_len=729),
        at("ViT-L/14", batch_size=16, seq_len=257),
    )),
    Structure("PaddedAttention", "attention", (*HIDDEN, LENGTHS), (
        at("BERT base", batch_size=32, seq_len=128),
        at("RoBERTa large", batch_size=8, seq_len=500),
    )),
    Structure("AlternatingRotaryEncoder", "attention", HIDDEN, (
        at("ModernBERT base", batch_size=4, seq_len=1024, window=128),
        at("ModernBERT large", batch_size=2, seq_len=1500, window=128),
    )),
    Structure("CrossAttention", "cross-attention", ENCODED, (
        at("Whisper small", batch_size=8, seq_len=224, source_len=1500),
        at("Whisper large-v3", batch_size=2, seq_len=448, source_len=1500),
    )),
    Structure("GatedCrossAttention", "cross-attention", ENCODED, (
        at("Llama 3.2 11B Vision", 2, batch_size=2, seq_len=256, source_len=1601),
        at("Llama 3.2 11B Vision", 4, batch_size=4, seq_len=300, source_len=1025),
    )),
    Structure("RelativeCrossAttention", "cross-attention", ENCODED, (
        at("T5 base", batch_size=16, seq_len=114, source_len=512),
        at("Flan-T5 XL", batch_size=2, seq_len=256, source_len=1000),
    )),
    Structure("Resampler", "cross-attention", ("torch.randn(batch_size, source_len, hidden_size)",), (
        at("Flamingo 3B", batch_size=8, source_len=256, num_queries=64),
        at("Flamingo 3B", 2, batch_size=16, source_len=729, num_queries=128),
    )),
    Structure("AttentionPooling", "cross-attention", HIDDEN, (
        at("SigLIP so400m", batch_size=32, seq_len=729),
        at("SigLIP so400m", 2, batch_size=48, seq_len=577),
    )),
)  # fmt: skip

STRUCTURES = DENSE + MASKED + LATENT + DECODE + ENCODERS
