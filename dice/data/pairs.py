"""Read (prompt, response) pairs from the files people have: tables of pairs or of chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dice.errors import UserError
from dice.files import JsonObject
from dice.files.tables import SUFFIXES, read_rows

COLUMNS = ("messages", "prompt", "response", "text")  # what is read of a table that has other columns besides
Message = dict[str, str]
_CHAT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}


@dataclass(frozen=True, slots=True)
class Pair:
    """One training example: the messages before the answer, and the answer. A plain text has no messages."""

    messages: tuple[Message, ...]
    response: str


def read_pairs(path: str | Path) -> list[Pair]:
    """Every pair of a table file (see `dice/files/tables.py`), or of all such files of a folder in name order.

    A row has either a `prompt` column (text, or a list of chat messages) with a `response` column (text), or a
    `messages` column whose last message is the assistant's, or a `text` column alone. Raises `UserError` in one
    sentence for a missing file, an unreadable one, a missing column, a wrong type or an empty file.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"There is no data file {path}.")
    pairs = [
        _checked(_pair(row.values, row.where), row.where) for file in _files(path) for row in read_rows(file, COLUMNS)
    ]
    if not pairs:
        raise UserError(f"{path} holds no rows: there is nothing to train on.")
    return pairs


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if not files:
        raise UserError(f"The folder {path} holds no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file.")
    return files


def _pair(row: JsonObject, where: str) -> Pair:
    if row.get("messages") is not None:
        messages = _messages(row["messages"], where, "messages")
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise UserError(f"{where}: the last of at least two `messages` must be the assistant's.")
        return Pair(messages[:-1], messages[-1]["content"])
    if row.get("text") is not None and row.get("prompt") is None and row.get("response") is None:
        if not isinstance(row["text"], str) or not row["text"]:
            raise UserError(f"{where}: `text` is not text, or empty.")
        return Pair((), row["text"])
    for column in ("prompt", "response"):
        if row.get(column) is None:
            have = ", ".join(map(str, row)) or "none"
            raise UserError(f"{where} has no `{column}` (nor `messages`); its columns are: {have}.")
    prompt, response = row["prompt"], row["response"]
    if not isinstance(response, str):
        raise UserError(f"{where}: `response` is not text.")
    if isinstance(prompt, str):
        return Pair(({"role": "user", "content": prompt},), response)
    return Pair(_messages(prompt, where, "prompt"), response)


def _checked(pair: Pair, where: str) -> Pair:
    try:
        "".join((pair.response, *(message["content"] for message in pair.messages))).encode()
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair
        raise UserError(f"{where}: its text is not valid Unicode.") from None
    return pair


def _messages(value: Any, where: str, column: str) -> tuple[Message, ...]:
    """Chat messages in either common spelling: role/content, or ShareGPT's from/value."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: `{column}` is neither text nor a list of chat messages.")
    messages = []
    for message in value:
        if not isinstance(message, dict):
            raise UserError(f"{where}: `{column}` holds something that is not a chat message.")
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise UserError(f"{where}: a chat message in `{column}` lacks its role or its text.")
        messages.append({"role": _CHAT_ROLES.get(role, role), "content": content})
    return tuple(messages)
