"""Train the byte-level BPE tokenizer of a small model, made for PyTorch and CUDA source.

What the pre-tokeniser decides, first match wins:
- a line break with the blank lines around it and the indentation after it is one piece;
- two or more spaces or tabs elsewhere are one piece;
- a digit is always a piece of its own: a number must be copied exactly, and a model that sees `128` as `1 2 8` can
  copy any number while one that sees a single token per frequent number cannot copy the rare ones;
- a word (letters and underscores: `__global__`, `blockIdx`) takes one space before it along;
- so does a run of punctuation (`);`, `<<<`, ` +=`).
Any other character stands alone. Bytes are the base alphabet, so every UTF-8 text round-trips exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dice.data.pairs import read_pairs
from dice.errors import UserError
from dice.files.bounded import read_text
from dice.files.tables import SUFFIXES
from dice.model.chatml import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START, MASK

SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, MASK)
BYTES = 256  # tokens of single bytes, from which every text can be built
LONGEST_TEXT = 1 << 32  # bytes that are read of one file that is no table
# What the pre-tokeniser splits a text into, as the docstring says: no token spans two pieces.
PIECES = r"(?:[ \t]*\r?\n)+[ \t]*|[ \t]{2,}|\p{N}| ?[\p{L}_]+| ?[^\s\p{L}\p{N}_]+|\s"


def train_tokenizer(files: Sequence[str | Path], out: str | Path, vocab_size: int = 2048) -> Path:
    """Train on the texts of `files`, write a Hugging Face tokenizer folder `out`; the same files give the same bytes.

    Pair files (tables: see `read_pairs`) give their prompts and responses, any other file its text. The
    vocabulary has at most `vocab_size` entries including the four special tokens (ids 0-3) and 256 bytes; a corpus
    too small to fill it gives fewer. Raises `UserError` for a missing or empty file or an impossible size.
    """
    if vocab_size < BYTES + len(SPECIAL_TOKENS):
        raise UserError(
            f"vocab_size {vocab_size} is below {BYTES + len(SPECIAL_TOKENS)}: 256 bytes and special tokens."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(files), trainer)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in _companions().items():
        (out / name).write_text(content, encoding="utf-8")
    tokenizer.save(str(out / "tokenizer.json"))
    return out


def _texts(files: Sequence[str | Path]) -> Iterator[str]:
    """Every text to learn from. Special tokens inside are dropped: they must never become merges of other tokens."""
    if not files:
        raise UserError("Give at least one file to train the tokenizer on.")
    for file in map(Path, files):
        for text in _file_texts(file):
            for token in SPECIAL_TOKENS:
                text = text.replace(token, "\n")
            yield text


def _file_texts(file: Path) -> Iterator[str]:
    if file.is_dir() or file.suffix in SUFFIXES or not file.exists():
        for pair in read_pairs(file):
            yield from (message["content"] for message in pair.messages)
            yield pair.response
        return
    try:
        yield read_text(file, LONGEST_TEXT)
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}.") from None


def _companions() -> dict[str, str]:
    """The files beside tokenizer.json that tell Hugging Face's loaders, and ours, what each special token is for."""
    roles = {"eos_token": IM_END, "pad_token": END_OF_TEXT, "mask_token": MASK}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "added_tokens_decoder": {str(index): _added_token(token) for index, token in enumerate(SPECIAL_TOKENS)},
        "additional_special_tokens": [IM_START],
        **roles,
    }
    special = {"additional_special_tokens": [IM_START]} | roles
    return {
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(special, indent=2) + "\n",
        "chat_template.jinja": CHAT_TEMPLATE,
    }


def _added_token(content: str) -> dict[str, object]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, **flags, "special": True}
