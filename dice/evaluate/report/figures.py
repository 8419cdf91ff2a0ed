"""The report's figures with matplotlib: told apart by hatching, markers and dashes, so that grey prints read."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dice.errors import MachineError
from dice.evaluate.report.gather import Report, Run
from dice.evaluate.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct under every common colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
MARKERS, DASHES = "osD^vPX", ("-", "--", ":", "-.", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
NARROW = 24  # characters of a name in a legend: of longer ones, two stand side by side and not three
FILLS = ("full", "none", "left", "right", "top", "bottom")
PARTS = {  # what a bar of Fig. 6 is made of: colour, hatch
    "correct": ("#009e73", ""),
    "generation failure": ("#7f7f7f", "..."),
    "execution failure": ("#d55e00", "///"),
    "functional incorrectness": ("#e69f00", "\\\\\\"),
    "deceptive": ("#cc79a7", "xxx"),
}
INK = "#1b1f24"  # of text and axes; a page puts its own text colour in its place
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "dice",
    "figure.dpi": 100,
    "savefig.dpi": 220,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
}


def draw_all(report: Report) -> dict[str, Figure]:
    """The figures that these runs have something for, by file name. Raises `MachineError` without matplotlib."""
    pyplot = _matplotlib()
    drawn: dict[str, Figure] = {}
    with pyplot.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw(report)
            if figure is not None:
                drawn[name] = figure
    return drawn


def save(figures: dict[str, Figure], folder: Path) -> list[Path]:
    """Each as SVG and PNG; the same report gives the same SVG, byte for byte."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        (folder / f"{name}.svg").write_text(svg(figure), encoding="utf-8")
        with _matplotlib().rc_context(STYLE):
            figure.savefig(folder / f"{name}.png", facecolor="white", bbox_inches="tight")
        written += [folder / f"{name}.svg", folder / f"{name}.png"]
    return written


def svg(figure: Figure) -> str:
    """Text stays text, nothing is loaded from elsewhere, the ground is transparent."""
    file = io.StringIO()
    with _matplotlib().rc_context(STYLE):
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata=metadata)
    return file.getvalue()


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """For a page: its own ids, the page's text colour, and a title for those who cannot see it."""
    text = svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = text.replace(INK, "currentColor")
    head = f'<svg role="img" aria-label="{title}" '
    return text.replace("<svg ", head, 1)


def failure_bars(report: Report) -> Figure | None:
    """Fig. 6: what became of every answer, a bar for each run and protocol."""
    bars = [(run, protocol, found) for run in report.runs for protocol, found in run.failures.items() if found.judged]
    if not bars:
        return None
    figure, axes = _new(7.2, 1.1 + 0.42 * len(bars))
    for row, (_, _, found) in enumerate(bars):
        start = 0.0
        for part, (colour, hatch) in PARTS.items():
            count = found.correct if part == "correct" else found.classes[part]
            width = 100 * count / found.judged
            axes.barh(row, width, left=start, height=0.66, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6)
            if width >= 6:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
                axes.text(
                    start + width / 2, row, str(count), ha="center", va="center", fontsize=7, color="black", bbox=box
                )
            start += width
    axes.set_yticks(range(len(bars)), [_label(report, run, protocol) for run, protocol, _ in bars])
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="share of judged answers (%)", title="What became of the answers")
    axes.grid(axis="y", visible=False)
    from matplotlib.patches import Patch

    parts = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=part) for part, (colour, hatch) in PARTS.items()
    ]
    figure.legend(handles=parts, ncols=3, loc="upper left", bbox_to_anchor=(0.0, 0.0))
    return figure


def failure_families(report: Report) -> Figure | None:
    """The failures of the first run under the strictest protocol, by operator family."""
    run = report.runs[0]
    found = next(iter(run.failures.values()), None)
    if found is None or not found.judged_by_family:
        return None
    families = sorted(found.judged_by_family, key=lambda name: (-found.judged_by_family[name], name))
    figure, axes = _new(7.2, 1.1 + 0.3 * len(families))
    starts = [0.0] * len(families)
    for part, (colour, hatch) in PARTS.items():
        failed = [found.by_family.get(name, {}) for name in families]
        if part == "correct":
            counts = [
                found.judged_by_family[name] - sum(of.values()) for name, of in zip(families, failed, strict=True)
            ]
        else:
            counts = [of.get(part, 0) for of in failed]
        axes.barh(
            families, counts, left=starts, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6, label=part
        )
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="answers", title=f"By operator family: {run.label}, {next(iter(run.failures))}")
    axes.xaxis.set_major_locator(_whole_numbers())
    _legend(figure)
    return figure


def fast_p_curves(report: Report) -> Figure | None:
    """The share that is correct and more than p times as fast, against p."""
    curves = [
        (run, protocol, found.total.fast_p)
        for run in report.runs
        for protocol, found in run.summaries.items()
        if found.total.fast_p
    ]
    if not curves:
        return None
    figure, axes = _new(5.4, 3.4)
    for run, protocol, points in curves:
        look = _look(report, run, protocol)
        xs, ys = [p for p, _ in points], [100 * share for _, share in points]
        axes.plot(xs, ys, markevery=2, markersize=4, linewidth=1.4, label=_label(report, run, protocol), **look)
    last = max((p for _, _, points in curves for p, share in points if share >= 0.005), default=0.0)
    axes.axvline(1, color=INK, linewidth=0.8, alpha=0.5)
    axes.set(xlim=(0, min(5.0, max(2.5, last))), ylim=(0, None), title="fast_p")
    axes.set(xlabel="p (times as fast as PyTorch)", ylabel="correct and more than p times as fast (%)")
    _legend(figure)
    return figure


def speed_and_correctness(report: Report) -> Figure | None:
    """Fig. 1 left: how many are right against how many are also faster; the paper's rows hollow."""
    points = [
        (run, protocol, found.total)
        for run in report.runs
        for protocol, found in run.summaries.items()
        if found.total.exec.value is not None and found.total.fast1.value is not None
    ]
    if not points:
        return None
    figure, axes = _new(5.4, 3.8)
    names = []
    if report.published:
        axes.scatter([], [], s=22, facecolors="none", edgecolors="#7f7f7f", linewidths=0.9, label="published")
    for row in report.published:
        exec_, fast1, _ = row.total
        axes.scatter(100 * exec_, 100 * fast1, s=22, facecolors="none", edgecolors="#7f7f7f", linewidths=0.9)
        if row.name.startswith("DICE") or exec_ >= 0.2:
            names.append((row.name, 100 * exec_, 100 * fast1))
    for run, protocol, total in points:
        bars = axes.errorbar(
            100 * (total.exec.value or 0.0),
            100 * (total.fast1.value or 0.0),
            xerr=_whiskers(total.exec),
            yerr=_whiskers(total.fast1),
            markersize=6,
            elinewidth=0.8,
            label=_label(report, run, protocol),
            **_look(report, run, protocol) | {"linestyle": "none"},
        )
        for whisker in bars[2]:
            whisker.set_alpha(0.6)
    axes.set(xlabel="Exec (%)", ylabel="fast_1 (%)", title="Speed against correctness", xlim=(0, None), ylim=(0, None))
    axes.margins(0.06)
    _legend(figure)
    _place_names(figure, axes, names)
    return figure


def gains_by_size(report: Report) -> Figure | None:
    """Fig. 5's idea: points of Exec gained over the published SDAR-Chat of the same size. None where no run here has
    a size that was published."""
    bases = {row.size: row for row in report.published if row.name.startswith("SDAR-Chat")}
    bars = [
        (
            row.size,
            f"{row.name}\npublished",
            [value - base for value, base in zip(row.total, bases[row.size].total, strict=True)],
        )
        for row in report.published
        if row.name.startswith("DICE") and row.size in bases
    ]
    of_the_paper = len(bars)
    for run in report.runs:
        for protocol, found in run.summaries.items():
            shares = (found.total.exec.value, found.total.fast1.value, found.total.fast2.value)
            if run.size in bases and None not in shares:
                pairs = zip(shares, bases[run.size].total, strict=True)
                name = run.label if run.size in run.label else f"{run.label} ({run.size})"
                bars.append((run.size, f"{name}\n{protocol}", [(value or 0) - base for value, base in pairs]))
    if len(bars) == of_the_paper:
        return None
    bars.sort(key=lambda bar: float(re.sub(r"[^\d.]", "", bar[0]) or 0))
    figure, axes = _new(7.2, 1.2 + 0.62 * len(bars))
    for index, (name, hatch) in enumerate((("Exec", ""), ("fast_1", "///"), ("fast_2", "..."))):
        places = [place + (index - 1) * 0.26 for place in range(len(bars))]
        points = [100 * gains[index] for _, _, gains in bars]
        axes.barh(places, points, height=0.24, color=COLOURS[index], hatch=hatch, edgecolor="white", label=name)
    axes.set_yticks(range(len(bars)), [name for _, name, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="points of percent over SDAR-Chat", title="Gain by size, over the published SDAR-Chat")
    _legend(figure)
    return figure


FIGURES: dict[str, Callable[[Report], Figure | None]] = {
    "failures": failure_bars,
    "speed_and_correctness": speed_and_correctness,
    "fast_p": fast_p_curves,
    "failures_by_family": failure_families,
    "gains_by_size": gains_by_size,
}
TITLES = {
    "failures": "What became of the answers, by failure class",
    "speed_and_correctness": "Speed against correctness",
    "fast_p": "fast_p curves",
    "failures_by_family": "Failures by operator family",
    "gains_by_size": "Gain by model size",
}


def _matplotlib() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MachineError("Figures need matplotlib: pip install matplotlib.") from None
    return pyplot


def _new(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _look(report: Report, run: Run, protocol: str) -> dict[str, Any]:
    """Colour and marker tell runs apart, dashes and filling protocols; for a single run all of them tell protocols."""
    which, how = report.runs.index(run), report.protocols.index(protocol)
    own = how if len(report.runs) == 1 else which
    return {
        "color": COLOURS[own % len(COLOURS)],
        "marker": MARKERS[own % len(MARKERS)],
        "linestyle": DASHES[how % len(DASHES)],
        "fillstyle": FILLS[how % len(FILLS)],
    }


def _legend(figure: Figure) -> None:
    """Below the axes, where it covers nothing that is drawn."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    narrow = max(map(len, labels)) > NARROW
    figure.legend(handles, labels, ncols=2 if narrow else 3, loc="upper left", bbox_to_anchor=(0.0, 0.0))


def _whole_numbers() -> Any:
    """Ticks for an axis that counts."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def _place_names(figure: Figure, axes: Axes, names: list[tuple[str, float, float]]) -> None:
    """Each beside its point, where it covers no other name; one that has no such place is left out."""
    figure.draw_without_rendering()
    taken: list[Any] = []
    for name, x, y in names:
        for dx, dy, side in ((5, 3, "left"), (5, -9, "left"), (-5, 3, "right"), (-5, -9, "right"), (0, 8, "center")):
            text = axes.annotate(name, (x, y), xytext=(dx, dy), textcoords="offset points", fontsize=6.5, ha=side)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken) and axes.bbox.x1 >= box.x1:
                taken.append(box)
                break
            text.remove()


def _label(report: Report, run: Run, protocol: str) -> str:
    several_protocols = len(report.protocols) > 1
    parts = [run.label] if len(report.runs) > 1 or not several_protocols else []
    parts += [protocol] if several_protocols else []
    return ", ".join(parts)


def _whiskers(estimate: Estimate) -> list[list[float]] | None:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    return [[100 * max(0.0, below)], [100 * max(0.0, above)]]
