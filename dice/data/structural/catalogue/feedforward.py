"""Feed-forward layers, routers and experts."""

from __future__ import annotations

from dice.data.structural.structure import Structure, at

HIDDEN = ("torch.randn(batch_size, seq_len, hidden_size)",)
PACKED = ("torch.randn(batch_size, seq_len, 2 * intermediate_size)",)
TOKENS = ("torch.randn(tokens, hidden_size)",)

MLP = (
    Structure("SwiGLU", "mlp", HIDDEN, (
        at("Llama 3 8B", 2, batch_size=1, seq_len=1024),
        at("Qwen2.5 0.5B", batch_size=8, seq_len=256),
        at("TinyLlama 1.1B", batch_size=4, seq_len=500),
        at("Mistral Nemo 12B", 4, batch_size=2, seq_len=777),
    )),
    Structure("PackedSwiGLU", "mlp", HIDDEN, (
        at("Phi-3 mini", 2, batch_size=2, seq_len=1024),
        at("Phi-4 14B", 4, batch_size=2, seq_len=900),
        at("GLM-4 9B", 4, batch_size=4, seq_len=512),
    )),
    Structure("GeGLU", "mlp", HIDDEN, (
        at("Gemma 2B", batch_size=1, seq_len=512),
        at("Gemma 2 2B", batch_size=2, seq_len=777),
        at("Gemma 3 1B", batch_size=4, seq_len=512),
    )),
    Structure("PackedGeGLU", "mlp", HIDDEN, (
        at("ModernBERT base", batch_size=16, seq_len=512),
        at("ModernBERT large", batch_size=8, seq_len=512),
    )),
    Structure("ReGLU", "mlp", HIDDEN, (at("T5 large", batch_size=8, seq_len=512),)),
    Structure("SigmoidGLU", "mlp", HIDDEN, (at("T5 base", batch_size=8, seq_len=512),)),
    Structure("TanhGELUMLP", "mlp", HIDDEN, (
        at("GPT-2", batch_size=8, seq_len=1024),
        at("StarCoder2 3B", 2, batch_size=2, seq_len=1000),
        at("GPT-J 6B", 4, batch_size=4, seq_len=512),
    )),
    Structure("GELUMLP", "mlp", HIDDEN, (
        at("Pythia 1.4B", batch_size=2, seq_len=1024),
        at("BERT large", batch_size=16, seq_len=384),
        at("Whisper medium", batch_size=2, seq_len=1500),
    )),
    Structure("QuickGELUMLP", "mlp", HIDDEN, (
        at("CLIP ViT-L/14 text", batch_size=64, seq_len=77),
        at("CLIP ViT-B/32 text", batch_size=128, seq_len=77),
    )),
    Structure("SquaredReLUMLP", "mlp", HIDDEN, (
        at("Nemotron 4 15B", 4, batch_size=2, seq_len=1024),
        at("Minitron 4B", 2, batch_size=2, seq_len=900),
    )),
    Structure("ReLUMLP", "mlp", HIDDEN, (
        at("OPT 1.3B", batch_size=2, seq_len=1024),
        at("OPT 6.7B", 4, batch_size=5, seq_len=400),
    )),
    Structure("ClampedSwiGLU", "mlp", HIDDEN, (
        at("gpt-oss 20B", batch_size=1, seq_len=1024),
        at("gpt-oss 20B", 2, batch_size=4, seq_len=700),
    )),
    Structure("ChannelMix", "mlp", HIDDEN, (
        at("RWKV-4 1.5B", batch_size=2, seq_len=1024),
        at("RWKV-6 1.6B", batch_size=3, seq_len=777),
    )),
    Structure("TrainableXIELUMLP", "mlp", HIDDEN, (at("Apertus 8B", 4, batch_size=2, seq_len=1024),)),
    Structure("PreNormSwiGLU", "mlp", HIDDEN, (
        at("Llama 2 7B", 4, batch_size=2, seq_len=1024),
        at("Granite 3 8B", 4, batch_size=4, seq_len=600),
    )),
    Structure("SandwichedGeGLU", "mlp", HIDDEN, (
        at("Gemma 2 9B", 4, batch_size=2, seq_len=1024),
        at("Gemma 3 4B", 2, batch_size=2, seq_len=900),
    )),
    Structure("LowRankSwiGLU", "mlp", HIDDEN, (
        at("Llama 3.2 1B", batch_size=1, seq_len=1024, rank=16),
        at("Qwen3 0.6B", batch_size=4, seq_len=800, rank=64),
    )),
    Structure("QuantizedLinear", "mlp", HIDDEN, (
        at("Llama 3 8B", batch_size=1, seq_len=64, group_size=128),
        at("Qwen2.5 1.5B", batch_size=4, seq_len=100, group_size=64),
    )),
    Structure("SiluAndMul", "activation", PACKED, (
        at("Llama 3 8B", batch_size=1, seq_len=2048),
        at("Qwen2.5 0.5B", batch_size=4, seq_len=1000),
        at("DeepSeek-V2-Lite", batch_size=2, seq_len=1024),
    )),
    Structure("GeluTanhAndMul", "activation", PACKED, (
        at("Gemma 2B", batch_size=1, seq_len=1024),
        at("Gemma 3 1B", batch_size=4, seq_len=900),
    )),
    Structure("ClampedSwiGLUActivation", "activation", PACKED, (at("gpt-oss 20B", batch_size=4, seq_len=1024),)),
)  # fmt: skip

GROUPS = {"num_groups": 8, "top_groups": 4}
ROUTING = (
    Structure("SoftmaxRouter", "routing", TOKENS, (
        at("Mixtral 8x7B", tokens=4096, num_experts=8, top_k=2),
        at("Qwen3-30B-A3B", tokens=8192, num_experts=128, top_k=8),
    )),
    Structure("RawSoftmaxRouter", "routing", TOKENS, (
        at("OLMoE 7B", tokens=8192, num_experts=64, top_k=8),
        at("DeepSeek-V2-Lite", tokens=5000, num_experts=64, top_k=6),
    )),
    Structure("TopKThenSoftmaxRouter", "routing", TOKENS, (
        at("gpt-oss 20B", tokens=4096, num_experts=32, top_k=4),
        at("gpt-oss 20B", 2, tokens=10000, num_experts=32, top_k=4),
    )),
    Structure("GroupLimitedRouter", "routing", TOKENS, (
        at("DeepSeek-V2", tokens=4096, num_experts=80, top_k=6, num_groups=8, top_groups=3),
    )),
    Structure("BiasedSigmoidRouter", "routing", TOKENS, (
        at("DeepSeek-V3", 2, tokens=4096, num_experts=128, top_k=8, **GROUPS),
        at("Kimi Linear 48B", tokens=5000, num_experts=64, top_k=8, **GROUPS),
    )),
    Structure("CapacityRouter", "routing", ("torch.randn(batch_size, seq_len, hidden_size)",), (
        at("Switch base", batch_size=16, seq_len=512, num_experts=8),
        at("Switch large", batch_size=8, seq_len=1000, num_experts=8),
    ), {"num_experts": 4}),
    Structure("TwoChoiceRouter", "routing", TOKENS, (
        at("GShard 600B", tokens=8192, num_experts=16),
    ), {"num_experts": 4}),
    Structure("ExpertChoiceRouter", "routing", TOKENS, (at("GShard 600B", tokens=8192, num_experts=16),)),
    Structure("SigmoidTopOneRouter", "routing", TOKENS, (at("Llama 4 Scout", tokens=4096, num_experts=16),)),
    Structure("SoftDispatch", "routing", ("torch.randn(batch_size, seq_len, hidden_size)",), (
        at("ViT-B/16", batch_size=32, seq_len=196, num_slots=128),
        at("ViT-L/14", batch_size=16, seq_len=256, num_slots=256),
    )),
)  # fmt: skip

EXPERTS = (
    Structure("SparseMixture", "experts", TOKENS, (
        at("Mixtral 8x7B", 4, tokens=2048, expert_size=3584, num_experts=8, top_k=2),
        at("OLMoE 7B", 2, tokens=2048, expert_size=512, num_experts=32, top_k=8),
    )),
    Structure("SharedExpertMixture", "experts", TOKENS, (
        at("Qwen1.5-MoE A2.7B", 2, tokens=2048, expert_size=704, shared_size=2816, num_experts=16, top_k=4),
    )),
    Structure("FineGrainedMixture", "experts", TOKENS, (
        at("DeepSeek-V3", 8, tokens=1024, expert_size=256, num_experts=32, top_k=8, num_groups=8, top_groups=4),
        at("DeepSeek-V2-Lite", 2, tokens=700, expert_size=352, num_experts=16, top_k=6, num_groups=4, top_groups=2),
    )),
    Structure("ClampedMixture", "experts", TOKENS, (
        at("gpt-oss 20B", 2, tokens=512, expert_size=1440, num_experts=16, top_k=4),
        at("gpt-oss 20B", 4, tokens=1000, expert_size=720, num_experts=32, top_k=4),
    )),
    Structure("TopOneMixture", "experts", TOKENS, (
        at("Llama 4 Scout", 4, tokens=2048, expert_size=2048, num_experts=16),
    )),
    Structure("CapacityMixture", "experts", TOKENS, (
        at("Switch base", tokens=2048, expert_size=3072, num_experts=16, capacity=160),
        at("Switch large", tokens=1500, expert_size=4096, num_experts=16, capacity=120),
    )),
    Structure("SortedExperts", "experts", (*TOKENS, "torch.randperm(tokens)"), (
        at("Mixtral 8x7B", 4, tokens=2048, expert_size=3584, num_experts=8),
        at("Qwen3-30B-A3B", 2, tokens=4096, expert_size=384, num_experts=64),
    )),
    Structure("GatherExperts", "experts", TOKENS, (
        at("Qwen3-30B-A3B", 2, tokens=16, expert_size=768, num_experts=64, top_k=8),
        at("Mixtral 8x7B", 4, tokens=8, expert_size=3584, num_experts=8, top_k=2),
    ), {"tokens": 6}),
    Structure("CombineExperts", "experts", (
        "torch.randn(tokens * top_k, hidden_size)", "torch.randperm(tokens * top_k)",
        "torch.randn(tokens, top_k)", *TOKENS,
    ), (
        at("DeepSeek-V3", 2, tokens=2048, top_k=8),
        at("Mixtral 8x7B", tokens=2000, top_k=2),
    )),
    Structure("DispatchTokens", "experts", TOKENS, (
        at("Llama 4 Scout", 2, tokens=4096, num_experts=16),
        at("Switch base", tokens=10000, num_experts=32),
    )),
)  # fmt: skip

STRUCTURES = MLP + ROUTING + EXPERTS
