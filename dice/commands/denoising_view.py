"""What `dice generate` shows while a text is denoised: a live screen in a terminal, one line when piped."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dice.terminal import Console

if TYPE_CHECKING:
    from dice.decode.generate import StepEvent
    from dice.generation import Writer

MASK = "\N{LIGHT SHADE}"
FRAMES_PER_SECOND = 20


class Progress:
    """`with Progress(console, title, writer) as on_step`: one plain line when the text is finished."""

    def __init__(self, console: Console, title: str, writer: Writer) -> None:
        self.console, self.title, self.writer = console, title, writer
        self.tokens: dict[int, int] = {}
        self.steps = 0
        self.start = time.perf_counter()

    def __enter__(self) -> Callable[[StepEvent], None]:
        return self.on_step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.console.print(f"{self.title}: {self.rate()}", markup=False, highlight=False, soft_wrap=True)

    def on_step(self, event: StepEvent) -> None:
        self.steps += 1
        self.tokens.update(zip(event.positions, event.tokens, strict=True))

    def rate(self) -> str:
        seconds = max(time.perf_counter() - self.start, 1e-9)
        count = len(self.tokens)
        return f"{count} tokens in {self.steps} denoising steps, {seconds:.1f} s, {count / seconds:.0f} tokens/s"


class Screen(Progress):
    """The tail of the text as it is being denoised: hidden tokens shaded, the newest block highlighted."""

    def __init__(self, console: Console, title: str, writer: Writer) -> None:
        super().__init__(console, title, writer)
        self.newest: tuple[int, int] = (0, 0)
        self.drawn = 0.0
        self.live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Callable[[StepEvent], None]:
        self.live.start()
        return self.on_step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()
        super().__exit__(kind, error, trace)

    def on_step(self, event: StepEvent) -> None:
        super().on_step(event)
        block_size = self.writer.model.config.block_size
        end = max(self.tokens) + 1
        self.newest = (max(0, end - block_size), end)
        if time.perf_counter() - self.drawn > 1 / FRAMES_PER_SECOND:
            self.live.update(self._panel(end + block_size), refresh=True)
            self.drawn = time.perf_counter()

    def _panel(self, length: int) -> Panel:
        first, end = self.newest
        settled = self.writer.partial_text(self.tokens, first, MASK)
        fresh = self.writer.partial_text(
            {i - first: t for i, t in self.tokens.items() if i >= first}, length - first, MASK
        )
        height = max(self.console.height - 4, 5)
        keep = "\n".join(settled.split("\n")[-height:])
        text = Text(keep, style="none", no_wrap=True, overflow="crop")
        text.append(fresh, style="bold green")
        lines = text.split("\n", allow_blank=True)[-height:]
        return Panel(
            Text("\n").join(lines),
            title=Text(self.title),
            subtitle=Text(self.rate()),
            title_align="left",
            height=height + 2,
        )
