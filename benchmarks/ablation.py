"""What each part of BiC-RL added: the arms of `runs/ablation.sh` as one table and one figure (paper Table 6, Fig. 1).

    python benchmarks/ablation.py OUT --to benchmarks/train/ablation

OUT holds `eval/RUN` and `rl/RUN/metrics.jsonl`; a RUN is `sft`, or an arm's name and seed (`full-0`). Writes
`ablation.json` (every figure behind the table, with 95% bootstrap intervals over problems), `ablation.md` and
`ablation.png` (reward and deceptive share by step). A run that was not timed has no fast1 and fast2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dice.data.whole import write_json
from dice.evaluate.metrics import compare, summarise
from dice.evaluate.run_folder import RunFolder

ARMS = {
    "baseline": "whole kernels, shuffled",
    "scheduling": "+ data scheduling",
    "infilling": "+ kernel infilling",
    "full": "+ both (BiC-RL)",
}
COLOURS = {"baseline": "#4c6a92", "scheduling": "#c8553d", "infilling": "#588157", "full": "#6d597a"}
PROTOCOL = "dice"


def evaluation(folder: Path, sft: Path) -> dict[str, Any]:
    """Shares of one run, by level too, and its difference from the checkpoint that RL began with."""
    found = summarise(RunFolder(folder), PROTOCOL)
    shares = ("exec", "fast1", "fast2", "deception")

    def shown(score: Any) -> dict[str, Any]:
        return {"problems": score.tasks, **{name: asdict(getattr(score, name)) for name in shares}}

    levels = {level: shown(score) for level, score in found.levels.items()}
    made = {"backend": found.backend, "devices": found.devices, "outcomes": found.outcomes}
    made |= {"total": shown(found.total), "levels": levels}
    if folder != sft:
        made["against_sft"] = compare(RunFolder(sft), RunFolder(folder), PROTOCOL).to_json()
    return made


def curve(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run of RL: what was rewarded, and how long each part took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("step", "stage", "exec", "deceptive", "samples", "groups", "flat_groups", "mean_tokens")
    keys += ("decode_s", "verify_s", "update_s", "step_s", "seconds")
    return [{key: line[key] for key in keys if key in line} for line in lines if "exec" in line]


def percent(estimate: dict[str, Any], sign: str = "") -> str:
    if estimate["value"] is None:
        return "–"
    value, low, high = (100 * estimate[key] for key in ("value", "low", "high"))
    return f"{value:{sign}.1f} [{low:.0f}, {high:.0f}]"


def table(runs: dict[str, dict[str, Any]]) -> str:
    lines = ["| RL | seed | steps | Exec | level 1 / 2 / 3 | fast1 | fast2 | deceptive | Exec against SFT |"]
    lines.append("|---" * 9 + "|")
    for name, run in sorted(runs.items(), key=lambda item: _order(item[0])):
        arm, _, seed = name.partition("-")
        found = run.get("evaluation")
        row = [ARMS.get(arm, "none: SFT alone"), seed or "–", str(len(run.get("curve", []))) if seed else "–"]
        if found is None:
            lines.append("| " + " | ".join([*row, *["–"] * 6]) + " |")
            continue
        total = found["total"]
        levels = " / ".join(f"{100 * level['exec']['value']:.0f}" for level in found["levels"].values())
        gain = found.get("against_sft")
        row += [percent(total["exec"]), levels, *(percent(total[name]) for name in ("fast1", "fast2", "deception"))]
        lines.append("| " + " | ".join([*row, percent(gain["exec"], "+") if gain else "–"]) + " |")
    return "\n".join(lines) + "\n"


def _order(name: str) -> tuple[int, str]:
    arm = name.partition("-")[0]
    return (list(ARMS).index(arm) if arm in ARMS else -1, name)


def draw(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Share of right and of deceptive responses in training, step by step; a thin line each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(10, 3.6), sharex=True)
    for axes, key, title in zip(both, ("exec", "deceptive"), ("right responses", "deceptive responses"), strict=True):
        for name in sorted(runs, key=_order):
            arm, _, seed = name.partition("-")
            steps = runs[name].get("curve", [])
            style = {"color": COLOURS.get(arm, "black"), "linestyle": "-" if seed == "0" else "--", "linewidth": 1.4}
            axes.plot([step["step"] for step in steps], [100 * step[key] for step in steps], **style)
        axes.set_title(f"{title}, %", fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [pyplot.Line2D([], [], color=colour, label=ARMS[arm]) for arm, colour in COLOURS.items()]
    figure.legend(handles=handles, fontsize=9, frameon=False, loc="lower center", ncols=len(handles))
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=130, metadata={"Software": None})


def gather(out: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for name in names:
        run = runs[name] = {}
        if (out / "eval" / name).is_dir():
            run["evaluation"] = evaluation(out / "eval" / name, out / "eval" / "sft")
        if (out / "rl" / name / "metrics.jsonl").is_file():
            run["curve"] = curve(out / "rl" / name)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that runs/ablation.sh wrote")
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    names = {path.name for part in ("eval", "rl") for path in (args.out / part).glob("*") if path.is_dir()}
    if "sft" not in names:
        parser.error(f"{args.out} holds no eval/sft, which the arms are compared with: runs/ablation.sh {args.out} sft")
    runs = gather(args.out, sorted(names, key=_order))
    args.to.mkdir(parents=True, exist_ok=True)
    write_json(args.to / "ablation.json", runs)
    (args.to / "ablation.md").write_text(table(runs))
    draw(runs, args.to / "ablation.png")
    print(table(runs), end="")


if __name__ == "__main__":
    main()
