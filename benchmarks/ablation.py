"""What each part of BiC-RL does (paper Table 6, Fig. 1): a 2 x 2 experiment on a small model, planned before it is run.

    python benchmarks/ablation.py run OUT --to RESULTS [--part rewards] [--seconds 560] [--parallel 4] [--smoke]
    python benchmarks/ablation.py report OUT --to RESULTS [--part rewards]

`run` does what is not done yet, stops after `--seconds`, and says whether the same command has to be given again (exit
code 75). Kernels are verified by emulation, on the CPUs; models are trained and decoded on a GPU where there is one.
RESULTS gets the figures, and every judged answer's outcome. `--smoke`: every part of it in minutes on two cores, with a
handful of problems and the shipped nano to start from; its figures mean nothing.

Plan, fixed beforehand:

- Start: nano's shape from scratch, two seeds, SFT on pairs of which 15, 35 and 50 % (one, two, more operators) deceive
  and 5 % are wrong, a tenth written once more as infilling; stopped at the first look, after 3,250 steps and then every
  750, at which 40 % of the selection problems are solved under `dice`. Wanted there: Exec 40 to 50 %, deceptive 5 to
  15 %. (A pilot of the start alone with 5, 15 and 25 % came to 50 and 41 % after 3,250 steps, and to no deception.)
- Arms, each from both starts, of equal whole-kernel steps; infilling is on top of them, in the paper's proportion (20 +
  100 against 100): baseline 15 shuffled; scheduling 15 scheduled; infilling 3 + 15 shuffled; full 3 + 15 scheduled. The
  baseline goes on to 18 steps: as many updates as the arms with infilling have. Steps are fixed, never seconds.
- A step: 16 problems x 8 responses, equal thirds of single operators, fusions and models in all sets; 16 responses an
  update, so that clipping and KL act; lr 2e-5, KL 0.01; infilling asks for whole files; the reward is execution alone
  (`kernelbench-v0`), as in the paper, so that whole-kernel RL cannot see deception.
- `--part rewards`, from one start of its own, told apart and not tested: baseline and full once more, full by scaffold,
  baseline and full with the reward `dice`; both baselines also after the 4 whole-kernel steps at which the arms with
  infilling of the first ablation ended.
- Primary endpoints: Exec on the held-out problems under `dice-paper` after 15 whole-kernel steps: (1) main effect of
  infilling, (2) of scheduling, (3) full less baseline at equal whole-kernel steps, (4) full less baseline at equal
  updates (18). Paired by problem, hierarchical bootstrap over starts and then problems, two-sided, Holm over the four;
  smaller than 5 points is claimed where the 90 % interval lies within.
- Secondary, intervals only: the same four for the deceptive share and for Exec under `dice`; Exec among answers that do
  not deceive; by level; the mean share of right responses over the whole-kernel steps of training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from ablation_curves import draw as draw_curves
from ablation_sets import Sizes, cut, draw, draw_few
from jobs import Job, JobFailed, Jobs, dice, remember
from paired import Effect, Floats, contrast, effect, holm

from dice.commands.bench.verify import machine
from dice.commands.train.curves import read_metrics
from dice.errors import UserError
from dice.evaluate.run_folder import RunFolder
from dice.files.atomic import read_json, write_json
from dice.verify.options import visible_gpus

AGAIN = 75  # the exit code of a run that is not finished
PRIMARY, HONEST = "dice-paper", "dice"
PROTOCOLS = (PRIMARY, "kernelbench-v0", HONEST)
ENOUGH = 0.4  # Exec at which SFT stops
EARLY = 4  # whole-kernel steps of the first ablation's arms with infilling
MARGIN = 0.05
DECODING = ("--prompt", "compact", "--confidence-threshold", 0.99)
EMULATED = ("--backend", "emulated")


@dataclass(frozen=True)
class Arm:
    """`e2e`: whole-kernel steps that are planned, `looks` those after which it is evaluated."""

    name: str
    infill: int
    e2e: int
    order: str
    looks: tuple[int, ...]
    seeds: tuple[int, ...]
    form: str = "whole"
    protocol: str = "kernelbench-v0"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that the real experiment and a first look at it differ in. `looks` of SFT: steps, the last is taken at the
    latest."""

    sizes: Sizes
    seeds: tuple[int, ...]
    infill: int
    e2e: int
    middle: tuple[int, ...]
    sft_looks: tuple[int, ...]
    sft_flags: tuple[object, ...]
    rl_flags: tuple[object, ...]
    eval_flags: tuple[object, ...]
    raw_flags: tuple[object, ...]
    vocabulary: int
    first_look: bool = False
    rewards: bool = False

    @property
    def updates(self) -> int:
        """Whole-kernel steps of the baseline that has as many updates as the arms with infilling."""
        return self.infill + self.e2e

    @property
    def arms(self) -> list[Arm]:
        looks, both = (*self.middle, self.e2e), self.seeds
        if self.rewards:
            end, early = (self.e2e,), (EARLY, self.e2e)
            return [
                Arm("baseline", 0, self.e2e, "shuffled", early, both),
                Arm("full", self.infill, self.e2e, "scheduled", end, both),
                Arm("full-scaffold", self.infill, self.e2e, "scheduled", end, both, form="scaffold"),
                Arm("baseline-honest", 0, self.e2e, "shuffled", early, both, protocol=HONEST),
                Arm("full-honest", self.infill, self.e2e, "scheduled", end, both, protocol=HONEST),
            ]
        return [
            Arm("baseline", 0, self.updates, "shuffled", (*looks, self.updates), both),
            Arm("scheduling", 0, self.e2e, "scheduled", looks, both),
            Arm("infilling", self.infill, self.e2e, "shuffled", looks, both),
            Arm("full", self.infill, self.e2e, "scheduled", looks, both),
        ]


REAL = Plan(
    sizes=Sizes(generate=160, infill=40, heldout=100, selection=40, corpus_pairs=15000, heldout_draws=20000),
    seeds=(0, 1), infill=3, e2e=15, middle=(),
    sft_looks=(3250, 4000, 5000),
    sft_flags=("--recipe", "nano_sft", "--schedule", "constant_with_warmup"),
    rl_flags=(
        "--recipe", "nano_rl", "--problems", 16, "--responses", 8, "--policy.minibatch", 16, "--policy.lr", 2e-5,
        "--policy.kl-coef", 0.01,
    ),
    eval_flags=("--max-new-tokens", 1536),
    raw_flags=("--deceptive", 0.15, 0.35, 0.5, "--wrong", 0.05),
    vocabulary=2048,
)  # fmt: skip
SMOKE = Plan(
    sizes=Sizes(generate=1, infill=1, heldout=1, selection=1, corpus_pairs=0, heldout_draws=0),
    seeds=(0, 1), infill=1, e2e=1, middle=(), sft_looks=(1, 2),
    sft_flags=(
        "--recipe", "nano_sft", "--model", "nano", "--ema", None, "--lr", 1e-4, "--row-tokens", 1024, "--batch-rows", 1,
        "--micro-rows", 1,
    ),
    rl_flags=(
        "--recipe", "nano_rl", "--problems", 3, "--responses", 3, "--temperature", 1.6,
        "--max-new-tokens", 768, "--policy.minibatch", 2,
        "--policy.row-tokens", 2048, "--eval-every", 100,
    ),
    eval_flags=("--max-new-tokens", 768),
    raw_flags=("--deceptive", 0.3, 0.3, 0.3, "--wrong", 0.05),
    vocabulary=1024, first_look=True,
)  # fmt: skip


# The jobs


def jobs(out: Path, plan: Plan) -> list[Job]:
    found = _data_jobs(out, plan)
    for seed in plan.seeds:
        found += _sft_jobs(out, plan, seed)
    for arm in plan.arms:
        for seed in arm.seeds:
            found += _arm_jobs(out, plan, arm, seed)
    return found


def _data_jobs(out: Path, plan: Plan) -> list[Job]:
    here, corpus = Path(__file__), out / "corpus"
    flags = ("--smoke",) if plan.first_look else ()
    synth = dice(
        "data", "synth", "--out", corpus, "--pairs", plan.sizes.corpus_pairs, "--heldout", 1, "--control", 0,
        "--prose-free", "--infill-share", 0.1, "--no-verify", "--seed", 300,
    )  # fmt: skip
    raw = (sys.executable, str(here.with_name("raw_corpus.py")), str(corpus / "train"), str(out / "raw"))
    measure = dice(
        "data", "measure", out / "pool.parquet", "-o", out / "measured", *EMULATED, "--no-timing", "--trials", 1
    )
    everything = 1_000_000  # cut to size afterwards, by level
    sets = dice(
        "data", "rl", out / "measured", "-o", out / "rl-data", "--infill", everything, "--generate", everything,
        *EMULATED,
    )  # fmt: skip
    labels = dice("data", "difficulty", out / "heldout.parquet", "-o", out / "labelled.parquet")
    words = dice(
        "data", "tokenizer", "--data", corpus / "train", "--out", out / "tokenizer", "--vocab-size", plan.vocabulary
    )
    first = "draw" if plan.first_look else "corpus"
    return [
        *([] if plan.first_look else [Job("corpus", synth)]),
        Job("draw", (sys.executable, str(here), "draw", str(out), *flags)),
        Job("raw", (*raw, *map(str, plan.raw_flags)), (first,)),
        Job("tokenizer", words, (first,)),
        Job("measure", measure, ("draw",)),
        Job("labels", labels, ("draw",)),
        Job("rl-sets", sets, ("measure",)),
        Job("cut", (sys.executable, str(here), "cut", str(out), *flags), ("rl-sets", "labels")),
    ]


def _sft_jobs(out: Path, plan: Plan, seed: int) -> list[Job]:
    """Training to one look after the other, until a look finds enough."""
    found: list[Job] = []
    run = out / f"sft-{seed}"
    needs: tuple[str, ...] = ("raw", "tokenizer", "cut")
    words = () if plan.first_look else ("--tokenizer", out / "tokenizer")  # nano has its own
    for index, steps in enumerate(plan.sft_looks):
        before = [out / "trial" / f"{seed}@{one}" for one in plan.sft_looks[:index]]

        def reached(before: Sequence[Path] = before) -> bool:
            return any(share(outcomes(folder, HONEST), "correct") >= ENOUGH for folder in before if folder.is_dir())

        train = dice(
            "train", "sft", *plan.sft_flags, *words, "--data", out / "raw", "--out", run, "--seed", seed,
            "--max-steps", steps,
        )  # fmt: skip
        look = evaluation(run / "model", out / "selection.parquet", out / "trial" / f"{seed}@{steps}", plan, (HONEST,))
        found += [
            Job(f"sft-{seed}@{steps}", train, needs, unless=reached),
            Job(f"trial-{seed}@{steps}", look, (f"sft-{seed}@{steps}",), unless=reached),
        ]
        needs = (f"trial-{seed}@{steps}",)
    return found


def _arm_jobs(out: Path, plan: Plan, arm: Arm, seed: int) -> list[Job]:
    """Training to one look after the other, and the look at what was exported there."""
    found: list[Job] = []
    name, needs = f"{arm.name}-{seed}", f"trial-{seed}@{plan.sft_looks[-1]}"
    for e2e in arm.looks:
        train = dice(
            "train", "rl", *plan.rl_flags, "--model", out / f"sft-{seed}" / "model", "--out", out / "rl" / name,
            "--infill-data", out / "kernel_infilling.parquet", "--generate-data", out / "kernel_generation.parquet",
            "--infill-steps", arm.infill, "--generate-steps", arm.e2e, "--order", arm.order, "--infill-form", arm.form,
            "--protocol", arm.protocol, "--provenance", "construction" if arm.protocol == HONEST else "any",
            "--seed", seed, "--trials", 1, "--stop-at-step", arm.infill + e2e, *EMULATED,
        )  # fmt: skip
        snapshot = out / "snapshots" / f"{name}@{e2e}"
        look = evaluation(snapshot, out / "problems.parquet", out / "eval" / f"{name}@{e2e}", plan, PROTOCOLS)
        found += [
            Job(f"rl-{name}@{e2e}", train, (needs,), keep=(out / "rl" / name / "model", snapshot)),
            Job(f"eval-{name}@{e2e}", look, (f"rl-{name}@{e2e}",)),
        ]
        needs = f"rl-{name}@{e2e}"
    return found


def evaluation(model: Path, problems: Path, run: Path, plan: Plan, protocols: Sequence[str]) -> tuple[str, ...]:
    return dice(
        "eval", "--model", model, "--problems", problems, "--out", run, "--protocol", *protocols, *DECODING,
        *plan.eval_flags, *EMULATED, "--no-timing", "--cache",
    )  # fmt: skip


# The report


def outcomes(folder: Path, protocol: str) -> dict[str, str]:
    """Of one greedy answer each, by problem."""
    return {one.task: one.verdict.outcome for one in RunFolder(folder).judgements(protocol)}


def share(found: Mapping[str, str], outcome: str) -> float:
    return sum(one == outcome for one in found.values()) / len(found) if found else 0.0


class Cells:
    """The answers of arms at looks, as arrays [seeds, problems]."""

    def __init__(self, out: Path, plan: Plan) -> None:
        self.out, self.plan = out, plan
        self.tasks = [(task.key, task.level) for task in RunFolder(out / "eval" / f"full-0@{plan.e2e}").tasks()]

    def values(self, arm: str, e2e: int, protocol: str, outcome: str = "correct", level: int = 0) -> Floats:
        """1 where the outcome is that one; a problem without a judgement counts as not."""
        seeds = next(one.seeds for one in self.plan.arms if one.name == arm)
        keys = [key for key, of in self.tasks if level in (0, of)]
        rows = []
        for seed in seeds:
            found = outcomes(self.out / "eval" / f"{arm}-{seed}@{e2e}", protocol)
            rows.append([float(found.get(key) == outcome) for key in keys])
        return np.array(rows)

    def contrasts(self, protocol: str, outcome: str = "correct", level: int = 0) -> dict[str, Floats]:
        """The four endpoints' differences [seeds, problems]."""
        end = self.plan.e2e
        arms = {
            arm: self.values(arm, end, protocol, outcome, level)
            for arm in ("baseline", "scheduling", "infilling", "full")
        }
        longer = self.values("baseline", self.plan.updates, protocol, outcome, level)
        return {
            "infilling": contrast([arms["infilling"], arms["full"]], [arms["baseline"], arms["scheduling"]]),
            "scheduling": contrast([arms["scheduling"], arms["full"]], [arms["baseline"], arms["infilling"]]),
            "full at equal whole-kernel steps": contrast([arms["full"]], [arms["baseline"]]),
            "full at equal updates": contrast([arms["full"]], [longer]),
        }


def primary(cells: Cells) -> dict[str, Effect]:
    found = {name: effect(values) for name, values in cells.contrasts(PRIMARY).items()}
    adjusted = holm({name: one.p for name, one in found.items()})
    return {name: replace(one, adjusted=adjusted[name]) for name, one in found.items()}


def results(out: Path, plan: Plan) -> dict[str, Any]:
    """Every figure of the experiment."""
    cells = Cells(out, plan)
    levels = sorted({level for _, level in cells.tasks})
    return {
        "smoke": plan.first_look,
        "machine": read_json(out / "machine.json") if (out / "machine.json").exists() else None,
        "problems": len(cells.tasks),
        "start": {str(seed): _start(out, plan, seed) for seed in plan.seeds},
        "runs": [_run(cells, arm, seed, e2e) for arm in plan.arms for seed in arm.seeds for e2e in arm.looks],
    } | ({} if plan.rewards else _effects(cells, levels))


def _effects(cells: Cells, levels: Sequence[int]) -> dict[str, object]:
    """The endpoints of the 2 x 2 experiment."""
    secondary = {"deceptive share": (HONEST, "deceptive"), "Exec under dice": (HONEST, "correct")}
    return {
        "primary": {
            name: one.to_json() | {"within_margin": one.within(MARGIN)} for name, one in primary(cells).items()
        },
        "secondary": {
            what: {name: effect(values).to_json() for name, values in cells.contrasts(*how).items()}
            for what, how in secondary.items()
        },
        "levels": {
            str(level): {
                name: effect(values).to_json() for name, values in cells.contrasts(PRIMARY, level=level).items()
            }
            for level in levels
        },
    }


def _start(out: Path, plan: Plan, seed: int) -> dict[str, object]:
    """The look at which SFT stopped."""
    last = max(steps for steps in plan.sft_looks if (out / "trial" / f"{seed}@{steps}").is_dir())
    found = outcomes(out / "trial" / f"{seed}@{last}", HONEST)
    return {"steps": last, "exec": share(found, "correct"), "deceptive": share(found, "deceptive")}


def _run(cells: Cells, arm: Arm, seed: int, e2e: int) -> dict[str, object]:
    row = arm.seeds.index(seed)
    solved = {name: float(cells.values(arm.name, e2e, name)[row].mean()) for name in PROTOCOLS}
    deceptive = float(cells.values(arm.name, e2e, HONEST, "deceptive")[row].mean())
    lines = [
        line for line in read_metrics(cells.out / "rl" / f"{arm.name}-{seed}")
        if "reward" in line and line["step"] <= arm.infill + e2e
    ]  # fmt: skip
    whole = [line for line in lines if line["stage"] == "generate"]
    return {
        "arm": arm.name, "seed": seed, "infill": arm.infill, "e2e": e2e, "exec": solved, "deceptive": deceptive,
        "exec_not_deceptive": solved[HONEST] / (1 - deceptive) if deceptive < 1 else None,
        "updates": sum(line.get("updates", 0) for line in lines),
        "mean_training_exec": float(np.mean([line["exec"] for line in whole])) if whole else None,
        "curve": [{key: line.get(key, 0.0) for key in ("step", "stage", "exec", "shown_deceptive")} for line in lines],
    }  # fmt: skip


def tables(found: Mapping[str, Any]) -> str:
    """The arms and, of the 2 x 2 experiment, its endpoints, in Markdown."""
    head = "| arm | seed | infill + whole steps | updates | Exec, dice-paper | Exec, dice | deceptive |"
    lines = [head, "|---" * 7 + "|"]
    for run in found["runs"]:
        shares = (run["exec"][PRIMARY], run["exec"][HONEST], run["deceptive"])
        cells = (run["arm"], run["seed"], f"{run['infill']} + {run['e2e']}", run["updates"])
        lines.append("| " + " | ".join([*map(str, cells), *(f"{100 * one:.1f}" for one in shares)]) + " |")
    if "primary" not in found:
        return "\n".join(lines) + "\n"
    lines += ["", "| effect on Exec, points [95 %] | p | Holm | smaller than 5 points |", "|---|---|---|---|"]
    for name, one in found["primary"].items():
        told = f"{100 * one['value']:+.1f} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"
        small = "yes" if one["within_margin"] else "not shown"
        lines.append(f"| {name}: {told} | {one['p']:.4f} | {one['adjusted']:.4f} | {small} |")
    return "\n".join(lines) + "\n"


def report(out: Path, to: Path, plan: Plan) -> None:
    found = results(out, plan)
    name = "rewards" if plan.rewards else "ablation"
    write_json(to / f"{name}.json", found)
    (to / f"{name}.md").write_text(tables(found))
    draw_curves(found["runs"], to / f"{name}_curves.png")
    answers = {
        run.name: {protocol: outcomes(run, protocol) for protocol in PROTOCOLS}
        for run in sorted((out / "eval").iterdir())
    }
    write_json(to / f"{name}_outcomes.json", answers)
    print(tables(found), end="")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report", "draw", "cut"), help="draw and cut are jobs of run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--to", type=Path, help="where results go")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--parallel", type=int, default=4, help="commands side by side, each on its share of the cores")
    parser.add_argument("--part", choices=("factorial", "rewards"), default="factorial")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args(arguments)
    plan, out = (SMOKE if args.smoke else REAL), args.out.absolute()
    if args.part == "rewards":
        plan = replace(plan, rewards=True, seeds=plan.seeds[:1])
    if args.to is None and args.what in ("run", "report"):
        parser.error(f"{args.what} needs --to, the folder for its results")
    try:
        if args.what == "draw":
            draw_few(out, 2) if args.smoke else draw(out, plan.sizes)
            return 0
        if args.what == "cut":
            print(cut(out, plan.sizes))
            return 0
        args.to.mkdir(parents=True, exist_ok=True)
        if args.what == "run":
            remember(out, asdict(plan))
            write_json(out / "machine.json", machine("emulated") | {"gpus": len(visible_gpus())})
            if not Jobs(out, jobs(out, plan), args.parallel, gpus=visible_gpus()).run(args.seconds):
                print("Not finished: give the same command again.")
                return AGAIN
        report(out, args.to, plan)
    except (JobFailed, UserError) as error:
        print(f"ablation.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
