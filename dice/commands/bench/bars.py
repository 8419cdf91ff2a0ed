"""Groups of horizontal bars on a logarithmic scale, as SVG that reads on any background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OURS, THEIRS, TEXT = "#2f81f7", "#9aa4af", "#57606a"
ROW = 0.36  # inches


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float  # above 0
    text: str
    highlighted: bool


def draw_bars(title: str, subtitle: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Each group has its own scale, from half its smallest value to beyond its largest, where the texts stand."""
    from matplotlib.figure import Figure

    from dice.evaluate.report.figures import svg

    shown = [(heading, bars) for heading, bars in groups if bars]
    heights = [len(bars) + 1 for _, bars in shown]
    figure = Figure(figsize=(8.6, ROW * (sum(heights) + 2)), layout="constrained")
    figure.suptitle(f"{title}\n{subtitle}", x=0.01, ha="left", color=TEXT, fontsize=10)
    column = figure.subplots(len(shown), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (heading, bars) in zip(column, shown, strict=True):
        values = [bar.value for bar in bars]
        drawn = axes.barh(range(len(bars)), values, color=[OURS if bar.highlighted else THEIRS for bar in bars])
        axes.bar_label(drawn, [bar.text for bar in bars], padding=4, color=TEXT)
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars], color=TEXT)
        axes.set_title(heading, loc="left", color=TEXT, fontsize=10, fontweight="bold")
        axes.set(xscale="log", xlim=(min(values) / 2, max(values) * 3))
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return svg(figure)
