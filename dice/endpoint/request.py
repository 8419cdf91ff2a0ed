"""The nouns: `RequestSettings` of an endpoint, `Request`, `Reply`, and what a request may come to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from dice.errors import UserError

# Outcomes with a text. That of `length` was cut off at `max_tokens`, that of `filtered` by the endpoint's filter.
ANSWERED = ("answer", "length", "filtered")
# Outcomes without one, and what each means.
FAILED = {
    "rate_limited": "the endpoint said 429",
    "server_error": "the endpoint said 5xx",
    "refused": "the endpoint said 4xx: this request is not to its liking",
    "connection": "the connection was refused, reset or closed early",
    "timeout": "no answer in time",
    "truncated_json": "what came is no JSON",
    "too_long": "what came is longer than any answer that was asked for",
    "wrong_schema": "what came is no chat completion",
    "no_choices": "the list of choices is empty",
    "no_content": "the text is empty",
    "budget": "not sent: it might have cost more than what is left",
}
# Bytes of code in a token, for estimates where the endpoint does not count the tokens.
BYTES_PER_TOKEN = 3.5


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Which endpoint, and how much of it may be used. Prices are in USD per million tokens.

    Raises `UserError` for what cannot be meant.
    """

    base_url: str
    model: str
    temperature: float = 1.0
    max_tokens: int = 8192
    concurrency: int = 8
    requests_per_minute: int = 0  # 0: no limit of ours
    tokens_per_minute: int = 0
    price_in: float = 0.0
    price_out: float = 0.0
    max_cost: float = 0.0  # 0: no limit
    attempts: int = 6
    first_wait_s: float = 1.0  # doubled with each attempt, and jittered
    longest_wait_s: float = 60.0
    longest_pause_s: float = 120.0  # that the endpoint may ask for; it is not believed to want more
    connect_s: float = 10.0
    read_s: float = 180.0
    total_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise UserError(f"The base URL must begin with http:// or https://, not {self.base_url!r}.")
        try:
            urlsplit(self.base_url).port  # noqa: B018 - read for what it raises
        except ValueError as error:
            raise UserError(f"{_without_password(self.base_url)} is no URL ({error}).") from None
        for name in ("max_tokens", "concurrency", "attempts"):
            if getattr(self, name) < 1:
                raise UserError(f"{name.replace('_', ' ').capitalize()} must be at least 1.")
        limits = (self.requests_per_minute, self.tokens_per_minute, self.price_in, self.price_out, self.max_cost)
        if min(*limits, self.temperature) < 0:
            raise UserError("Limits, prices and the temperature cannot be negative.")
        if self.max_cost and not (self.price_in or self.price_out):
            raise UserError("A cost limit needs prices: give --price-in and --price-out.")

    @property
    def url(self) -> str:
        url = self.base_url.rstrip("/")
        return url if url.endswith("/chat/completions") else f"{url}/chat/completions"

    @property
    def shown_url(self) -> str:
        """The URL for people and for files: without a user's name and password."""
        return _without_password(self.url)

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass(frozen=True, slots=True)
class Request:
    """One question. `key` tells apart requests of the same text (samples); `tag` is the caller's, and is not sent."""

    prompt: str
    key: str = ""
    system: str = ""
    tag: Any = field(default=None, compare=False)

    def id(self, settings: RequestSettings) -> str:
        """Of all that decides the answer: after a change of any of it, the question is asked anew."""
        parts = [settings.model, settings.temperature, settings.max_tokens, self.system, self.prompt, self.key]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    def body(self, settings: RequestSettings) -> dict[str, object]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages.append({"role": "user", "content": self.prompt})
        sampling = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
        return {"model": settings.model, "messages": messages, **sampling}

    def tokens(self) -> int:
        """An estimate, on the high side for prose."""
        return int(len((self.system + self.prompt).encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 16


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request. `estimated`: from its characters, because the endpoint did not count them."""

    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request: `outcome` is of `ANSWERED`, with its `text`, or of `FAILED`, with the last `error`."""

    request: Request
    outcome: str
    text: str = ""
    error: str = ""
    usage: Usage = Usage()
    attempts: int = 0  # made in this run; 0: the answer was known, or nothing was sent
    seconds: float = 0.0  # of the last attempt

    @property
    def answered(self) -> bool:
        return self.outcome in ANSWERED


def _without_password(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{place.rpartition('@')[2]}{slash}{path}"
