"""Small autoregressive models as `transformers` writes them, their tokenizers, and the same as GGUF files.

The files are written as llama.cpp's converter writes them, from the published description of the format: it keeps
Llama's queries and keys with the two halves of each head in turn, and the stretch of Llama 3 as divisors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from dice.model.chatml import CHAT_TEMPLATE

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 6, "rms_norm_eps": 1e-5}),
    "llama 3": ("Llama", {"tie_word_embeddings": False, "head_dim": 16, "rope_parameters": LLAMA3_ROPE}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": False, "head_dim": 16}),
    "qwen3 tied": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
}
SIZES: dict[str, Any] = {
    "vocab_size": 330,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
TEXTS = ["int i = blockIdx.x * 256;\n  x[i] += it's 12345;"] * 40
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# How Qwen2 cuts texts into words; what llama.cpp calls `qwen2`.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def published(name: str, folder: Path, **changes: Any) -> Any:
    """A small lively model of `transformers` in float32, saved by it into `folder`."""
    import transformers

    kind, settings = PUBLISHED[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.uniform_(0.5, 1.5) if key.endswith("norm.weight") else weight.normal_(0, 0.1)
    model.save_pretrained(folder)
    return model


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 320, (rows, length), generator=torch.Generator().manual_seed(1))


def add_tokenizer(
    folder: Path, *, extra: Sequence[str] = (), template: str | None = CHAT_TEMPLATE, **roles: str
) -> None:
    """A byte-level tokenizer of 320 tokens; control tokens without a template: the end of text alone."""
    control = [*(CONTROL if template else CONTROL[:1]), *extra]
    tokenizer = FastTokenizer(BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=320, special_tokens=control, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False, min_frequency=1,
    )  # fmt: skip
    filler = " ".join(chr(first) + chr(second) for first in range(97, 123) for second in range(97, 123))
    tokenizer.train_from_iterator([*TEXTS, filler], trainer)
    assert tokenizer.get_vocab_size() == 320
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": CONTROL[0], "pad_token": CONTROL[0], **roles}
    if template:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_gguf(
    name: str, model: Any, folder: Path, file: Path, *, quantised: Any = None,
    change: Callable[[Any], None] = lambda writer: None,
) -> Path:  # fmt: skip
    """`model` and the tokenizer of `folder` as a GGUF file; `change` may write other settings over them."""
    import gguf

    family, config = PUBLISHED[name][0].lower(), model.config
    writer = _Writer(file, family)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokenizer(writer, folder, config.vocab_size)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(config.rope_parameters, head_dim))
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.clone()
        if family == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
            values = values.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(weight.shape)
        theirs, array = names.get_name(key, (".weight", ".bias")), values.numpy()
        if quantised is not None and array.ndim == 2 and array.shape[1] % 32 == 0:
            writer.add_tensor(theirs, gguf.quantize(array, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(theirs, array)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _Writer(file: Path, family: str) -> Any:
    """A writer whose later settings replace earlier ones."""
    import gguf

    class Writer(gguf.GGUFWriter):  # type: ignore[misc]
        def add_key_value(self, key: str, *rest: Any, **more: Any) -> None:
            for part in self.kv_data:
                part.pop(key, None)
            super().add_key_value(key, *rest, **more)

    return Writer(file, family)


def _add_tokenizer(writer: Any, folder: Path, rows: int) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = described["model"]["vocab"]
    control = {token["content"] for token in described["added_tokens"]}
    names = [*sorted(vocabulary, key=vocabulary.__getitem__)]
    spare = [f"[PAD{index}]" for index in range(len(names), rows)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*names, *spare])
    writer.add_token_types([3 if name in control else 1 for name in names] + [5] * len(spare))
    writer.add_token_merges([" ".join(merge) for merge in described["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    if template:
        writer.add_chat_template(template)


def _divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """By wavelength: 1 for short ones, `factor` for long ones, between them a blend of the two frequencies."""
    found = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
        context = rope["original_max_position_embeddings"]
        if wavelength < context / rope["high_freq_factor"]:
            found.append(1.0)
        elif wavelength > context / rope["low_freq_factor"]:
            found.append(rope["factor"])
        else:
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = (context / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, dtype=np.float32)
