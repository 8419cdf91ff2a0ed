"""Dimensions of published language models, as their configurations state them, and problems' share of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

# name -> (hidden, intermediate, query heads, key-value heads, head dimension, vocabulary)
PUBLISHED: dict[str, tuple[int, int, int, int, int, int]] = {
    "Llama 2 7B": (4096, 11008, 32, 32, 128, 32000),
    "Llama 2 70B": (8192, 28672, 64, 8, 128, 32000),
    "Llama 3 8B": (4096, 14336, 32, 8, 128, 128256),
    "Llama 3.2 1B": (2048, 8192, 32, 8, 64, 128256),
    "Llama 3.2 3B": (3072, 8192, 24, 8, 128, 128256),
    "Llama 4 Scout": (5120, 8192, 40, 8, 128, 202048),
    "TinyLlama 1.1B": (2048, 5632, 32, 4, 64, 32000),
    "SmolLM2 360M": (960, 2560, 15, 5, 64, 49152),
    "Mistral 7B": (4096, 14336, 32, 8, 128, 32000),
    "Mistral Nemo 12B": (5120, 14336, 32, 8, 128, 131072),
    "Mixtral 8x7B": (4096, 14336, 32, 8, 128, 32000),
    "Qwen 7B": (4096, 11008, 32, 32, 128, 151936),
    "Qwen1.5-MoE A2.7B": (2048, 5632, 16, 16, 128, 151936),
    "Qwen2 7B": (3584, 18944, 28, 4, 128, 152064),
    "Qwen2.5 0.5B": (896, 4864, 14, 2, 64, 151936),
    "Qwen2.5 1.5B": (1536, 8960, 12, 2, 128, 151936),
    "Qwen2.5 3B": (2048, 11008, 16, 2, 128, 151936),
    "Qwen2-VL 2B": (1536, 8960, 12, 2, 128, 151936),
    "Qwen2-VL 7B": (3584, 18944, 28, 4, 128, 152064),
    "Qwen3 0.6B": (1024, 3072, 16, 8, 128, 151936),
    "Qwen3 4B": (2560, 9728, 32, 8, 128, 151936),
    "Qwen3 8B": (4096, 12288, 32, 8, 128, 151936),
    "Qwen3-30B-A3B": (2048, 6144, 32, 4, 128, 151936),
    "Qwen3-Next 80B": (2048, 5120, 16, 2, 256, 151936),
    "Gemma 2B": (2048, 16384, 8, 1, 256, 256000),
    "Gemma 7B": (3072, 24576, 16, 16, 256, 256000),
    "Gemma 2 2B": (2304, 9216, 8, 4, 256, 256000),
    "Gemma 2 9B": (3584, 14336, 16, 8, 256, 256000),
    "Gemma 3 1B": (1152, 6912, 4, 1, 256, 262144),
    "Gemma 3 4B": (2560, 10240, 8, 4, 256, 262208),
    "PaliGemma 3B": (2048, 16384, 8, 1, 256, 257216),
    "Phi-2": (2560, 10240, 32, 32, 80, 51200),
    "Phi-3 mini": (3072, 8192, 32, 32, 96, 32064),
    "Phi-4 14B": (5120, 17920, 40, 10, 128, 100352),
    "DeepSeek-V2-Lite": (2048, 10944, 16, 16, 192, 102400),
    "DeepSeek-V2": (5120, 12288, 128, 128, 192, 102400),
    "DeepSeek-V3": (7168, 18432, 128, 128, 192, 129280),
    "OLMo 7B": (4096, 11008, 32, 32, 128, 50304),
    "OLMo 2 1B": (2048, 8192, 16, 16, 128, 100352),
    "OLMo 2 7B": (4096, 11008, 32, 32, 128, 100352),
    "OLMoE 7B": (2048, 1024, 16, 16, 128, 50304),
    "GPT-2": (768, 3072, 12, 12, 64, 50257),
    "GPT-2 XL": (1600, 6400, 25, 25, 64, 50257),
    "GPT-J 6B": (4096, 16384, 16, 16, 256, 50400),
    "GPT-NeoX 20B": (6144, 24576, 64, 64, 96, 50432),
    "Pythia 410M": (1024, 4096, 16, 16, 64, 50304),
    "Pythia 1.4B": (2048, 8192, 16, 16, 128, 50304),
    "StableLM 2 1.6B": (2048, 5632, 32, 32, 64, 100352),
    "Falcon 7B": (4544, 18176, 71, 1, 64, 65024),
    "Falcon 40B": (8192, 32768, 128, 8, 64, 65024),
    "MPT 7B": (4096, 16384, 32, 32, 128, 50432),
    "DBRX": (6144, 10752, 48, 8, 128, 100352),
    "Bloom 560M": (1024, 4096, 16, 16, 64, 250880),
    "Bloom 7B": (4096, 16384, 32, 32, 128, 250880),
    "StarCoder 15B": (6144, 24576, 48, 1, 128, 49152),
    "StarCoder2 3B": (3072, 12288, 24, 2, 128, 49152),
    "StarCoder2 7B": (4608, 18432, 36, 4, 128, 49152),
    "Command R": (8192, 22528, 64, 8, 128, 256000),
    "Command R+ 104B": (12288, 33792, 96, 8, 128, 256000),
    "Command R7B": (4096, 14336, 32, 8, 128, 256000),
    "Granite 3 2B": (2048, 8192, 32, 8, 64, 49155),
    "Granite 3 8B": (4096, 12800, 32, 8, 128, 49155),
    "Nemotron 4 15B": (6144, 24576, 48, 8, 128, 256000),
    "Minitron 4B": (3072, 9216, 24, 8, 128, 256000),
    "Apertus 8B": (4096, 21504, 32, 8, 128, 131072),
    "OPT 1.3B": (2048, 8192, 32, 32, 64, 50272),
    "OPT 6.7B": (4096, 16384, 32, 32, 128, 50272),
    "GLM-130B": (12288, 32768, 96, 96, 128, 150528),
    "GLM-4 9B": (4096, 13696, 32, 2, 128, 151552),
    "gpt-oss 20B": (2880, 2880, 64, 8, 64, 201088),
    "DIFF Transformer 3B": (3072, 8192, 24, 24, 128, 32000),
    "LLaDA 8B": (4096, 12288, 32, 32, 128, 126464),
    "Dream 7B": (3584, 18944, 28, 4, 128, 152064),
    "SDAR 1.7B": (2048, 6144, 16, 8, 128, 151936),
    "SDAR 4B": (2560, 9728, 32, 8, 128, 151936),
    "SDAR 8B": (4096, 12288, 32, 8, 128, 151936),
    "RWKV-4 1.5B": (2048, 8192, 32, 32, 64, 50277),
    "RWKV-6 1.6B": (2048, 7168, 32, 32, 64, 65536),
    "RWKV-7 1.5B": (2048, 8192, 32, 32, 64, 65536),
    "T5 base": (768, 3072, 12, 12, 64, 32128),
    "T5 large": (1024, 4096, 16, 16, 64, 32128),
    "Flan-T5 XL": (2048, 5120, 32, 32, 64, 32128),
    "BERT base": (768, 3072, 12, 12, 64, 30522),
    "BERT large": (1024, 4096, 16, 16, 64, 30522),
    "RoBERTa large": (1024, 4096, 16, 16, 64, 50265),
    "ModernBERT base": (768, 1152, 12, 12, 64, 50368),
    "ModernBERT large": (1024, 2624, 16, 16, 64, 50368),
    "ViT-B/16": (768, 3072, 12, 12, 64, 1000),
    "ViT-L/14": (1024, 4096, 16, 16, 64, 1000),
    "DINOv2 base": (768, 3072, 12, 12, 64, 1000),
    "DINOv2 large": (1024, 4096, 16, 16, 64, 1000),
    "SigLIP so400m": (1152, 4304, 16, 16, 72, 32000),
    "CLIP ViT-L/14 text": (768, 3072, 12, 12, 64, 49408),
    "CLIP ViT-B/32 text": (512, 2048, 8, 8, 64, 49408),
    "Whisper small": (768, 3072, 12, 12, 64, 51865),
    "Whisper medium": (1024, 4096, 16, 16, 64, 51865),
    "Whisper large-v3": (1280, 5120, 20, 20, 64, 51866),
    "Llama 3.2 11B Vision": (4096, 14336, 32, 8, 128, 128256),
    "Flamingo 3B": (2048, 8192, 16, 16, 128, 50432),
    "DiT-XL/2": (1152, 4608, 16, 16, 72, 1000),
    "DiT-L/2": (1024, 4096, 16, 16, 64, 1000),
    "RecurrentGemma 2B": (2560, 7680, 10, 1, 256, 256000),
    "Mamba 1.4B": (2048, 4096, 1, 1, 64, 50280),
    "Mamba 370M": (1024, 2048, 1, 1, 64, 50280),
    "Falcon Mamba 7B": (4096, 8192, 1, 1, 64, 65024),
    "Mamba 2 1.3B": (2048, 4096, 64, 1, 64, 50288),
    "Mamba 2 780M": (1536, 3072, 48, 1, 64, 50288),
    "Nemotron-H 8B": (4096, 21504, 32, 8, 128, 131072),
    "LFM2 1.2B": (2048, 8192, 32, 8, 64, 65536),
    "LFM2 350M": (1024, 4608, 16, 8, 64, 65536),
    "RetNet 1.3B": (2048, 4096, 8, 8, 256, 50257),
    "GLA 1.3B": (2048, 5632, 4, 4, 512, 32000),
    "DeltaNet 1.3B": (2048, 5632, 16, 16, 128, 32000),
    "MiniMax-Text-01": (6144, 9216, 64, 8, 128, 200064),
    "Kimi Linear 48B": (2304, 9216, 32, 32, 128, 163840),
    "xLSTM 7B": (4096, 10944, 8, 8, 512, 50304),
    "Hyena 355M": (1024, 4096, 16, 16, 64, 50257),
    "Switch base": (768, 3072, 12, 12, 64, 32128),
    "Switch large": (1024, 4096, 16, 16, 64, 32128),
    "GShard 600B": (1024, 8192, 16, 16, 64, 64000),
    "Linear Transformer": (1024, 4096, 16, 16, 64, 50257),
}


def family_of(model: str) -> str:
    """`Llama 3.2 1B` -> `Llama 3.2`: the name without its size."""
    words = model.split()
    while len(words) > 1 and (words[-1] in _SIZES or re.fullmatch(r"[\d.]+[BM]", words[-1])):
        words.pop()
    return _FAMILIES.get(model, " ".join(words))


_SIZES = ("mini", "base", "large", "small", "medium", "large-v3", "so400m", "Scout", "Mini", "8x7B")
_FAMILIES = {
    "GPT-2 XL": "GPT-2",
    "Pythia 410M": "GPT-NeoX",
    "Pythia 1.4B": "GPT-NeoX",
    "Qwen3-30B-A3B": "Qwen3-MoE",
    "ViT-B/16": "ViT",
    "ViT-L/14": "ViT",
    "CLIP ViT-L/14 text": "CLIP",
    "CLIP ViT-B/32 text": "CLIP",
    "DiT-XL/2": "DiT",
    "DiT-L/2": "DiT",
    "Llama 2 7B": "Llama 2",
    "GLM-130B": "GLM",
    "GLM-4 9B": "GLM-4",
    "DeepSeek-V2-Lite": "DeepSeek-V2",
    "Flan-T5 XL": "T5",
    "Llama 3.2 11B Vision": "Llama 3.2 Vision",
    "Qwen3-Next 80B": "Qwen3-Next",
    "MiniMax-Text-01": "MiniMax",
    "Switch base": "Switch Transformer",
    "Switch large": "Switch Transformer",
    "Qwen1.5-MoE A2.7B": "Qwen1.5-MoE",
    "Command R+ 104B": "Command R+",
    "Mamba 370M": "Mamba",
    "Command R7B": "Command R",
    "Falcon Mamba 7B": "Mamba",
}


@dataclass(frozen=True, slots=True)
class Mirror:
    """A published model at a part of its width. `part`: widths and heads are divided by it, head dimensions kept."""

    model: str
    part: int

    @property
    def family(self) -> str:
        return family_of(self.model)

    def sizes(self) -> dict[str, int]:
        hidden, intermediate, heads, kv_heads, head_dim, vocabulary = PUBLISHED[self.model]
        return {
            "hidden_size": hidden // self.part,
            "intermediate_size": intermediate // self.part,
            "num_heads": max(1, heads // self.part),
            "num_kv_heads": max(1, kv_heads // self.part),
            "head_dim": head_dim,
            "vocab_size": vocabulary,
        }

    def describe(self) -> str:
        if self.part == 1:
            return f"Mirrors {self.model}, at its full width."
        return f"Mirrors {self.model}, at 1/{self.part} of its width."
