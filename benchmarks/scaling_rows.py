"""What came of `scaling_gpu.py`: kept checkpoints as models, and rows read from the folders of runs."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from scaling_study import NO_TOKENS, ROW_TOKENS, SHIPPED, Row, Study

from dice.commands.bench.verify import machine
from dice.errors import UserError
from dice.evaluate.run_folder import RunFolder
from dice.evaluate.statistics import pass_at, wilson
from dice.files.atomic import read_json, write_json
from dice.files.journal import read_rows
from dice.recipes import nano_sft

CURVE_POINTS = 60


class Kept:
    """Checkpoints of the trainings at equal numbers of tokens, and the models in them."""

    def __init__(self, study: Study) -> None:
        self.study, self.folder = study, study.out / "kept"

    def keep(self) -> None:
        """Link those that are there and wanted: training removes its own links to old ones."""
        for name in self.study.names:
            for path in (self.study.out / "train" / name / "checkpoints").glob("step-*"):
                tokens = int(path.name.removeprefix("step-")) * self.study.batch_rows * ROW_TOKENS
                kept = self.folder / f"{name}-{tokens}"
                wanted = self.study.args.least_tokens <= tokens < (self.study.args.train_tokens or NO_TOKENS)
                if not wanted or tokens & (tokens - 1) or kept.exists():
                    continue
                pending = kept.with_name(f".{kept.name}")
                shutil.rmtree(pending, ignore_errors=True)
                try:
                    shutil.copytree(path, pending / path.name, copy_function=os.link)
                except (FileNotFoundError, shutil.Error):  # removed meanwhile
                    continue
                pending.rename(kept)

    def of(self, name: str) -> list[int]:
        """The tokens at which `name` was kept."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{name}-*"))

    def shared(self) -> list[tuple[str, int]]:
        """(name, tokens) of those to evaluate: what the most sizes have comes first, then the later. One that no other
        size reached is compared with nothing, unless nano alone is trained on."""
        have = [(name, tokens) for name in self.study.names for tokens in self.of(name)]
        count = Counter(tokens for _, tokens in have)
        wanted = [one for one in have if count[one[1]] > 1 or len(self.study.names) == 1]
        return sorted(wanted, key=lambda one: (-count[one[1]], -one[1], self.study.names.index(one[0])))

    def manifest(self, name: str, tokens: int) -> Row:
        [path] = (self.folder / f"{name}-{tokens}").glob("step-*/manifest.json")
        return dict(read_json(path))

    def model(self, name: str, tokens: int) -> Path:
        """A model folder with the running average of the weights, as a run exports it at its end."""
        import torch

        from dice.model.checkpoint import read_config, save_model
        from dice.model.sdar import SDAR
        from dice.train.checkpoints import Checkpoints

        final, path = self.study.out / "train" / name / "model", self.study.out / "models" / f"{name}-{tokens}"
        if not path.exists():
            config = read_config(final)
            with torch.device("meta"):
                weights = dict(SDAR(config).named_parameters())
            state = {f"average.{key}": torch.empty(weight.shape) for key, weight in weights.items()}
            with Checkpoints(self.folder / f"{name}-{tokens}", 1) as stored:
                stored.load(state)
            path.parent.mkdir(exist_ok=True)
            named = {key.removeprefix("average."): tensor for key, tensor in state.items()}
            save_model(named, config, path, final, dtype=torch.bfloat16)
        return path


class Table:
    """OUT/scaling.json: what came of it, row by row, read from the folders of trainings and evaluations."""

    def __init__(self, study: Study, kept: Kept, backend: str) -> None:
        self.study, self.kept, self.path = study, kept, study.out / "scaling.json"
        self.failed: dict[str, str] = {}
        self.before: Row = read_json(self.path) if self.path.exists() else {}
        self.head: Row = {"settings": study.settings(), "train_seconds": self.before.get("train_seconds")}
        if changed := [
            key for key, value in self.head["settings"].items() if self.before and self.before["settings"][key] != value
        ]:
            raise UserError(f"{self.path} is of other {', '.join(changed)}; give another folder.")
        here = machine(backend) | {"gpus": len(study.gpus)}
        calls = [*self.before.get("calls", ()), {"command": sys.argv[1:], "machine": here}]
        self.head |= {"calls": calls}
        self.carried = {row["model"]: row for row in self.before.get("rows", ())}
        self._written = 0.0

    def restore(self) -> None:
        """Count as done what earlier calls have evaluated, also where the models were lost since."""
        done = self.study.out / "done"
        done.mkdir(parents=True, exist_ok=True)
        for name, row in self.carried.items():
            if row.get("exec"):
                for job in (f"eval-{name}", *([f"train-{name}"] if name in self.study.names else [])):
                    (done / job).touch()

    def write(self, at_most_every_s: float = 0.0) -> list[Row]:
        """The rows, too, unless it is not time yet."""
        if time.monotonic() - self._written < at_most_every_s:
            return []
        rows = list((self.carried | {row["model"]: row for row in self._rows()}).values())
        write_json(self.path, self.head | {"rows": rows})
        self._written = time.monotonic()
        return rows

    def _rows(self) -> Iterator[Row]:
        out = self.study.out
        for name in self.study.names:
            if (out / "train" / name / "metrics.jsonl").exists():
                yield self._final(name)
            elif name not in self.carried:
                yield {"model": name, "exec": {}, "lacking": {"train": "not begun: no time was left"}}
            for tokens in self.kept.of(name):
                yield self._middle(name, tokens)
        if (out / "eval" / f"eval-{SHIPPED}").exists():
            yield {"model": SHIPPED} | self._evaluated(SHIPPED, ("eval",))

    def _final(self, name: str) -> Row:
        folder = self.study.out / "train" / name
        lines = list(read_rows(folder / "metrics.jsonl"))
        trained = [line for line in lines if "loss" in line]
        row: Row = {"model": name, **(self._spent(name, trained[-1]) if trained else {})}
        row["curve"] = thinned([_chosen(line, "step", "tokens", "seconds", "loss", "nll") for line in trained])
        row["heldout_loss"] = thinned([_chosen(line, "step", "val_loss") for line in lines if "val_loss" in line])
        row |= {"config": read_json(folder / "config.json"), "versions": read_json(folder / "versions.json")}
        kinds = ("eval", "pass", *(("kernelbench",) if self.study.args.kernelbench else ()))
        return row | self._evaluated(name, kinds)

    def _middle(self, name: str, tokens: int) -> Row:
        from dice.train.optimizer import lr_scale

        manifest, recipe = self.kept.manifest(name, tokens), nano_sft()
        share = max(manifest["seconds"] / self.head["train_seconds"], manifest["step"] / self.study.max_steps)
        scale = lr_scale(share, recipe.schedule, warmup=recipe.warmup, floor=recipe.lr_floor)
        row = {"model": f"{name}-{tokens}", "of": name, **self._spent(name, manifest), "lr_scale": round(scale, 3)}
        if (name, tokens) not in self.kept.shared():
            return row | {"exec": {}, "lacking": {"eval": "no other size was kept at so many tokens"}}
        return row | self._evaluated(f"{name}-{tokens}", ("eval",))

    def _spent(self, name: str, reached: Row) -> Row:
        """Parameters, and what they cost. FLOPs are estimated as `dice plan` does: a row is read noisy and clean, a
        quarter of the row before each token, and a quarter of all tokens predicted."""
        from dice.train.plan.flops import training_flops
        from dice.train.plan.memory import PREDICTED, parameters

        config = self.study.size(name).shape.for_timing(2048, nano_sft().block_size or 4)
        read = 2 * reached["tokens"]
        flops = training_flops(config, tokens=read, pairs=read * ROW_TOKENS / 4, predicted=read * PREDICTED)
        spent = {"parameters": parameters(config), "steps": reached["step"], "tokens": reached["tokens"]}
        return spent | {"seconds": round(reached["seconds"], 1), "flops": flops}

    def _evaluated(self, name: str, kinds: Sequence[str]) -> Row:
        """`exec` by set, `pass` by set, and `lacking`: what is not there, and why."""
        found: Row = {"exec": {}, "lacking": {}}
        for kind in kinds:
            job = f"{kind}-{name}"
            sets, why = read_evaluation(self.study.out / "eval" / job)
            if not why:
                found["pass" if kind == "pass" else "exec"] = sets | (found["exec"] if kind == "kernelbench" else {})
            if job in self.failed:
                why = self.failed[job].splitlines()[-1]
            elif f"train-{name}" in self.failed:
                why = self.failed[f"train-{name}"].splitlines()[-1]
            elif name in self.study.names and not (self.study.out / "done" / f"train-{name}").exists():
                why = "training has not ended"
            found["lacking"] |= {kind: why} if why else {}
        return found


def line(row: Row) -> str:
    """A row as it is shown: `9m  tokens 363,855,872  heldout 120 of 240  pass: not begun: no time was left`."""
    parts = [row["model"], *([f"tokens {row['tokens']:,}"] if "tokens" in row else [])]
    parts += [f"{name} {counts['solved']} of {counts['of']}" for name, counts in row["exec"].items()]
    return "  ".join([*parts, *(f"{kind}: {why}" for kind, why in row["lacking"].items())])


def read_evaluation(folder: Path) -> tuple[dict[str, Row], str]:
    """Of a run of `dice eval`: how many of each set of problems were solved, and why that is not known."""
    if not (folder / "problems.json").exists():
        return {}, "not begun: no time was left"
    run = RunFolder(folder)
    samples, tasks = int(run.config["samples"]), [task.key for task in run.tasks()]
    right: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = {key.partition("/")[0]: Counter() for key in tasks}
    for one in run.judgements("dice"):
        right[one.task] += one.verdict.correct
        outcomes[one.task.partition("/")[0]][one.verdict.outcome] += 1
    judged, wanted = sum(map(Counter.total, outcomes.values())), samples * len(tasks)
    if judged < wanted:
        return {}, f"stopped: {judged} of {wanted} answers were judged"
    found = {}
    for name, counts in outcomes.items():
        solved = [right[key] for key in tasks if key.partition("/")[0] == name]
        interval = asdict(wilson(sum(map(bool, solved)), len(solved)))
        found[name] = {"solved": sum(map(bool, solved)), "of": len(solved), **interval, "outcomes": dict(counts)}
        if samples > 1:
            found[name] |= {
                "samples": samples,
                "one_sample": sum(pass_at(samples, count, 1) for count in solved) / len(solved),
            }
    return found, ""


def thinned(points: list[Row]) -> list[Row]:
    """At most `CURVE_POINTS`, evenly chosen, the last one among them."""
    every = math.ceil(len(points) / CURVE_POINTS) or 1
    return points[::-1][::every][::-1]


def _chosen(line: Row, *names: str) -> Row:
    return {name: line[name] for name in names}
