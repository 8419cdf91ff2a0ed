"""Block diffusion and autoregressive models after the same SFT on parts of a data set (paper Table 7, Fig. 5).

    python benchmarks/data_efficiency.py run OUT --data PAIRS --problems PROBLEMS --size nano --to RESULTS
    python benchmarks/data_efficiency.py report OUT --size nano --to RESULTS

PAIRS is what `dice train sft` takes as data, PROBLEMS what `dice eval` takes. For each seed the pairs are put in an
order of its own, and a part is a beginning of it, so that parts are nested. SDAR and Qwen3 train on the same parts with
the same settings, for the same number of passes (`--epochs`) or, with `--steps`, of steps; decoding is greedy.

`--size` tiny, nano or mini: both from scratch in one shape, so that they start from nothing. 1.7b, 4b or 8b: from
SDAR-Chat and Qwen3 with the paper's recipe (`--base` for local folders), and the gain is over those. `run` stops after
`--seconds` and then exits with 75; the same command goes on. Intervals are over seeds and problems (`paired.py`).
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jobs import Job, JobFailed, Jobs, dice, remember
from paired import Effect, Floats, effect

from dice.data.pairs import read_pairs
from dice.errors import UserError
from dice.evaluate.run_folder import RunFolder
from dice.files.atomic import write_json, write_parquet

AGAIN = 75  # the exit code of a run that is not finished
FAMILIES = ("sdar", "qwen3")
SHARES = (0.125, 0.25, 0.5, 1.0)
PROTOCOL = "dice-paper"
BASES = {
    size: (f"JetLM/SDAR-{size.upper()}-Chat", f"Qwen/Qwen3-{size.upper()}") for size in ("1.7b", "4b", "8b")
}  # fmt: skip
SCRATCH = ("tiny", "nano", "mini")


@dataclass(frozen=True)
class Study:
    """What is trained and where. `bases`: a model of each family to start from; none: from scratch."""

    out: Path
    size: str
    seeds: tuple[int, ...]
    shares: tuple[float, ...]
    length: tuple[str, ...]
    bases: tuple[str, ...]
    data: Path | None
    problems: Path | None
    vocabulary: int
    launcher: tuple[str, ...]
    sft_flags: tuple[str, ...]
    eval_flags: tuple[str, ...]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Study:
        length = ("--epochs", args.epochs, "--max-steps", None)
        if args.steps is not None:
            length = ("--epochs", None, "--max-steps", args.steps)
        bases = () if args.size in SCRATCH else tuple(args.base or BASES[args.size])
        return cls(
            args.out.absolute(), args.size, tuple(args.seeds), tuple(sorted(args.shares)), tuple(map(str, length)),
            bases, args.data and args.data.absolute(), args.problems and args.problems.absolute(), args.vocabulary,
            tuple(shlex.split(args.launcher)), tuple(shlex.split(args.sft_flags)), tuple(shlex.split(args.eval_flags)),
        )  # fmt: skip

    def part(self, seed: int, share: float) -> Path:
        return self.out / "parts" / f"{seed}-{share:g}.parquet"

    def run(self, family: str, seed: int, share: float) -> str:
        """The name of a training run; share 0 is the model before it."""
        return f"{family}-base" if not share else f"{family}-{seed}-{share:g}"

    def jobs(self) -> list[Job]:
        """Every command, with what it needs."""
        parts = [sys.executable, __file__, "parts", str(self.out), "--data", str(self.data), "--size", self.size]
        parts += ["--seeds", *map(str, self.seeds), "--shares", *map(str, self.shares)]
        found = [Job("parts", tuple(parts))]
        needs: tuple[str, ...] = ("parts",)
        if not self.bases:
            words = ("--out", self.out / "tokenizer", "--vocab-size", self.vocabulary)
            found.append(Job("tokenizer", dice("data", "tokenizer", "--data", self.data, *words)))
            needs = ("parts", "tokenizer")
        for index, family in enumerate(FAMILIES):
            if self.bases:
                name = self.run(family, 0, 0)
                found.append(Job(f"eval-{name}", self._evaluation(self.bases[index], name)))
            for seed in self.seeds:
                for share in self.shares:
                    name = self.run(family, seed, share)
                    found += [
                        Job(f"sft-{name}", self._training(index, seed, share), needs),
                        Job(
                            f"eval-{name}", self._evaluation(self.out / "sft" / name / "model", name), (f"sft-{name}",)
                        ),
                    ]
        return found

    def _training(self, index: int, seed: int, share: float) -> tuple[str, ...]:
        family = FAMILIES[index]
        recipe = f"{self.size}_sft" if not self.bases else f"paper_{self.size.replace('.', '_')}_sft"
        if self.bases:
            start: tuple[object, ...] = ("--model", self.bases[index])
        else:
            start = ("--tokenizer", self.out / "tokenizer", "--shape.family", family)
        command = dice(
            "train", "sft", "--recipe", recipe, *start, "--data", self.part(seed, share), "--seed", seed,
            "--out", self.out / "sft" / self.run(family, seed, share), *self.length, *self.sft_flags,
        )  # fmt: skip
        return (*self.launcher, *command[1:]) if self.launcher else command

    def _evaluation(self, model: str | Path, name: str) -> tuple[str, ...]:
        return dice(
            "eval", "--model", model, "--problems", self.problems, "--out", self.out / "eval" / name, "--protocol",
            PROTOCOL, "--temperature", 0, "--no-timing", "--cache", *self.eval_flags,
        )  # fmt: skip


def write_parts(study: Study) -> None:
    """Nested beginnings of a shuffled order of the pairs, one order a seed."""
    if study.data is None:
        raise UserError("parts are cut from --data.")
    pairs = read_pairs(study.data)
    for seed in study.seeds:
        order = random.Random(seed).sample(range(len(pairs)), len(pairs))
        for share in study.shares:
            chosen = [pairs[index] for index in order[: max(1, round(share * len(pairs)))]]
            rows = [{"messages": [*pair.messages, {"role": "assistant", "content": pair.response}]} for pair in chosen]
            study.part(seed, share).parent.mkdir(parents=True, exist_ok=True)
            write_parquet(study.part(seed, share), pa.Table.from_pylist(rows))


def results(study: Study) -> dict[str, Any]:
    """Exec of every family and part, its gain over the start, and what SDAR gains more than Qwen3."""
    found: dict[str, Any] = {"size": study.size, "seeds": list(study.seeds), "parts": {}}
    for share in study.shares:
        gains, told = {}, {}
        for family in FAMILIES:
            after = np.array([solved(study, study.run(family, seed, share)) for seed in study.seeds])
            before = np.zeros_like(after)
            if study.bases:
                before += solved(study, study.run(family, 0, 0))
            gains[family] = after - before
            told[family] = {"exec": effect(after).to_json(), "gain": effect(gains[family]).to_json()}
        difference = effect(gains["sdar"] - gains["qwen3"]).to_json()
        found["parts"][f"{share:g}"] = told | {"sdar_less_qwen3": difference}
    return found


def solved(study: Study, name: str) -> Floats:
    """[problems]: 1 where the one answer is correct."""
    folder = RunFolder(study.out / "eval" / name)
    right = {one.task for one in folder.judgements(PROTOCOL) if one.verdict.correct}
    return np.array([float(task.key in right) for task in folder.tasks()])


def table(found: dict[str, Any]) -> str:
    lines = ["| part of the data | SDAR gains | Qwen3 gains | SDAR less Qwen3 |", "|---|---|---|---|"]
    for share, part in found["parts"].items():
        effects = (part["sdar"]["gain"], part["qwen3"]["gain"], part["sdar_less_qwen3"])
        lines.append(f"| {share} | " + " | ".join(Effect(**one).percent() for one in effects) + " |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Any], path: Path) -> None:
    """Gain by part of the data, with 95% intervals (the paper's Fig. 5 has one part, and sizes along the axis)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.4))
    for family, colour in zip(FAMILIES, ("#c8553d", "#4c6a92"), strict=True):
        points = [(float(share), part[family]["gain"]) for share, part in found["parts"].items()]
        middle = [100 * one["value"] for _, one in points]
        spread = [
            [100 * (one["value"] - one["low"]) for _, one in points],
            [100 * (one["high"] - one["value"]) for _, one in points],
        ]
        label = {"sdar": "SDAR (block diffusion)", "qwen3": "Qwen3 (autoregressive)"}[family]
        axes.errorbar([share for share, _ in points], middle, spread, color=colour, marker="o", capsize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("part of the data")
    axes.set_ylabel("gain of Exec, points")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("run", "report", "parts"), help="parts is a job of run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=(*SCRATCH, *BASES), required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--base", nargs=2, metavar=("SDAR", "QWEN3"), help="folders instead of the published models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--steps", type=int, help="instead of epochs: equal work at every share")
    parser.add_argument("--vocabulary", type=int, default=2048, help="of models from scratch")
    parser.add_argument("--launcher", default="", help='instead of python: "torchrun --standalone --nproc-per-node 8"')
    parser.add_argument("--sft-flags", default="", help="more flags of dice train sft, the same for both")
    parser.add_argument("--eval-flags", default="", help="more flags of dice eval")
    parser.add_argument("--to", type=Path, help="where results go")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--parallel", type=int, default=1, help="commands side by side, each on its share of the cores")
    args = parser.parse_args(arguments)
    study = Study.of(args)
    if args.part == "run" and not (args.data and args.problems):
        parser.error("run needs --data and --problems")
    if args.part != "parts" and args.to is None:
        parser.error(f"{args.part} needs --to, the folder for its results")
    try:
        if args.part == "parts":
            write_parts(study)
            return 0
        if args.part == "run":
            remember(study.out, asdict(study))
            if not Jobs(study.out, study.jobs(), args.parallel).run(args.seconds):
                print("Not finished: give the same command again.")
                return AGAIN
        found = results(study)
    except (JobFailed, UserError) as error:
        print(f"data_efficiency.py: {error}", file=sys.stderr)
        return 1
    args.to.mkdir(parents=True, exist_ok=True)
    write_json(args.to / "data_efficiency.json", found)
    (args.to / "data_efficiency.md").write_text(table(found))
    draw(found, args.to / "data_efficiency.png")
    print(table(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
