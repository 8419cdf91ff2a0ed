"""Tiny random models in the published layouts of the families of the paper's rows, with nano's tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dice.model.checkpoint import NANO_FOLDER, save_model
from dice.model.config import SDARConfig
from dice.model.sdar import SDAR
from tests.decode.diffusion_checkpoints import DREAM, LLADA, write_checkpoint

VOCABULARY, MASK, STOP, CONTEXT = 2048, 3, 2, 2048  # nano's tokenizer
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT,
    "bos_token_id": None, "eos_token_id": STOP, "pad_token_id": 0,
}  # fmt: skip
# Published layout -> the class of `transformers` that writes it, and what it is told beside the sizes.
BY_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {}),
    "qwen2": ("Qwen2", {}),
    "llama": ("Llama", {}),
    "stable-diffcoder": ("Llama", {"tie_word_embeddings": False}),
    "deepseek": ("Llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),  # of its 1.3B
    "gemma": ("Gemma2", {"query_pre_attn_scalar": 8}),
    "phi": ("Phi3", {}),
}


def write_stand_in(folder: Path, layout: str) -> None:
    """A checkpoint folder. `layout`: a family of `dice.model.family`, "deepseek", "gemma" or "phi"."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    if layout == "sdar":
        config = SDARConfig.from_file(NANO_FOLDER)
        small = replace(config, num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2)
        save_model(SDAR(small), small, folder)
    elif layout == "llada":
        rows = {"embedding_size": VOCABULARY, "vocab_size": VOCABULARY}
        write_checkpoint(folder, LLADA, mask_token_id=MASK, eos_token_id=STOP, max_sequence_length=CONTEXT, **rows)
    elif layout == "dream":
        limits = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT}
        write_checkpoint(folder, DREAM, mask_token_id=MASK, eos_token_id=STOP, **limits)
    else:
        _by_transformers(folder, layout)
    for name in TOKENIZER:
        shutil.copy(NANO_FOLDER / name, folder / name)


def _by_transformers(folder: Path, layout: str) -> None:
    import transformers

    kind, more = BY_TRANSFORMERS[layout]
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    if layout == "stable-diffcoder":
        written = json.loads((folder / "config.json").read_text())
        own = {"architectures": ["StableDiffcoderForCausalLM"], "mask_token_id": MASK}
        (folder / "config.json").write_text(json.dumps(written | own))
