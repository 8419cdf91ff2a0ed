"""`dice data tokenizer`: train a byte-level BPE tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Bpe:
    """Train nano's byte-level BPE tokenizer on a corpus.

    Example: dice data tokenizer --data corpus/train --out tokenizer
    """

    data: tuple[Path, ...]
    """Tables with prompt and response columns (.parquet, .arrow, .jsonl, .json), folders of them, or texts."""
    out: Path
    """Folder for the tokenizer files."""
    vocab_size: int = 2048

    def run(self) -> int:
        from dice.data.train_tokenizer import train_tokenizer

        print(f"tokenizer in {train_tokenizer(self.data, self.out, self.vocab_size)}")
        return 0
