"""`dice data ...`: make training data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dice.cli import Bpe, Synth


def bpe(args: Bpe) -> int:
    from dice.data.bpe import train_tokenizer

    print(f"tokenizer in {train_tokenizer(args.data, args.out, args.vocab_size)}")
    return 0
