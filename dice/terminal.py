"""What is written to a terminal: text of kernels, files and endpoints is shown, and never obeyed.

Such text may hold escape sequences that move the cursor, set the window's title or hide what follows, marks that turn
the direction of reading round, and rich's markup. `Console` takes no text for markup and cleans all that it shows;
`cleaned` does the same for `print`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich import console as rich_console
from rich.segment import Segment

# Control characters but for tab and line feed, marks of direction, separators of lines, halves of characters.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: str) -> str:
    """The text with a question mark for every character that a terminal obeys, or cannot show."""
    return _OBEYED.sub("?", text)


class Console(rich_console.Console):
    """Shows every text as it is: markup and names of emoji mean nothing. Styles come from `Text` and `style=`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"markup": False, "emoji": False} | options))

    def render(
        self, renderable: rich_console.RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


class _Cleaned:
    """A stream whose text is cleaned. rich, which cleans its own, writes to what is behind it."""

    def __init__(self, stream: TextIO):
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        back = "\r" if text.startswith("\r") else ""  # as the progress bars of other libraries begin each time
        self.rich_proxied_file.write(back + clean(text.removeprefix("\r")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def cleaned() -> Iterator[None]:
    """Whatever is printed meanwhile is cleaned, to standard output and to standard error."""
    streams: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Cleaned(stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


class _Log(logging.Handler):
    """Prints to what is standard error at that moment: progress bars and `cleaned` put something else in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"dice: {self.format(record)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """What DICE logs meanwhile is printed to standard error. A program that uses it as a library hears nothing."""
    logger, handler = logging.getLogger("dice"), _Log()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
