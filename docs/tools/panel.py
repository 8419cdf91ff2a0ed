"""The README's moving picture: what a terminal shows of one real run of `dice generate`.

python docs/tools/panel.py examples/softmax.py docs/images/panel.svg

The command runs in this process with the shipped model. What it shows is noted as it comes: the frames of the live
panel, its lines, the verdict at the end. The picture plays them at the pace at which they came, but for waits,
which are cut to `LONGEST_WAIT`. It is an SVG that moves by itself (SMIL), with every frame as text; where nothing
moves, the last is seen.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console, NewLine, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH, HEIGHT = 100, 23  # of the terminal, in characters
LONGEST_WAIT, LAST_FRAME = 1.2, 6.0  # seconds
LETTER, LINE, MARGIN, TOP = 8.4, 18, 16, 44  # of the picture, in its own units
BACKGROUND, FOREGROUND = "#15171c", "#d7dae0"

Frame = tuple[float, list[RenderableType]]  # when it came, and what the screen held from top to bottom


@contextlib.contextmanager
def noted(frames: list[Frame]) -> Iterator[None]:
    """While this is open, every change of the screen that rich makes is added to `frames`."""
    screen: list[RenderableType] = []
    update, show, status = Live.update, Console.print, Console.status

    def note(*live: RenderableType) -> None:
        frames.append((time.perf_counter(), [*screen, *live]))

    def noting_update(self: Live, renderable: RenderableType, *, refresh: bool = False) -> None:
        note(renderable)
        update(self, renderable, refresh=refresh)

    def noting_print(self: Console, *objects: Any, **options: Any) -> None:
        lines = [Text(one, style="dim") if isinstance(one, str) else one for one in objects]
        lines = [one for one in lines if not isinstance(one, Control | NewLine)]  # by which Live moves the cursor
        if lines:
            screen.extend(lines)
            note()
        show(self, *objects, **options)

    def noting_status(self: Console, message: Any, **options: Any) -> Any:
        note(Text(f"\N{BRAILLE PATTERN DOTS-1256} {message} ...", style="green"))
        return status(self, message, **options)

    with (
        mock.patch.object(Live, "update", noting_update),
        mock.patch.object(Console, "print", noting_print),
        mock.patch.object(Console, "status", noting_status),
    ):
        yield


def record(problem: Path) -> list[Frame]:
    """The frames of `dice generate PROBLEM`, with the time since the first."""
    os.environ |= {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
    from dice.cli import main  # after the terminal's size is set

    frames: list[Frame] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), noted(frames):
        code = main(["generate", str(problem), "-o", f"{folder}/kernel.py"])
    if code:
        raise SystemExit(f"dice generate ended with {code}: no picture of that")
    start, waited, shortened = frames[0][0], 0.0, []
    for index, (at, screen) in enumerate(frames):
        wait = at - frames[index - 1][0] if index else 0.0
        waited += max(0.0, wait - LONGEST_WAIT)
        shortened.append((at - start - waited, screen))
    return shortened


def lines(screen: list[RenderableType], command: str) -> list[list[Segment]]:
    """The screen as lines of styled text, the last `HEIGHT` of them, below the command that was typed."""
    console = Console(width=WIDTH, height=HEIGHT, force_terminal=True, color_system="truecolor", file=io.StringIO())
    prompt = Text.assemble(("$ ", "bold green"), (command, "bold"))
    found = [line for one in (prompt, *screen) for line in console.render_lines(one, pad=False)]
    return found[-HEIGHT:]


def drawn(line: list[Segment], number: int) -> str:
    """One line as SVG text. Each run of one style says how wide it is, so that columns agree in any font."""
    spans, column = [], 0
    for text, style, _ in Segment.simplify(line):
        for words in re.finditer(r"\S+(?: \S+)*", text):
            x, shown = MARGIN + (column + words.start()) * LETTER, html.escape(words[0])
            spans.append(f'<tspan x="{x:.1f}" textLength="{len(words[0]) * LETTER:.1f}"{look(style)}>{shown}</tspan>')
        column += len(text)
    return f'<text y="{TOP + (number + 1) * LINE}">{"".join(spans)}</text>' if spans else ""


def look(style: Style | None) -> str:
    if style is None:
        return ""
    shown = ""
    if style.color is not None and not style.color.is_default:
        shown += f' fill="{style.color.get_truecolor(MONOKAI).hex}"'
    return shown + ' font-weight="bold"' * bool(style.bold) + ' opacity=".6"' * bool(style.dim)


def svg(frames: list[Frame], command: str) -> str:
    width, height = WIDTH * LETTER + 2 * MARGIN, TOP + HEIGHT * LINE + MARGIN
    total = frames[-1][0] + LAST_FRAME
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" xml:space="preserve" '
        f'font-family="Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14" fill="{FOREGROUND}">',
        f"<title>{html.escape(command)}: a kernel is denoised, then compiled, run and checked</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="10" fill="{BACKGROUND}"/>',
        *(f'<circle cx="{22 + 20 * i}" cy="20" r="6" fill="{colour}"/>' for i, colour in enumerate(
            ("#ff5f57", "#febc2e", "#28c840")
        )),
    ]  # fmt: skip
    for index, (at, screen) in enumerate(frames):
        is_last = index == len(frames) - 1
        first, after = at / total, 1.0 if is_last else frames[index + 1][0] / total
        times, values = (f"0;{first:.4f}", "none;inline") if is_last else (
            (f"0;{first:.4f};{after:.4f}", "none;inline;none") if index else (f"0;{after:.4f}", "inline;none")
        )  # fmt: skip
        parts.append(f'<g display="{"inline" if is_last else "none"}">')
        parts.append(
            f'<animate attributeName="display" values="{values}" keyTimes="{times}" dur="{total:.2f}s" '
            'calcMode="discrete" repeatCount="indefinite"/>'
        )
        parts += [text for text in (drawn(line, at) for at, line in enumerate(lines(screen, command))) if text]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    problem, picture = Path(sys.argv[1]), Path(sys.argv[2])
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg(record(problem), f"dice generate {problem}"))
