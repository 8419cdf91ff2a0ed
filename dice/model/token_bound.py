"""Whether a text surely has more tokens than a limit, told without encoding all of it.

Encoding a megabyte takes a core seconds, which a text that no model could read is not worth.
"""

from __future__ import annotations

import json

from tokenizers import Tokenizer as FastTokenizer

# Texts have some 2 to 4 characters a token; of so many for each token of the limit, the beginning nearly always tells.
CHARACTERS = 8
# Tokenizers cut a text into words from its beginning on. Where the rest of it is missing, the last words may be cut in
# another way (line ends and blanks that belong together); those before them are the same.
UNSURE_WORDS = 8


class TokenBound:
    """For the encoder `encoder`, which knows no control tokens."""

    def __init__(self, encoder: FastTokenizer) -> None:
        self._encoder = encoder
        self._longest = _longest_token(encoder)

    def exceeds(self, text: str, most: int) -> bool:
        """True only where `text` has more than `most` tokens; nearly always where it has many more. Takes as long as
        to encode some `CHARACTERS` times `most` characters."""
        head = text[: CHARACTERS * (most + 1)]
        if len(head) == len(text):
            return False  # to encode it takes no longer
        if self._longest and self._bytes_at_least(text) > most * self._longest:
            return True
        # As a batch, since `encode` would keep all other threads from going on meanwhile.
        (encoding,) = self._encoder.encode_batch([head], add_special_tokens=False)
        words = encoding.word_ids
        last = max((word for word in words if word is not None), default=0)
        return sum(word is not None and word <= last - UNSURE_WORDS for word in words) > most

    def _bytes_at_least(self, text: str) -> int:
        normalizer = self._encoder.normalizer
        return len((normalizer.normalize_str(text) if normalizer is not None else text).encode())


def _longest_token(encoder: FastTokenizer) -> int:
    """Bytes of the longest token, where every token stands for bytes of the text and every byte is in one; else 0."""
    described = json.loads(encoder.to_str())
    steps = described.get("pre_tokenizer") or {}
    kinds = {one.get("type") for one in (steps, *steps.get("pretokenizers", ()))}
    if described["model"].get("type") != "BPE" or "ByteLevel" not in kinds:
        return 0
    return max(map(len, encoder.get_vocab(with_added_tokens=False)), default=0)
