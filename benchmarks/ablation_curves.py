"""The picture of `ablation.py`: right and deceptive responses by step of training, a line for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dice.files.atomic import replacing

# Arms are told apart by dashes and grey, so that a print reads, an honest reward by its colour; the starts of an arm
# are averaged.
STYLES = {
    "baseline": ("-", "black"),
    "scheduling": ("--", "black"),
    "infilling": ("-", "0.55"),
    "full": ("--", "0.55"),
    "full-scaffold": (":", "0.55"),
    "baseline-honest": ("-", "tab:blue"),
    "full-honest": ("--", "tab:blue"),
}
PANELS = (("exec", "right, by the reward"), ("shown_deceptive", "deceptive on sight"))


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """`runs`: those of `ablation.json`; of each arm and seed the longest. Steps before 0 are infilling."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9.6, 3.4), dpi=160, sharex=True)
    for (key, title), axes in zip(PANELS, panels, strict=True):
        for arm, (dashes, colour) in STYLES.items():
            steps, values = mean_curve(runs, arm, key)
            if steps:
                axes.plot(steps, values, dashes, color=colour, linewidth=1.4, label=arm)
        axes.axvline(0.5, color="0.85", linewidth=0.8, zorder=0)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("whole-kernel step (0 and before: infilling)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("share of a step's responses")
    panels[0].legend(frameon=False, fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight")
    pyplot.close(figure)


def mean_curve(runs: Sequence[Mapping[str, Any]], arm: str, key: str) -> tuple[list[int], list[float]]:
    """Whole-kernel steps and the mean over the seeds that reached each of them."""
    longest: dict[int, Mapping[str, Any]] = {}
    for run in runs:
        if run["arm"] == arm and run["e2e"] >= longest.get(run["seed"], {"e2e": 0})["e2e"]:
            longest[run["seed"]] = run
    values: dict[int, list[float]] = {}
    for run in longest.values():
        for line in run["curve"]:
            values.setdefault(line["step"] - run["infill"], []).append(line[key])
    steps = sorted(values)
    return steps, [float(np.mean(values[step])) for step in steps]
