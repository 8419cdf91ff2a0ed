"""What `scaling_gpu.py` trains and evaluates: sizes, learning rates, and the command of every step."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from jobs import Job, dice

from dice.files.atomic import write_text
from dice.files.journal import read_rows
from dice.recipes import MINI, NANO, nano_sft
from dice.train.config import ModelShape

Row = dict[str, Any]
NANO_FOLDER = Path(__file__).parent.parent / "dice" / "nano"
ROW_TOKENS = nano_sft().row_tokens
SHIPPED = "nano-shipped"  # nano as it is in the package, evaluated beside the others
NO_TOKENS = 1 << 40  # more than any training sees
MOST_TRAIN_S, USUAL_TRAIN_S = 3600.0, 330.0  # of what is trained as long as there is time, and of each size
# With less time left each of these is not begun: a training, an evaluation, one of several answers, KernelBench.
LEAST_BEGIN_S, LEAST_EVALUATE_S, LEAST_SAMPLES_S, LEAST_KERNELBENCH_S = 60.0, 40.0, 60.0, 90.0


@dataclass(frozen=True)
class Size:
    """`micro_rows`: rows of a forward pass, at most."""

    shape: ModelShape
    micro_rows: int


def _shape(hidden: int, intermediate: int, layers: int, heads: int, shared: int) -> ModelShape:
    return ModelShape(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=shared, head_dim=64, max_position_embeddings=4096,
    )  # fmt: skip


SIZES = {
    "tiny": Size(_shape(64, 128, 2, 1, 1), 32),  # 0.3 million: to try everything on a CPU
    "2m": Size(_shape(192, 384, 5, 3, 1), 32),
    "9m": Size(NANO, 32),
    "30m": Size(_shape(512, 1408, 10, 8, 2), 16),
    "100m": Size(MINI, 16),
}


def learning_rate(hidden: int, batch_rows: int, start: bool) -> float:
    """At its peak; `start`: of nano trained on."""
    recipe = nano_sft()
    peak = 1.5e-3 if start else recipe.lr * NANO.hidden_size / hidden
    return float(f"{peak * math.sqrt(batch_rows / recipe.batch_rows):.3g}")


@dataclass(frozen=True)
class Study:
    """What is trained and evaluated, and where."""

    out: Path
    args: argparse.Namespace
    gpus: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ("nano",) if self.args.start else tuple(self.args.sizes)

    @property
    def batch_rows(self) -> int:
        together = 16 << (len(self.gpus) or 1).bit_length() - 1  # 16 for each GPU, of which there are a power of two
        return int(self.args.batch_rows or (max(32, together) if self.args.start else 32))

    @property
    def _as_long_as_it_takes(self) -> bool:
        return bool(self.args.start or self.args.train_tokens)

    @property
    def wanted_seconds(self) -> float:
        return float(self.args.train_seconds or (MOST_TRAIN_S if self._as_long_as_it_takes else USUAL_TRAIN_S))

    @property
    def max_steps(self) -> int:
        """The end of every training, where it is not by time."""
        return int(self.args.train_tokens or NO_TOKENS) // (self.batch_rows * ROW_TOKENS)

    @property
    def slots(self) -> int:
        return len(self.gpus) or 2

    def size(self, name: str) -> Size:
        return SIZES["9m" if name == "nano" else name]

    def settings(self) -> Row:
        """What must be the same in every call."""
        kept: tuple[str, ...] = ("pairs", "heldout", "seed", "styles", "start", "least_tokens", "train_tokens")
        kept += ("max_new_tokens", "samples")
        files = [str(path) for path in self.args.problems]
        rest = {"batch_rows": self.batch_rows, "train_seconds_wanted": self.wanted_seconds, "problems": files}
        return {name: getattr(self.args, name) for name in kept} | rest

    def corpus(self) -> Job:
        args = self.args
        clean = ("--decontaminate", args.kernelbench) if args.kernelbench else ()
        return Job("corpus", dice(
            "data", "synth", "--out", self.out / "corpus", "--pairs", args.pairs, "--heldout", args.heldout,
            "--control", 0, "--prose-free", "--no-verify", "--styles", args.styles, "--seed", args.seed,
            "--workers", len(os.sched_getaffinity(0)), *clean,
        ))  # fmt: skip

    def training(self, name: str, seconds: float) -> Job:
        size = self.size(name)
        start: tuple[object, ...] = ("--model", "nano")
        if not self.args.start:
            start = ("--tokenizer", NANO_FOLDER)
            for field, value in asdict(size.shape).items():
                start += (f"--shape.{field.replace('_', '-')}", value)
        command: tuple[str, ...] = dice(
            "train", "sft", "--recipe", "nano_sft", *start, "--data", self.out / "corpus" / "train",
            "--eval-data", self.out / "corpus" / "heldout.parquet", "--out", self.out / "train" / name,
            "--lr", learning_rate(size.shape.hidden_size, self.batch_rows, bool(self.args.start)),
            "--batch-rows", self.batch_rows, "--micro-rows", math.gcd(size.micro_rows, self.batch_rows),
            "--max-steps", self.max_steps, "--max-seconds", seconds, "--keep-checkpoints", 4,
            "--checkpoint-every", self.args.least_tokens // (self.batch_rows * ROW_TOKENS),
        )  # fmt: skip
        if self.args.start and len(self.gpus) > 1:
            launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(self.gpus)))
            command = (sys.executable, *launcher, "--local-ranks-filter", "0", *command[1:])
        return Job(f"train-{name}", command, least_s=LEAST_BEGIN_S)

    def evaluation(self, name: str, model: str | Path) -> Job:
        """One greedy answer to every problem."""
        return Job(f"eval-{name}", self._eval(f"eval-{name}", model, self.table, 0.0), least_s=LEAST_EVALUATE_S)

    def sampling(self, name: str, model: Path) -> Job:
        """Several answers to each problem of the files; their numbers come before those of held-out ones."""
        count = sum(
            1 for line in self.table.read_text().splitlines() if not json.loads(line)["name"].startswith("held")
        )
        some = ("--samples", self.args.samples, "--ids", f"1-{count}")
        command = self._eval(f"pass-{name}", model, self.table, 0.8, *some)
        return Job(f"pass-{name}", command, least_s=LEAST_SAMPLES_S)

    def kernelbench(self, name: str, model: Path) -> Job:
        command = self._eval(f"kernelbench-{name}", model, self.args.kernelbench, 0.0, "--level", 1, 2)
        return Job(f"kernelbench-{name}", command, least_s=LEAST_KERNELBENCH_S)

    def _eval(self, name: str, model: str | Path, problems: Path, temperature: float, *more: object) -> tuple[str, ...]:
        return dice(
            "eval", "--model", model, "--problems", problems, "--out", self.out / "eval" / name, "--no-timing",
            "--temperature", temperature, "--confidence-threshold", 0.99, "--prompt", "compact", "--batch",
            128 if self.gpus else 4, "--max-new-tokens", self.args.max_new_tokens, "--backend", self.args.backend,
            "--cache", *more,
        )  # fmt: skip

    @property
    def table(self) -> Path:
        return self.out / "problems.jsonl"

    def write_table(self) -> None:
        """All problems, those of the files first, each named SET/NAME."""
        rows = [(path.stem, row) for path in self.args.problems for row in read_rows(path)]
        drawn = pq.read_table(self.out / "corpus" / "heldout.parquet", columns=["name", "problem"]).to_pylist()
        rows += [("heldout", row) for row in drawn]
        lines = (json.dumps({"name": f"{name}/{row['name']}", "problem": row["problem"]}) for name, row in rows)
        write_text(self.table, "".join(f"{line}\n" for line in lines))
