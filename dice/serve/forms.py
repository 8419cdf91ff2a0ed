"""OpenAI's forms of an answer: whole, and in chunks. Plain clients get these fields and no others."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from dice.decode.sampling import Likeliest
from dice.files import JsonObject
from dice.model.tokenizer import Tokenizer
from dice.serve.answer import Delta, Token
from dice.serve.orders import Choice, Order


class Form:
    """What is the same for all kinds of answers. `logprobs`: whether they were asked for; `likeliest`: how many tokens
    that could have been there are told of each place."""

    prefix = chunk_object = whole_object = ""

    def __init__(
        self, model: str, tokenizer: Tokenizer, logprobs: bool = False, likeliest: int = 0, include_usage: bool = False
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.logprobs, self.likeliest, self.include_usage = logprobs, likeliest, include_usage
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def first(self, choice: Choice) -> JsonObject | None:
        """The chunk before all text, where there is one."""
        return None

    def chunk(self, choice: Choice, delta: Delta, finish_reason: str | None) -> JsonObject:
        return self.envelope([self.piece(choice, delta, finish_reason)])

    def piece(self, choice: Choice, delta: Delta, finish_reason: str | None) -> JsonObject:
        raise NotImplementedError

    def envelope(self, choices: Sequence[JsonObject], usage: dict[str, int] | None = None) -> JsonObject:
        """A chunk. Usage is on the last one, and null before, where it was asked for."""
        body = self._head(self.chunk_object) | {"choices": list(choices)}
        return body | ({"usage": usage} if self.include_usage else {})

    def whole(self, order: Order, tokens: dict[Choice, list[Token]]) -> JsonObject:
        choices = [self.message(choice, tokens[choice]) for choice in order.choices]
        return self._head(self.whole_object) | {"choices": choices, "usage": usage(order)}

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def message(self, choice: Choice, tokens: list[Token]) -> JsonObject:
        raise NotImplementedError


class ChatForm(Form):
    prefix, chunk_object, whole_object = "chatcmpl", "chat.completion.chunk", "chat.completion"

    def first(self, choice: Choice) -> JsonObject | None:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return self.envelope([{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def piece(self, choice: Choice, delta: Delta, finish_reason: str | None) -> JsonObject:
        content = {"content": delta.text} if delta.text else {}
        logprobs = self._logprobs(delta.tokens) if delta.tokens else None
        return {"index": choice.index, "delta": content, "logprobs": logprobs, "finish_reason": finish_reason}

    def message(self, choice: Choice, tokens: list[Token]) -> JsonObject:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.answer.text, "refusal": None},
            "logprobs": self._logprobs(tokens),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[Token]) -> JsonObject | None:
        if not self.logprobs:
            return None
        content = [
            {"token": shown(token.data), "logprob": token.logprob, "bytes": list(token.data)}
            | {"top_logprobs": [self._likely(*one) for one in token.likeliest]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _likely(self, token: int, logprob: float) -> JsonObject:
        """A marker has a name, and no bytes."""
        data = self.tokenizer.token_bytes(token)
        name = shown(data) or self.tokenizer.marker(token)
        return {"token": name, "logprob": logprob, "bytes": list(data) if data else None}


class CompletionForm(Form):
    prefix, chunk_object, whole_object = "cmpl", "text_completion", "text_completion"

    def piece(self, choice: Choice, delta: Delta, finish_reason: str | None) -> JsonObject:
        return {
            "text": delta.text,
            "index": choice.index,
            "logprobs": self._logprobs(delta.tokens),
            "finish_reason": finish_reason,
        }

    def message(self, choice: Choice, tokens: list[Token]) -> JsonObject:
        return {
            "text": choice.answer.text,
            "index": choice.index,
            "logprobs": self._logprobs(tokens),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[Token]) -> JsonObject | None:
        """`text_offset`: where a token's last character begins at the earliest."""
        if not self.logprobs:
            return None
        return {
            "tokens": [shown(token.data) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._likely(token) for token in tokens] if self.likeliest else None,
            "text_offset": [max(0, token.end - len(shown(token.data))) for token in tokens],
        }

    def _likely(self, token: Token) -> dict[str, float]:
        """The likeliest tokens by name, and the one that was written, as OpenAI has it. Part of a character is named by
        its bytes."""
        told: Likeliest = (*token.likeliest, (token.id, token.logprob))
        return {self._name(one): logprob for one, logprob in reversed(told)}

    def _name(self, token: int) -> str:
        data = self.tokenizer.token_bytes(token)
        try:
            return data.decode() or self.tokenizer.marker(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class EditForm(CompletionForm):
    prefix = "edit"


def usage(order: Order) -> dict[str, int]:
    prompt, written = order.prompt_tokens, order.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def shown(data: bytes) -> str:
    return data.decode("utf-8", "replace")
