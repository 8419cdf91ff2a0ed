"""`dice train watch RUN`: the curves of a run, in the terminal while it goes on, or as a picture."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from tyro.conf import Positional, arg

from dice.errors import MachineError, UserError
from dice.files.atomic import read_json, replacing
from dice.files.journal import Entry, read_rows
from dice.terminal import Console

Points = list[tuple[float, float]]  # (step, value)
Lines = list[Entry]

WIDTH, HEIGHT = 44, 6
LEVELS = " " + "".join(chr(0x2581 + eighth) for eighth in range(8))  # blank, and eighths of a block
SMOOTH = 5  # steps that the picture's line is a mean of
# What is shown of a run that has it: name, title, whether it is a share.
CURVES = (
    ("reward", "reward", False),
    ("exec", "Exec of the step's answers", True),
    ("eval_exec", "", True),  # see _eval_title
    ("deceptive", "deceptive", True),
    ("flat_groups", "groups without a difference", False),
    ("kl", "KL", False),
    ("clip_fraction", "clipped", True),
    ("mismatch_mean", "sampler - trainer, mean", False),
    ("loss", "loss", False),
    ("val_loss", "validation loss", False),
    ("accuracy", "accuracy at hidden tokens", True),
    ("grad_norm", "gradient norm", False),
    ("mean_tokens", "tokens of an answer", False),
    ("step_s", "seconds of a step", False),
    ("tokens_per_s", "tokens / s", False),
)
PARTS = ("decode_s", "verify_s", "wait_s", "update_s", "save_s")


@dataclass(frozen=True, slots=True)
class Curve:
    title: str
    share: bool
    points: Points

    def said(self, value: float) -> str:
        return f"{value:.1%}" if self.share else f"{value:.4g}"


@dataclass
class WatchRun:
    """Show the curves of a training run, SFT or RL, as it goes on.

    Example: dice train watch run
    """

    run_folder: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """The run folder (`out`)."""
    once: bool = False
    """Print the curves as they are, and end."""
    png: Path | None = None
    """Write the reward trajectory (of SFT: the loss) to this picture, and end."""
    seconds: float = 5.0
    """Between two looks at the run."""

    def run(self) -> int:
        lines = read_metrics(self.run_folder)
        if self.png is not None:
            draw(lines, self.png, self.run_folder.resolve().name)
            print(f"written to {self.png}")
            return 0
        console = Console(highlight=False)
        if self.once or not console.is_terminal:
            console.print(page(self.run_folder, lines))
            return 0
        with Live(page(self.run_folder, lines), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(max(0.2, self.seconds))
                live.update(page(self.run_folder, read_metrics(self.run_folder)), refresh=True)


def read_metrics(folder: Path) -> Lines:
    """The lines of a run's metrics that say a step, as far as they are whole. Raises `UserError` for no run."""
    path = folder / "metrics.jsonl"
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    if not path.exists():
        raise UserError(f"{folder} is no training run, or one that has not reported yet: it has no metrics.jsonl.")
    return [line for line in read_rows(path) if isinstance(line.get("step"), int | float)]


def curves(lines: Lines) -> list[Curve]:
    titles = {"eval_exec": _eval_title(lines)}
    found = (Curve(titles.get(name, title), share, series(lines, name)) for name, title, share in CURVES)
    return [curve for curve in found if curve.points]


def _eval_title(lines: Lines) -> str:
    """What the run's Exec on `eval_data` is: of held-out problems, unless some of them are trained on."""
    trained_on = any(line.get("eval_trained_on") for line in lines)
    return "Exec, also trained on" if trained_on else "Exec, held out"


def series(lines: Lines, name: str) -> Points:
    """(step, value) wherever `name` was measured."""
    return [(line["step"], float(line[name])) for line in lines if isinstance(line.get(name), int | float)]


def page(folder: Path, lines: Lines) -> Group:
    """Everything worth showing of a run."""
    panels = [_panel(curve) for curve in curves(lines)]
    return Group(Text(_summary(folder, lines), style="bold"), Columns(panels) if panels else Text("nothing yet"))


def _summary(folder: Path, lines: Lines) -> str:
    last = next((line for line in reversed(lines) if "seconds" in line), {})
    total = _total(folder)
    text = f"{folder.resolve().name}: step {last.get('step', 0)}{f' of {total}' if total else ''}"
    if "stage" in last:
        text += f", stage {last['stage']}"
    if "seconds" in last:
        text += f", {last['seconds'] / 3600:.2f} h"
    parts = [f"{name.removesuffix('_s')} {last[name]:.1f} s" for name in PARTS if name in last]
    return text + (f"; the last step: {', '.join(parts)}" if parts else "")


def _total(folder: Path) -> int | None:
    try:
        config = read_json(folder / "config.json")
        if "infill_steps" in config:
            return int(config["infill_steps"]) + int(config["generate_steps"])
        return int(config["max_steps"])
    except (UserError, ValueError, TypeError, KeyError, OverflowError):  # the curves do not need it
        return None


def _panel(curve: Curve) -> Panel:
    values = [value for _, value in curve.points if math.isfinite(value)]
    if not values:
        return Panel(Text("not a number"), title=Text(curve.title), width=WIDTH + 4)
    low, high = min(values), max(values)
    body = Text("\n".join(chart([value for _, value in curve.points], WIDTH, HEIGHT)), no_wrap=True)
    spread = f"{curve.said(low)} to {curve.said(high)}"
    title = f"{curve.title}: {curve.said(curve.points[-1][1])}"
    return Panel(
        body, title=Text(title), subtitle=Text(spread), title_align="left", subtitle_align="left", width=WIDTH + 4
    )


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """`height` lines of bars, from the smallest value (one eighth of a line) to the largest (full height).

    Of more than `width` values, neighbours are averaged.
    """
    columns = _squeezed([value for value in values if math.isfinite(value)], width)
    low, high = min(columns), max(columns)
    eighths = [1 + round((8 * height - 1) * (value - low) / ((high - low) or 1)) for value in columns]
    return ["".join(LEVELS[min(8, max(0, filled - 8 * row))] for filled in eighths) for row in reversed(range(height))]


def _squeezed(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    bounds = [len(values) * column // width for column in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in zip(bounds, bounds[1:], strict=False)]


def draw(lines: Lines, path: Path, name: str) -> None:
    """The reward trajectory as in the paper's Fig. 1 (right), stages apart; of an SFT run, its loss.

    Told apart by dashes, markers and shading, so that a grey print reads. Raises `MachineError` without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        raise MachineError("Pictures need matplotlib: pip install matplotlib.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [("reward", "reward of a step"), ("eval_exec", _eval_title(lines))]
    if not series(lines, "reward"):
        shown = [("loss", "loss"), ("val_loss", "validation loss")]
    if not any(series(lines, key) for key, _ in shown):
        raise UserError("The run has measured nothing that could be drawn yet.")
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=200)
    for (key, label), dashes, marker in zip(shown, ("-", "--"), ("", "o"), strict=True):
        points = series(lines, key)
        if not points:
            continue
        parts = [points]
        if not marker:
            axes.plot(*zip(*points, strict=True), color="0.7", linewidth=0.8)
            parts, label = running_means(lines, key), f"{label}, mean of {SMOOTH}"
        for index, part in enumerate(parts):
            named = label if index == 0 else None
            xs, ys = zip(*part, strict=True)
            axes.plot(xs, ys, dashes, marker=marker, markersize=4, color="black", linewidth=1.4, label=named)
    first = [line["step"] for line in lines if line.get("stage") == "infill"]
    if first and any(line.get("stage") == "generate" for line in lines):
        axes.axvspan(0, max(first) + 0.5, color="0.92", zorder=0, label="kernel infilling")
    axes.set_xlabel("step")
    axes.set_title(name, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix(".") or "png", bbox_inches="tight")
    pyplot.close(figure)


def running_means(lines: Lines, name: str) -> list[Points]:
    """The mean over the last `SMOOTH` steps, a line for each stage: stages ask for different things, and a mean over
    the border between two would show a slope that was never measured."""
    measured = [line for line in lines if isinstance(line.get(name), int | float)]
    stages = (list(part) for _, part in itertools.groupby(measured, key=lambda line: line.get("stage")))
    return [_running_mean(series(stage, name)) for stage in stages]


def _running_mean(points: Points) -> Points:
    recent = (points[max(0, end - SMOOTH) : end] for end in range(1, len(points) + 1))
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in recent]
