"""Texts from an endpoint, made fit to be kept and shown: every one passes through here before anything else.

Hostile endpoints, and honest error messages, repeat the API key. It is struck out of the whole text before the text is
shortened, because half a key would not be found.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

# What stands for a secret in the text that is kept.
HIDDEN = "[key]"
# Characters of an error message that are kept.
LONGEST_ERROR = 300
# A key of fewer characters is struck out of error messages but not out of answers: it may be a mere word, such as the
# EMPTY of local servers, and striking that out would spoil `torch.empty` in a kernel.
LEAST = 8
# What may stand between two characters of a secret, because a line may be broken anywhere.
_BETWEEN = r"(?:\s|\\{1,8}[nrt]|%(?:20|09|0a|0d)){0,16}"
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Heard:
    """Takes `key`, and a password in `url`, out of texts.

    They are found in any case, with blanks between characters, each of which may be spelled as in JSON, Python, URLs or
    HTML; in hexadecimal; and in base64, also as a part of what was encoded.
    """

    def __init__(self, key: str = "", url: str = ""):
        self._patterns = {secret: tuple(_patterns(secret)) for secret in _secrets(key, url)}

    def text(self, text: str) -> str:
        """An answer. Half a surrogate pair, which no UTF-8 file can hold, becomes U+FFFD."""
        return self._hide(_SURROGATE.sub("\ufffd", text), LEAST)

    def error(self, text: str) -> str:
        """A message: one line of at most `LONGEST_ERROR` characters, all of which can be printed."""
        text = " ".join(self._hide(_SURROGATE.sub("\ufffd", text), 1).split())[:LONGEST_ERROR].rstrip(".")
        return "".join(one if one.isprintable() else "?" for one in text) or "nothing"

    def _hide(self, text: str, least: int) -> str:
        for secret, patterns in self._patterns.items():
            for pattern in patterns if len(secret) >= least else ():
                text = pattern.sub(HIDDEN, text)
        return text


def _secrets(key: str, url: str) -> list[str]:
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        password = ""
    return [secret for secret in dict.fromkeys((key, password, unquote(password))) if secret]


def _patterns(secret: str) -> Iterator[re.Pattern[str]]:
    yield re.compile(_BETWEEN.join(map(_spelled, secret)), re.IGNORECASE)
    if len(secret) < LEAST:
        return
    raw = secret.encode()
    yield re.compile(_BETWEEN.join(raw.hex()), re.IGNORECASE)
    shifted = [part.translate(str.maketrans("+/", "-_")) for part in _in_base64(raw)]
    either = {"-": r"[-+]", "_": r"[_/]"}  # the two alphabets
    forms = (_BETWEEN.join(either.get(letter, letter) for letter in part) for part in shifted)
    yield re.compile("|".join(forms))


def _spelled(character: str) -> str:
    """One character, plain or escaped."""
    code, utf8 = ord(character), "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    spelled = [rf"\\{{0,8}}{re.escape(character)}", utf8, rf"\\{{1,8}}u{code:04x}", f"&#{code};", f"&#x{code:x};"]
    if code < 256:
        spelled.append(rf"\\{{1,8}}x{code:02x}")
    if character in _NAMED:
        spelled.append(_NAMED[character])
    return f"(?:{'|'.join(spelled)})"


def _in_base64(raw: bytes) -> Iterator[str]:
    """What is in the base64 of any text that holds these bytes: at each of the three places where they may begin."""
    for offset, first in enumerate((0, 2, 3)):
        last = 8 * (offset + len(raw)) // 6
        yield base64.b64encode(bytes(offset) + raw).decode()[first:last]
