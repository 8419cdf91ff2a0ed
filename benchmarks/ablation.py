"""What each part of BiC-RL added: the arms of `runs/ablation.sh` as one table and one figure (paper Table 6, Fig. 1).

    python benchmarks/ablation.py OUT --to benchmarks/train/ablation

OUT holds `eval/RUN` and `rl/RUN/metrics.jsonl`; a RUN is `sft`, or an arm's name and seed (`full-0`). Writes
`ablation.json` (every figure behind the table, with 95% bootstrap intervals over problems), `ablation.md` and
`ablation.png` (reward and deceptive share by step). A run that was not timed has no fast1 and fast2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dice.commands.train.curves import read_metrics
from dice.evaluate.metrics import Comparison, Score, Summary, compare, summarise
from dice.evaluate.run_folder import RunFolder
from dice.files.atomic import write_json

ARMS = {
    "baseline": "whole kernels, shuffled",
    "scheduling": "+ data scheduling",
    "infilling": "+ kernel infilling",
    "full": "+ both (BiC-RL)",
}
COLOURS = {"baseline": "#4c6a92", "scheduling": "#c8553d", "infilling": "#588157", "full": "#6d597a"}
PROTOCOL = "dice"
NONE = "–"


@dataclass(frozen=True)
class Run:
    """One line of the table. `gain`: against the checkpoint that RL began with, which has none itself."""

    name: str
    summary: Summary | None
    gain: Comparison | None
    curve: list[dict[str, Any]]  # what was rewarded at each step, and how long its parts took

    @property
    def arm(self) -> str:
        return self.name.partition("-")[0]

    @property
    def seed(self) -> str:
        return self.name.partition("-")[2]

    @classmethod
    def read(cls, out: Path, name: str) -> Run:
        judged, trained = out / "eval" / name, out / "rl" / name
        sft = out / "eval" / "sft"
        summary = summarise(RunFolder(judged), PROTOCOL) if judged.is_dir() else None
        gain = compare(RunFolder(sft), RunFolder(judged), PROTOCOL) if summary and judged != sft else None
        return cls(name, summary, gain, curve(trained) if (trained / "metrics.jsonl").is_file() else [])

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self.summary is not None:
            made["evaluation"] = {name: getattr(self.summary, name) for name in ("backend", "devices", "outcomes")}
            made["evaluation"]["total"] = shares(self.summary.total)
            made["evaluation"]["levels"] = {level: shares(score) for level, score in self.summary.levels.items()}
        if self.gain is not None:
            made["evaluation"]["against_sft"] = self.gain.to_json()
        return made | ({"curve": self.curve} if self.curve else {})

    def row(self) -> list[str]:
        told = [ARMS.get(self.arm, "none: SFT alone"), self.seed or NONE, str(len(self.curve)) if self.seed else NONE]
        if self.summary is None:
            return [*told, *[NONE] * 6]
        score = self.summary.total
        levels = " / ".join(f"{100 * (level.exec.value or 0):.0f}" for level in self.summary.levels.values())
        fast = (estimate.percent(empty=NONE) for estimate in (score.fast1, score.fast2, score.deception))
        gain = self.gain.exec.percent("+") if self.gain else NONE
        return [*told, score.exec.percent(empty=NONE), levels, *fast, gain]


def shares(score: Score) -> dict[str, Any]:
    estimates = {name: asdict(getattr(score, name)) for name in ("exec", "fast1", "fast2", "deception")}
    return {"problems": score.tasks, **estimates}


def curve(folder: Path) -> list[dict[str, Any]]:
    keys: tuple[str, ...] = ("step", "stage", "exec", "deceptive", "samples", "groups", "flat_groups", "mean_tokens")
    keys += ("decode_s", "verify_s", "update_s", "step_s", "seconds")
    return [{key: line[key] for key in keys if key in line} for line in read_metrics(folder) if "exec" in line]


def table(runs: Sequence[Run]) -> str:
    columns = ("RL", "seed", "steps", "Exec", "level 1 / 2 / 3", "fast1", "fast2", "deceptive", "Exec against SFT")
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *(run.row() for run in runs))]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]) + "\n"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Share of right and of deceptive responses in training, step by step; a thin line each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figure, both = pyplot.subplots(1, 2, figsize=(10, 3.6), sharex=True)
    for axes, key, title in zip(both, ("exec", "deceptive"), ("right responses", "deceptive responses"), strict=True):
        for run in runs:
            style = {"color": COLOURS.get(run.arm, "black"), "linestyle": "-" if run.seed == "0" else "--"}
            shown = [100 * step[key] for step in run.curve]
            axes.plot([step["step"] for step in run.curve], shown, linewidth=1.4, **style)
        axes.set_title(f"{title}, %", fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], color=colour, label=ARMS[arm]) for arm, colour in COLOURS.items()]
    figure.legend(handles=handles, fontsize=9, frameon=False, loc="lower center", ncols=len(handles))
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _order(name: str) -> tuple[int, str]:
    arm = name.partition("-")[0]
    return (list(ARMS).index(arm) if arm in ARMS else -1, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that runs/ablation.sh wrote")
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    names = {path.name for part in ("eval", "rl") for path in (args.out / part).glob("*") if path.is_dir()}
    if "sft" not in names:
        parser.error(f"{args.out} holds no eval/sft, which the arms are compared with: runs/ablation.sh {args.out} sft")
    runs = [Run.read(args.out, name) for name in sorted(names, key=_order)]
    args.to.mkdir(parents=True, exist_ok=True)
    write_json(args.to / "ablation.json", {run.name: run.to_json() for run in runs})
    (args.to / "ablation.md").write_text(table(runs))
    draw(runs, args.to / "ablation.png")
    print(table(runs), end="")


if __name__ == "__main__":
    main()
