"""Short convolutions, state spaces and linear attention."""

from __future__ import annotations

from dice.data.structural.structure import Structure, at

HIDDEN = ("torch.randn(batch_size, seq_len, hidden_size)",)
INNER = ("torch.randn(batch_size, seq_len, intermediate_size)",)
STATES = ("torch.randn(batch_size, seq_len, state_size)",) * 2
HEADS = "torch.randn(batch_size, num_heads, seq_len, head_dim)"
IN_HEADS = "torch.randn(batch_size, seq_len, num_heads, head_dim)"
RATES = "torch.randn(batch_size, seq_len, num_heads)"
ONE = "torch.randn(batch_size, num_heads, head_dim)"
CHANNELS = "torch.randn(batch_size, hidden_size, seq_len)"

CONVOLUTIONS = (
    Structure("CausalConv", "convolution", INNER, (
        at("Mamba 1.4B", batch_size=4, seq_len=1024, kernel_size=4),
        at("Mamba 2 780M", batch_size=3, seq_len=1500, kernel_size=4),
    )),
    Structure("GatedShortConv", "convolution", HIDDEN, (
        at("LFM2 1.2B", batch_size=2, seq_len=1024, kernel_size=3),
        at("LFM2 350M", batch_size=5, seq_len=777, kernel_size=3),
    )),
    Structure("ShiftedConv", "convolution", HIDDEN, (
        at("DeltaNet 1.3B", batch_size=4, seq_len=1024, kernel_size=4),
        at("Kimi Linear 48B", batch_size=2, seq_len=1500, kernel_size=4),
    )),
    Structure("ConvStep", "convolution", (
        "torch.randn(batch_size, intermediate_size)", "torch.randn(batch_size, intermediate_size, kernel_size)",
    ), (
        at("Mamba 1.4B", batch_size=512, kernel_size=4),
        at("Falcon Mamba 7B", batch_size=300, kernel_size=4),
    )),
    Structure("TokenShift", "convolution", HIDDEN, (
        at("RWKV-6 1.6B", batch_size=4, seq_len=1024),
        at("RWKV-7 1.5B", batch_size=3, seq_len=900),
    )),
    Structure("LongConv", "convolution", (CHANNELS,) * 2, (at("Hyena 355M", batch_size=8, seq_len=1024),)),
    Structure("DiagonalSpace", "state-space", (CHANNELS,), (
        at("Hyena 355M", batch_size=8, seq_len=1024, state_size=32),
    )),
)  # fmt: skip

STATE_SPACES = (
    Structure("SelectiveScan", "state-space", (*INNER * 2, *STATES), (
        at("Mamba 370M", batch_size=8, seq_len=128, state_size=16),
        at("Mamba 1.4B", batch_size=8, seq_len=100, state_size=16),
    )),
    Structure("SelectiveMixer", "state-space", HIDDEN, (
        at("Mamba 370M", batch_size=8, seq_len=128, state_size=16, step_rank=64),
        at("Mamba 1.4B", 2, batch_size=8, seq_len=100, state_size=16, step_rank=64),
    )),
    Structure("SelectiveStep", "state-space", (
        "torch.randn(batch_size, intermediate_size, state_size)", *("torch.randn(batch_size, intermediate_size)",) * 2,
        *("torch.randn(batch_size, state_size)",) * 2,
    ), (
        at("Mamba 1.4B", batch_size=128, state_size=16),
        at("Falcon Mamba 7B", batch_size=64, state_size=16),
    )),
    Structure("HeadScan", "state-space", (
        IN_HEADS, RATES, *STATES, "torch.randn(batch_size, num_heads, head_dim, state_size)",
    ), (
        at("Mamba 2 780M", batch_size=4, seq_len=100, state_size=128),
        at("Mamba 2 1.3B", 2, batch_size=8, seq_len=128, state_size=64),
    )),
    Structure("ChunkedDual", "state-space", (IN_HEADS, RATES, *STATES), (
        at("Mamba 2 1.3B", batch_size=2, seq_len=1024, state_size=128, chunk_size=128),
        at("Nemotron-H 8B", batch_size=1, seq_len=1024, num_heads=128, head_dim=64, state_size=128, chunk_size=64),
    )),
    Structure("DualMixer", "state-space", HIDDEN, (
        at("Mamba 2 780M", 2, batch_size=8, seq_len=100, state_size=128),
        at("Mamba 2 1.3B", 2, batch_size=4, seq_len=128, state_size=64),
    )),
    Structure("RealGatedRecurrence", "state-space", HIDDEN, (
        at("RecurrentGemma 2B", batch_size=8, seq_len=128),
        at("RecurrentGemma 2B", 2, batch_size=16, seq_len=100),
    )),
)  # fmt: skip

LINEAR = (
    Structure("FeatureMapAttention", "linear-attention", HIDDEN, (
        at("Linear Transformer", batch_size=8, seq_len=512),
    )),
    Structure("FeatureMapScan", "linear-attention", (HEADS,) * 3, (
        at("Linear Transformer", batch_size=8, seq_len=1024, chunk_size=64),
    )),
    Structure("ParallelRetention", "linear-attention", HIDDEN, (
        at("RetNet 1.3B", batch_size=2, seq_len=1024),
        at("RetNet 1.3B", 2, batch_size=4, seq_len=777),
    )),
    Structure("RecurrentRetention", "linear-attention", (HEADS,) * 3, (at("RetNet 1.3B", batch_size=8, seq_len=128),)),
    Structure("LightningAttention", "linear-attention", (HEADS,) * 3, (
        at("MiniMax-Text-01", batch_size=1, seq_len=2048, chunk_size=256, head_dim=96),
        at("MiniMax-Text-01", 4, batch_size=2, seq_len=1536, chunk_size=128),
    )),
    Structure("GatedLinearAttention", "linear-attention", (HEADS,) * 4, (
        at("GLA 1.3B", batch_size=4, seq_len=128, head_dim=256),
        at("GLA 1.3B", 2, batch_size=48, seq_len=100, head_dim=128),
    )),
    Structure("DeltaRule", "linear-attention", (*(HEADS,) * 3, "torch.randn(batch_size, num_heads, seq_len)"), (
        at("DeltaNet 1.3B", batch_size=8, seq_len=100),
    )),
    Structure("GatedDeltaRule", "linear-attention", (*(IN_HEADS,) * 3, RATES, RATES), (
        at("Qwen3-Next 80B", batch_size=4, seq_len=100, num_heads=32, head_dim=128),
        at("Qwen3-Next 80B", 2, batch_size=8, seq_len=75, num_heads=16, head_dim=128),
    )),
    Structure("ChannelDeltaStep", "linear-attention", (
        "torch.randn(batch_size, num_heads, head_dim, head_dim)", *(ONE,) * 4, "torch.randn(batch_size, num_heads, 1)",
    ), (
        at("Kimi Linear 48B", batch_size=32),
        at("Kimi Linear 48B", 2, batch_size=50),
    )),
    Structure("WeightedKeyValue", "linear-attention", HIDDEN * 2, (
        at("RWKV-4 1.5B", batch_size=20, seq_len=100),
        at("RWKV-4 1.5B", 2, batch_size=48, seq_len=90),
    )),
    Structure("MatrixValuedState", "linear-attention", (HEADS,) * 4, (
        at("RWKV-6 1.6B", batch_size=8, seq_len=128),
        at("RWKV-6 1.6B", 2, batch_size=16, seq_len=100),
    )),
    Structure("GeneralisedDelta", "linear-attention", HIDDEN * 5, (at("RWKV-7 1.5B", batch_size=8, seq_len=100),)),
    Structure("ExponentialMemory", "linear-attention", (
        *(HEADS,) * 3, *("torch.randn(batch_size, num_heads, seq_len)",) * 2,
    ), (
        at("xLSTM 7B", batch_size=1, seq_len=1024, head_dim=256),
        at("xLSTM 7B", 2, batch_size=4, seq_len=700, head_dim=256),
    )),
    Structure("DeltaLayer", "linear-attention", HIDDEN, (at("DeltaNet 1.3B", 2, batch_size=8, seq_len=100),)),
)  # fmt: skip

STRUCTURES = CONVOLUTIONS + STATE_SPACES + LINEAR
