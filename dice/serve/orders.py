"""`Order`: what one request asks the engine for, its texts, and what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dice.decode.block_diffusion import new_texts
from dice.decode.engine import batch
from dice.decode.engine.engine import Engine
from dice.decode.repair import holes_of_lines, repair_text
from dice.decode.request import DecodeConfig, DecodeError, sample_seeds
from dice.decode.text import Text
from dice.decode.trace import GIVEN, Trace
from dice.errors import MachineError
from dice.generation import DECODING
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer, TooManyTokens
from dice.serve.answer import Answer, Delta
from dice.serve.errors import ApiError, internal
from dice.serve.events import Ending
from dice.serve.scheduler import Failed, Inbox, Revealed, Scheduler, Ticket
from dice.serve.settings import ServeSettings
from dice.serve.wire import ChatRequest, CompletionRequest, Decoding, EditRequest, Message, Writing

BUSY_S = 2  # seconds after which a client that was sent away may come again


@dataclass(eq=False)
class Choice:
    """One text of an order. `ending` is there once it is written. `given`: tokens of an edited text that stay."""

    index: int
    ticket: Ticket
    answer: Answer
    ending: Ending | None = None
    stop_reason: str = ""  # that of an edited text, which is no new one
    given: int = 0

    @property
    def finish_reason(self) -> str:
        return self.stop_reason or self.answer.ended or "length"

    def take(self, revealed: Revealed) -> Delta:
        """What a step adds; the text ends with the block in which a stop string does."""
        event, text = revealed.event, self.ticket.text
        delta = self.answer.take(event)
        if self.answer.cut_by_string:
            size = text.block_size
            end = -(-(text.prompt_length + self.answer.kept) // size) * size - text.prompt_length
            if self.answer.holds(range(end)):
                self.ending = Ending(end, self.answer.kept, revealed.forwards, "stop")
        return delta

    def finish(self, trace: Trace) -> None:
        if self.answer.cut_by_string:
            trace = trace.cut(self.answer.kept)
        kept = trace.kept if not self.ticket.text.suffix else min(trace.kept, self.ticket.text.max_new_tokens)
        self.ending = Ending(len(trace.token_ids), kept, trace.forwards, trace.stop_reason)


class Order:
    """The texts of one request, given to the engine at once. Whoever has one gives it up in the end.

    `prompt_tokens`: of its prompts, each counted once.
    """

    def __init__(self, scheduler: Scheduler, choices: list[Choice], inbox: Inbox, prompt_tokens: int) -> None:
        self.choices, self.prompt_tokens = choices, prompt_tokens
        self._scheduler, self._inbox = scheduler, inbox
        self._by_ticket = {choice.ticket: choice for choice in choices}
        for choice in choices:
            scheduler.submit(choice.ticket)

    async def steps(self) -> AsyncGenerator[tuple[Choice, Revealed | None, Delta], None]:
        """Everything that happens to its texts, in order; the last of each comes with its `ending`."""
        for choice in self.choices:
            yield choice, None, choice.answer.take()
        writing = set(self.choices)
        while writing:
            ticket, message = await self._inbox.get()
            choice = self._by_ticket[ticket]
            if choice not in writing:
                continue
            revealed, delta = None, Delta()
            if isinstance(message, Failed):
                raise ApiError(400, message.refused) if message.refused else internal()
            if isinstance(message, Trace):
                choice.finish(message)
            else:
                revealed, delta = message, choice.take(message)
            if choice.ending is not None:
                self._scheduler.give_up(ticket)
                writing.discard(choice)
            yield choice, revealed, delta

    def give_up(self) -> None:
        for choice in self.choices:
            self._scheduler.give_up(choice.ticket)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.ending.kept - choice.given for choice in self.choices if choice.ending)

    @property
    def forwards(self) -> int:
        return sum(choice.ending.forwards for choice in self.choices if choice.ending)


class Counter:
    """Where orders are placed: makes texts of requests, and sends away what cannot be served."""

    def __init__(self, model: SDAR, tokenizer: Tokenizer, scheduler: Scheduler, settings: ServeSettings) -> None:
        self.model, self.tokenizer, self.scheduler, self.settings = model, tokenizer, scheduler, settings
        autoregressive = model.config.traits.kind == "autoregressive"
        self.block_size = 1 if autoregressive else model.config.block_size

    @property
    def context(self) -> int:
        """Most positions of a text, in whole blocks: the model's, or fewer where the engine has no pages for them."""
        most = self.model.config.max_position_embeddings
        if self.scheduler.longest is not None:
            most = min(most, self.scheduler.longest)
        return most // self.block_size * self.block_size

    async def chat(self, request: ChatRequest) -> Order:
        self._check_count(request.n or 1)
        prompt = await self._chat_ids(request.messages)
        return self._new(request, [prompt], (), request.max_completion_tokens or request.max_tokens)

    async def completion(self, request: CompletionRequest) -> Order:
        """Each prompt's texts follow one another."""
        prompts = _prompts(request.prompt)
        if not prompts:
            raise ApiError(400, "`prompt` is empty.", "prompt")
        self._check_count(len(prompts) * (request.n or 1))
        *ids, suffix = await asyncio.to_thread(self._encoded, prompts, request.suffix or "")
        return self._new(request, ids, suffix, request.max_tokens)

    async def edit(self, request: EditRequest) -> Order:
        prompt = await self._chat_ids(request.messages) if request.messages is not None else None
        text, config, known = await asyncio.to_thread(self._masked, request, prompt)
        kept = text.max_new_tokens
        inbox: Inbox = asyncio.Queue()
        answer = Answer(self.tokenizer.token_bytes, (), (), kept, known)
        given = sum(place < kept for place in known)
        choice = Choice(0, Ticket(text, config, inbox), answer, stop_reason="stop", given=given)
        return self._admit([choice], inbox, text.prompt_length)

    def _encoded(self, prompts: Sequence[str | list[int]], suffix: str) -> list[list[int]]:
        """Token ids of prompts, of which some are none yet, and last those of the suffix. Takes a while."""
        ids = [self._ids(one, "prompt") if isinstance(one, str) else one for one in prompts]
        return [*ids, self._ids(suffix, "suffix")]

    def _ids(self, text: str, param: str) -> list[int]:
        """Raises `ApiError` for more than the context holds, mostly without encoding it all."""
        try:
            return self.tokenizer.encode(text, most=self.context)
        except TooManyTokens:
            raise self._too_long(None, param) from None

    def _masked(self, request: EditRequest, chat: list[int] | None) -> tuple[Text, DecodeConfig, dict[int, int]]:
        """The text with some of its lines masked, and the tokens that stay, by position. Its stop token is put behind
        it where it has none. `chat`: the ids of the messages, where there are any. Takes seconds for a long text."""
        prompt = chat if chat is not None else self._ids(request.prompt or "", "prompt")
        stops = self.tokenizer.stop_ids
        ids = list(request.tokens) if request.tokens is not None else self._ids(request.text or "", "text")
        if any(token >= self.model.config.vocab_size for token in ids):
            raise ApiError(400, "`tokens` holds an id outside the model's vocabulary.", "tokens")
        kept = next((place + 1 for place, token in enumerate(ids) if token in stops), 0)
        if not kept:
            ids.append(min(stops))
            kept = len(ids)
        ids += [self.tokenizer.pad_id] * (-(len(prompt) + len(ids)) % self.block_size)
        if len(prompt) + len(ids) > self.context:
            raise self._too_long(len(prompt) + len(ids), "text" if request.tokens is None else "tokens")
        config = self._config(request, kept)
        given = Trace(
            tuple(prompt), tuple(ids), (GIVEN,) * len(ids), (0.0,) * len(ids), kept, self.block_size,
            self.model.config.mask_token_id, config.remasking, config.resolved_mode, 0, "stop",
        )  # fmt: skip
        holes = holes_of_lines(self.tokenizer, given, [line - 1 for line in request.lines])
        holes = [range(hole.start, min(hole.stop, kept - 1)) for hole in holes]
        if not any(holes):
            raise ApiError(400, "The chosen lines are empty, so nothing of them can be written again.", "lines")
        (seed,) = self._seeds(request, 1)
        text = repair_text(self.model, 0, given, holes, config, seed)
        masked = {position for hole in holes for position in hole}
        return text, config, {place: token for place, token in enumerate(ids) if place not in masked}

    async def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """The conversation in the model's template, which a process of its own renders."""
        conversation = [message.for_template() for message in messages]
        try:
            return await asyncio.to_thread(self.tokenizer.encode_chat, conversation, most=self.context)
        except TooManyTokens:
            raise self._too_long(None, "messages") from None
        except MachineError as error:
            raise internal() from error

    def _new(self, request: Writing, prompts: list[list[int]], suffix: Sequence[int], most: int | None) -> Order:
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        inbox: Inbox = asyncio.Queue()
        choices: list[Choice] = []
        for prompt in prompts:
            room = self.context - len(prompt) - len(suffix)
            if room < 1 or not prompt:
                tokens = len(prompt) + len(suffix)
                raise self._too_long(tokens, param) if prompt else ApiError(400, "The prompt is empty.", param)
            longest = min(most or DECODING.max_new_tokens, room, self.settings.most_tokens)
            config = replace(self._config(request, longest), top_logprobs=request.likeliest)
            for seed in self._seeds(request, request.n or 1):
                (text,) = new_texts(self.model, [prompt], config, [seed], (), suffix)
                given = {text.max_new_tokens + place: token for place, token in enumerate(suffix)}
                answer = Answer(self.tokenizer.token_bytes, text.stop_ids, request.stops, longest, given)
                choices.append(Choice(len(choices), Ticket(text, config, inbox), answer))
        return self._admit(choices, inbox, sum(map(len, prompts)))

    def _admit(self, choices: list[Choice], inbox: Inbox, prompt_tokens: int) -> Order:
        """Raises `ApiError` where the engine has no room for so many texts, now or ever."""
        if not self.scheduler.alive:
            raise ApiError(503, "The engine is not running.", code="not_ready", retry_s=BUSY_S)
        if self.scheduler.open + len(choices) > self.settings.slots + self.settings.queue:
            raise ApiError(429, "Too many requests are waiting; try again soon.", code="queue_full", retry_s=BUSY_S)
        return Order(self.scheduler, choices, inbox, prompt_tokens)

    def _config(self, request: Decoding, longest: int) -> DecodeConfig:
        """Raises `DecodeError` for what cannot be meant."""
        asked: dict[str, Any] = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "confidence_threshold": request.confidence_threshold,
            "denoising_steps": request.denoising_steps,
            "remasking": request.remasking,
        }
        if request.denoising_steps and request.denoising_steps > self.block_size:
            raise DecodeError(f"denoising_steps cannot exceed the block size, {self.block_size}.")
        config = replace(
            DECODING,
            max_new_tokens=longest,
            stop_ids=self.tokenizer.stop_ids,
            vocab_limit=self.tokenizer.vocab_size,
            **{name: value for name, value in asked.items() if value is not None},
        )
        if self.model.config.traits.kind == "autoregressive":
            config = replace(config, block_size=1, denoising_steps=None, remasking="sequential")
        return config

    def _seeds(self, request: Decoding, count: int) -> list[int]:
        """The i-th text of a request with seed s is the first of one with seed s + i."""
        if request.seed is None:
            return sample_seeds(None, count)
        return [request.seed + index for index in range(count)]

    def _check_count(self, texts: int) -> None:
        """Before anything is encoded. Raises `ApiError`."""
        if texts > self.settings.most_choices:
            raise ApiError(400, f"One request gets at most {self.settings.most_choices} texts here.", "n")

    def _too_long(self, tokens: int | None, param: str) -> ApiError:
        """`tokens`: of the request; None where they were not counted to the end."""
        takes = "more" if tokens is None else tokens
        said = f"The context here has {self.context} tokens, and the request takes {takes} before any answer."
        return ApiError(400, said, param, "context_length_exceeded")


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One or several, each a text or token ids."""
    if isinstance(given, str):
        return [given]
    ids = [one for one in given if isinstance(one, int)]
    return [ids] if ids else [one for one in given if not isinstance(one, int)]


def new_engine(model: SDAR, settings: ServeSettings) -> Engine:
    """Raises `DecodeError` for models that attend to the whole answer."""
    return batch.new_engine(model, settings.slots, model.config.max_position_embeddings)


def given_texts(tokenizer: Tokenizer, text: Text) -> dict[int, str]:
    """Each token after the prompt alone as text, by position."""
    answer = text.ids[text.prompt_length :]
    return {place: token_text(tokenizer, token) for place, token in enumerate(answer)}


def token_text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")
