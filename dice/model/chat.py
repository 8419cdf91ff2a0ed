"""Chat templates: Jinja text from a model folder, rendered in a sandbox because it comes with downloaded files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dice.errors import UserError


class ChatTemplateError(UserError):
    """The chat template is missing, faulty, or refuses the conversation; one sentence for the user."""


class ChatTemplate:
    """A template in the dialect that `transformers` renders: trimmed blocks, `tojson`, `raise_exception`."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"The chat template is not valid Jinja: {error}.") from None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **options: Any) -> str:
        """The conversation as text. Raises `ChatTemplateError` when the template refuses it."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **options)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ChatTemplateError(f"The chat template refuses this conversation: {error}.") from None


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
