"""What an HTTP response says: an answer, or which kind of failure, told apart by what can be done about it."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dice.endpoint.heard import Heard
from dice.endpoint.request import BYTES_PER_TOKEN, FAILED, Request, Usage
from dice.files.bounded import parse_json

# Failures after which the same request may yet succeed.
RETRIED = frozenset(FAILED) - {"refused", "budget"}
# HTTP status codes below 500, beside 429, after which it may: request timeout, conflict, too early.
RETRIED_STATUS = (408, 409, 425)
# No request has more tokens than this: an endpoint that reports more is not believed, and the tokens are estimated.
MOST_TOKENS = 10**8


@dataclass(frozen=True, slots=True)
class Reading:
    """`outcome` as in `Reply`; or `stop`, a sentence, when no further request can fare better."""

    outcome: str
    text: str = ""
    error: str = ""
    usage: Usage = Usage()
    retry_after_s: float | None = None
    stop: str = ""


def read(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    request: Request,
    model: str,
    url: str,
    heard: Heard | None = None,
) -> Reading:
    """Read a whole response. `heard` makes its texts fit to be kept."""
    heard = heard or Heard()
    try:
        if status == 200:
            return _answer(body, request, heard)
        return _refusal(status, headers, heard.error(_said(body)), model, url)
    except RecursionError:  # less deep than the parser minds, too deep to be written out again
        return Reading("wrong_schema", error="it is nested too deeply", usage=_guess(request, body))


def _answer(body: bytes, request: Request, heard: Heard) -> Reading:
    try:
        data = parse_json(body)
    except ValueError as error:
        why = "nested too deeply" if "nested" in str(error) else "no JSON"
        return Reading("truncated_json", error=f"{len(body)} bytes that are {why}", usage=_guess(request, body))
    usage = _usage(data, request, body)
    choices = data.get("choices") if isinstance(data, dict) else None
    if choices == []:
        return Reading("no_choices", error=heard.error(_said(body)), usage=usage)
    try:
        text, reason = choices[0]["message"]["content"], choices[0].get("finish_reason")  # type: ignore[index]
    except (TypeError, KeyError, IndexError, AttributeError):
        return Reading("wrong_schema", error=heard.error(_said(body)), usage=usage)
    if text is not None and not isinstance(text, str):
        return Reading("wrong_schema", error=f"its content is a {type(text).__name__}", usage=usage)
    text = heard.text(text or "")
    if reason == "content_filter":
        return Reading("filtered", text, usage=usage)
    if not text.strip():
        return Reading("no_content", error=heard.error(f"an empty text, finish_reason {reason}"), usage=usage)
    usage = usage if not usage.estimated else Usage(usage.tokens_in, _tokens(text), True)
    return Reading("length" if reason == "length" else "answer", text, usage=usage)


def _refusal(status: int, headers: Mapping[str, str], said: str, model: str, url: str) -> Reading:
    said = f"HTTP {status}: {said}"
    if status in (401, 403):
        return Reading("refused", error=said, stop=f"The endpoint refuses the API key ({said}).")
    if status == 402:
        return Reading("refused", error=said, stop=f"The endpoint wants to be paid first ({said}).")
    if status == 404:
        return Reading("refused", error=said, stop=f"There is no model {model!r}, or no endpoint, at {url} ({said}).")
    if 300 <= status < 400:
        return Reading("refused", error=said, stop=f"{url} sends elsewhere ({said}): give the URL it sends to.")
    wait = _retry_after(headers.get("retry-after", ""))
    if status == 429:
        return Reading("rate_limited", error=said, retry_after_s=wait)
    if status >= 500 or status in RETRIED_STATUS:
        return Reading("server_error", error=said, retry_after_s=wait)
    return Reading("refused", error=said)


def _retry_after(value: str) -> float | None:
    """Seconds, from a number or a date, maybe infinitely many; None for neither."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, LookupError, AttributeError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


def _said(body: bytes) -> str:
    """The message in an error body, or the body."""
    text = body.decode(errors="replace")
    try:
        data = parse_json(text)
        error = data.get("error", data) if isinstance(data, dict) else data
        text = error["message"] if isinstance(error, dict) and "message" in error else json.dumps(error)
    except ValueError:
        pass
    return str(text)


def _usage(data: Any, request: Request, body: bytes) -> Usage:
    told = data.get("usage") if isinstance(data, dict) else None
    if isinstance(told, dict):
        counts = told.get("prompt_tokens"), told.get("completion_tokens")
        if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts):
            return Usage(*counts)  # type: ignore[arg-type]
    return _guess(request, body)


def _guess(request: Request, body: bytes) -> Usage:
    return Usage(request.tokens(), int(len(body) / BYTES_PER_TOKEN), estimated=True)


def _tokens(text: str) -> int:
    return int(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1
