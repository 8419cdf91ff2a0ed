"""Embeddings, logits and losses."""

from __future__ import annotations

from dice.data.structural.structure import Structure, at

IDS = "torch.randint(0, vocab_size, (batch_size, seq_len))"
HIDDEN = ("torch.randn(batch_size, seq_len, hidden_size)",)
VECTORS = ("torch.randn(batch_size, hidden_size)",)
LOGITS = "torch.randn(batch_size, seq_len, vocab_size)"
FLAT = "2 * torch.randn(tokens, vocab_size)"
TARGETS = "torch.randint(0, vocab_size, (tokens,))"

EMBEDDINGS = (
    Structure("ScaledEmbedding", "embedding", (IDS,), (
        at("Gemma 2B", batch_size=4, seq_len=1024, vocab_size=32000),
        at("Gemma 3 1B", batch_size=8, seq_len=777, vocab_size=65536),
    )),
    Structure("PositionEmbedding", "embedding", (IDS,), (
        at("GPT-2", batch_size=16, seq_len=1024, max_positions=1024),
        at("OPT 1.3B", batch_size=4, seq_len=1000, max_positions=2048),
    )),
    Structure("SegmentEmbedding", "embedding", (IDS, "torch.randint(0, 2, (batch_size, seq_len))"), (
        at("BERT base", batch_size=64, seq_len=384, max_positions=512),
        at("BERT large", batch_size=32, seq_len=500, max_positions=512),
    )),
    Structure("NormedEmbedding", "embedding", (IDS,), (
        at("Bloom 560M", batch_size=8, seq_len=1024, vocab_size=50176),
        at("ModernBERT base", batch_size=16, seq_len=512),
    )),
    Structure("PatchEmbedding", "embedding", ("torch.randn(batch_size, 3, image_size, image_size)",), (
        at("ViT-B/16", batch_size=32, image_size=224, patch_size=16),
        at("DINOv2 large", batch_size=16, image_size=224, patch_size=14),
    )),
    Structure("AudioStem", "embedding", ("torch.randn(batch_size, num_mels, 2 * max_positions)",), (
        at("Whisper small", batch_size=8, num_mels=80, max_positions=1500),
        at("Whisper large-v3", batch_size=4, num_mels=128, max_positions=1500),
    )),
)  # fmt: skip

HEADS = (
    Structure("NormedHead", "logits", HIDDEN, (
        at("Llama 3.2 1B", batch_size=2, seq_len=256, vocab_size=32064),
        at("Qwen2.5 0.5B", batch_size=4, seq_len=200, vocab_size=37984),
        at("SmolLM2 360M", batch_size=2, seq_len=512),
    )),
    Structure("SoftCappedHead", "logits", HIDDEN, (
        at("Gemma 2 2B", 2, batch_size=2, seq_len=256, vocab_size=64000),
        at("Gemma 2 9B", 4, batch_size=1, seq_len=500, vocab_size=32000),
    )),
    Structure("ScaledHead", "logits", HIDDEN, (
        at("Command R7B", 4, batch_size=2, seq_len=256, vocab_size=64000),
        at("Command R", 8, batch_size=3, seq_len=300, vocab_size=32000),
    )),
    Structure("TransformHead", "logits", HIDDEN, (
        at("BERT base", batch_size=16, seq_len=64),
        at("RoBERTa large", batch_size=8, seq_len=100),
    )),
    Structure("LastTokenHead", "logits", (*HIDDEN, "torch.randint(1, seq_len + 1, (batch_size,))"), (
        at("Mistral 7B", 2, batch_size=64, seq_len=128),
        at("GPT-2 XL", batch_size=48, seq_len=100),
    )),
    Structure("FutureTokenHead", "logits", (*HIDDEN, IDS), (
        at("DeepSeek-V3", 4, batch_size=2, seq_len=512, vocab_size=32320),
        at("DeepSeek-V3", 8, batch_size=4, seq_len=777, vocab_size=32320),
    )),
    Structure("ContrastiveHead", "logits", VECTORS * 2, (
        at("CLIP ViT-L/14 text", batch_size=4096, projection_size=768),
        at("SigLIP so400m", batch_size=2000, projection_size=1152),
    ), {"batch_size": 8}),
)  # fmt: skip

LOSSES = (
    Structure("TokenLoss", "loss", (FLAT, TARGETS), (
        at("OLMo 7B", tokens=2048),
        at("Llama 2 7B", tokens=1500),
    )),
    Structure("LinearTokenLoss", "loss", (*HIDDEN, IDS), (
        at("Llama 3.2 1B", batch_size=2, seq_len=512, vocab_size=32064),
        at("Qwen3 0.6B", batch_size=4, seq_len=300, vocab_size=37984),
    )),
    Structure("SmoothedLoss", "loss", (FLAT, TARGETS), (
        at("T5 base", tokens=2048),
        at("Whisper small", tokens=1000),
    )),
    Structure("DistillationLoss", "loss", ("3 * torch.randn(tokens, vocab_size)",) * 2, (
        at("Minitron 4B", tokens=512, vocab_size=64000),
        at("Gemma 2 2B", tokens=300, vocab_size=128000),
    )),
    Structure("MaskedDiffusionLoss", "loss", (LOGITS, "torch.randint(0, mask_id + 1, (batch_size, seq_len))", IDS), (
        at("LLaDA 8B", batch_size=4, seq_len=256, vocab_size=31616, mask_id=2),
        at("Dream 7B", batch_size=2, seq_len=500, vocab_size=37984, mask_id=4),
        at("SDAR 1.7B", batch_size=8, seq_len=128, vocab_size=37984, mask_id=3),
    )),
    Structure("PolicyLoss", "loss", (
        LOGITS, IDS, "torch.randn(batch_size, seq_len) - 8.0", "torch.randn(batch_size)",
    ), (
        at("Qwen2.5 1.5B", batch_size=4, seq_len=256, vocab_size=37984),
        at("Llama 3.2 3B", batch_size=2, seq_len=500, vocab_size=32064),
    )),
    Structure("ConfidenceHead", "loss", ("4 * torch.randn(batch_size, seq_len, vocab_size)",), (
        at("LLaDA 8B", batch_size=4, seq_len=128, vocab_size=126464),
        at("SDAR 8B", batch_size=16, seq_len=32, vocab_size=151936),
    )),
)  # fmt: skip

STRUCTURES = EMBEDDINGS + HEADS + LOSSES
