"""What clients may send: OpenAI's fields, and a few of DICE's. A field that would be ignored although it matters is
refused, one that is harmless is not, and an unknown one is refused as OpenAI does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dice.decode.sampling import Strategy

LONGEST_TEXT = 1 << 20  # characters
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
# Lists end at their first fault: a megabyte of faults would take the server seconds to tell.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
MOST_PROMPTS = 2048
# Fields of OpenAI's that change nothing that a client could miss here.
HARMLESS = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "parallel_tool_calls", "reasoning_effort", "verbosity"),
)
# Fields that would change the answer, and the values that ask for nothing. A client that sends only those gets one.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],), "functions": ([],), "tool_choice": ("none", "auto"), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "logit_bias": ({},), "presence_penalty": (0,), "frequency_penalty": (0,),
    "modalities": (["text"],), "audio": (), "prediction": (), "web_search_options": (), "best_of": (1,),
    "echo": (False,), "moderation": (),
}  # fmt: skip


def unsupported(param: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported_parameter", "`{param}` is not supported by this server", {"param": param})


def one_sentence(said: str) -> WrapValidator:
    """For all members of a union, of which pydantic would tell what the first of them misses."""

    def validate(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise ValueError(said) from None

    return WrapValidator(validate)


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_max_length=LONGEST_TEXT)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, data: Any) -> Any:
        """Of unknown fields the first alone is told."""
        if cls.model_config["extra"] != "forbid" or not isinstance(data, dict):
            return data
        unknown = next((name for name in data if name not in cls.model_fields), None)
        return {name: value for name, value in data.items() if name in cls.model_fields or name == unknown}


class StreamOptions(Form):
    """`diffusing`: also stream, as events of their own, which tokens each denoising step reveals."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    diffusing: bool | None = None


class Decoding(Form):
    """What all requests for text have in common. Without a temperature the likeliest tokens are taken."""

    model: Annotated[str, Field(max_length=200)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # DICE's own
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    confidence_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    denoising_steps: Annotated[int, Field(ge=1, le=1024)] | None = None
    remasking: Strategy | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, data: Any) -> Any:
        """Drop what is harmless, and refuse what would be ignored although it matters."""
        if not isinstance(data, dict):
            return data
        for name, nothing in UNSUPPORTED.items():
            if name not in cls.model_fields and data.get(name) is not None and data[name] not in nothing:
                raise unsupported(name)
        known = cls.model_fields
        return {k: v for k, v in data.items() if k in known or (k not in HARMLESS and k not in UNSUPPORTED)}

    @model_validator(mode="after")
    def _fit_together(self) -> Decoding:
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options` is only allowed when `stream` is true")
        return self

    @property
    def diffusing(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.diffusing)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


Stops = Annotated[
    Annotated[str, Field(max_length=1000)] | Annotated[list[str], Field(max_length=16, fail_fast=True)],
    one_sentence("give a text of at most 1000 characters, or up to 16 of them in a list"),
]


class Writing(Decoding):
    """A request for new text."""

    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stops | None = None

    @model_validator(mode="after")
    def _stops_are_texts(self) -> Writing:
        if any(not 0 < len(stop) <= 1000 for stop in self.stops):
            raise ValueError("a stop sequence must have 1 to 1000 characters")
        return self

    @property
    def likeliest(self) -> int:
        """How many of the likeliest tokens are to be told at each place."""
        raise NotImplementedError

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class Part(Form):
    type: Literal["text"]
    text: Text


class Message(Form):
    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Text | Annotated[list[Part], Field(max_length=1024, fail_fast=True)],
        one_sentence("give a text, or a list of parts of type `text`"),
    ]

    @model_validator(mode="before")
    @classmethod
    def _says_nothing_else(cls, data: Any) -> Any:
        """What an assistant did beside its words would be lost."""
        for name in ("tool_calls", "function_call", "audio"):
            if isinstance(data, dict) and data.get(name):
                raise unsupported(name)
        return data

    def for_template(self) -> dict[str, str]:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


Messages = Annotated[list[Message], Field(min_length=1, max_length=256, fail_fast=True)]


class ChatRequest(Writing):
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("`top_logprobs` is only allowed when `logprobs` is true")
        return self

    @property
    def likeliest(self) -> int:
        return self.top_logprobs or 0


Prompts = Annotated[
    Text
    | Annotated[list[Text], Field(max_length=MOST_PROMPTS, fail_fast=True)]
    | TokenIds
    | Annotated[list[TokenIds], Field(max_length=MOST_PROMPTS, fail_fast=True)],
    one_sentence(f"give a text, a list of token ids, or up to {MOST_PROMPTS} of either in a list"),
]


class CompletionRequest(Writing):
    """`suffix`: what follows the text that is written. The model sees of it what shares the block of the last token."""

    prompt: Prompts
    suffix: Text | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _best_are_all(self) -> CompletionRequest:
        """No text is written that is not given."""
        if self.best_of not in (None, self.n or 1):
            raise unsupported("best_of")
        return self

    @model_validator(mode="after")
    def _suffix_has_a_place(self) -> CompletionRequest:
        if self.suffix and self.max_tokens is None:
            raise ValueError("`suffix` needs `max_tokens`: so many tokens are written before it")
        return self

    @property
    def likeliest(self) -> int:
        return self.logprobs or 0


class EditRequest(Decoding):
    """Lines of a text, counted from 1, to be masked and written again. `messages` or `prompt`: what the text answers;
    `tokens`: its ids as they were written, which a text that is tokenized again may differ from."""

    messages: Messages | None = None
    prompt: Text | None = None
    text: Text | None = None
    tokens: TokenIds | None = None
    lines: Annotated[
        list[Annotated[int, Field(ge=1, le=LONGEST_TEXT)]], Field(min_length=1, max_length=10_000, fail_fast=True)
    ]

    @model_validator(mode="after")
    def _one_of_each(self) -> EditRequest:
        if (self.messages is None) == (self.prompt is None) or (self.text is None) == (self.tokens is None):
            raise ValueError("give either `messages` or `prompt`, and either `text` or `tokens`")
        return self


class OptimizeRequest(Form):
    """`writers`: who writes kernels: `templates`, by rule, or `model`, the one that is served. `samples`: kernels of
    each for a region. `seconds`: in which kernels are looked for. `keep`: regions that make the whole faster, or all
    that are right."""

    problem: Text
    stream: bool = True
    writers: Annotated[list[Literal["templates", "model"]], Field(min_length=1, max_length=2)] = ["templates"]
    samples: Annotated[int, Field(ge=1, le=8)] = 4
    seconds: Annotated[float, Field(gt=0, le=1800)] = 600
    keep: Literal["faster", "right"] = "faster"


class VerifyRequest(Form):
    """`kernel`: the source of a file that defines ModelNew; or `reply`: a model's answer that holds one."""

    problem: Text
    kernel: Text | None = None
    reply: Text | None = None
    stream: bool = True
    timing: bool = True
    trials: Annotated[int, Field(ge=1, le=20)] = 5

    @model_validator(mode="after")
    def _one_kernel(self) -> VerifyRequest:
        if (self.kernel is None) == (self.reply is None):
            raise ValueError("give either `kernel` or `reply`")
        return self
