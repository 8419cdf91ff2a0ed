"""Groups of horizontal bars on a logarithmic scale, as an SVG that needs no library and reads on any background."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LABELS, VALUES, ROW, TOP = 860, 250, 90, 26, 58
OURS, THEIRS = "#2f81f7", "#9aa4af"


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float  # above 0
    text: str
    highlighted: bool


def draw_bars(title: str, subtitle: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Each group has its own scale, from half its smallest value to its largest."""
    parts: list[str] = []
    top = TOP
    for heading, bars in groups:
        if not bars:
            continue
        parts.append(_text(12, top + 18, heading, "font-weight='bold'"))
        top += ROW
        low = math.log(min(bar.value for bar in bars) / 2)
        span = math.log(max(bar.value for bar in bars)) - low
        for bar in bars:
            length = (WIDTH - LABELS - VALUES) * (math.log(bar.value) - low) / span
            colour = OURS if bar.highlighted else THEIRS
            parts.append(_text(12, top + 17, bar.label))
            parts.append(f"<rect x='{LABELS}' y='{top + 4}' width='{length:.1f}' height='18' rx='2' fill='{colour}'/>")
            parts.append(_text(LABELS + length + 6, top + 17, bar.text))
            top += ROW
        top += ROW // 2
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{top}' viewBox='0 0 {WIDTH} {top}'>"
    style = "<style>text{font:13px sans-serif;fill:#57606a}</style>"
    titles = _text(12, 22, title, "font-weight='bold' font-size='15'") + _text(12, 42, subtitle)
    return "\n".join([head, style, titles, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}</text>"
