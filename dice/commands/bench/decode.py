"""`dice bench decode`: tokens a second of the engine, the plain decoder and transformers, beside what is possible."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from dice.commands.arguments import at_least
from dice.errors import UserError
from dice.terminal import Console

Figures = dict[str, Any]
Contender = Literal["engine", "engine fp8", "plain", "transformers"]


@dataclass
class BenchDecode:
    """Measure decoding with random weights and forced schedules, beside the limit that this machine's memory sets.

    Example: dice bench decode --shape nano --batch 1 16 --out bench.json
    """

    shape: Literal["tiny", "nano", "mini", "1.7b", "4b", "8b"] = "8b"
    """Sizes and vocabulary of the model."""
    batch: tuple[int, ...] = (1, 32, 128)
    """Texts at once."""
    context: tuple[int, ...] = (1024,)
    """Tokens of their prompts."""
    revealed: tuple[int, ...] = (1, 2, 4)
    """Tokens that every step reveals of a text; each must divide the block."""
    contenders: tuple[Contender, ...] = ("engine", "plain", "transformers")
    """Those of them that this machine cannot run are left out, with a word."""
    steps: int = 64
    """Forwards timed; half as many of the plain decoder and of transformers."""
    block_size: int = 4
    seed: int = 0
    tensor_parallel: int = 1
    """GPUs of this machine that the engine cuts the model over; without a GPU, processes. The limit is that of them
    all; the other contenders run on one."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    out: Path | None = None
    """File for the result as JSON, written after every row; rows that it holds are not measured again."""
    plot: Path | None = None
    """File for the picture, SVG."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        import torch

        from dice.bench.decode import PUBLISHED, DecodeBench, DecodePlan
        from dice.decode.ready import check_ranks
        from dice.recipes import SHAPES
        from dice.train.runlog import versions
        from dice.verify.roofline import driver_version

        self._check()
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        if name == "cuda" and not torch.cuda.is_available():
            raise UserError("There is no GPU here; leave --device out, or say --device cpu.")
        shape, vocab_size = SHAPES[self.shape]
        plan = DecodePlan(
            shape=shape, vocab_size=vocab_size, block_size=self.block_size, batches=self.batch, contexts=self.context,
            revealed=self.revealed, steps=self.steps, fp8="engine fp8" in self.contenders, seed=self.seed,
            tensor_parallel=self.tensor_parallel,
        )  # fmt: skip
        result = self._known()
        device = torch.device(name)
        check_ranks(plan.model, self.tensor_parallel, name)

        def keep(row: Figures) -> None:
            result["rows"] = [old for old in result["rows"] if not _same(old, row)] + [row]
            self._write(result)

        bench = DecodeBench(plan, device, _say, keep)
        result |= {
            "asked": {key: value for key, value in vars(self).items() if key not in ("out", "plot", "json")},
            "machine": versions(device)
            | {"driver": driver_version() or None, "cpu_cores": len(os.sched_getaffinity(0))},
            "ceilings": asdict(bench.ceilings),
            "published": list(PUBLISHED),
        }
        bench.run(self._able(device), lambda row: any(_same(old, row) for old in result["rows"]))
        self._write(result)
        if self.plot is not None:
            self.plot.parent.mkdir(parents=True, exist_ok=True)
            self.plot.write_text(draw(result))
        if self.json:
            print(json.dumps(result))
        else:
            show(Console(), result)
        return 0

    def _check(self) -> None:
        at_least(1, steps=self.steps, block_size=self.block_size, tensor_parallel=self.tensor_parallel)
        for name in ("batch", "context", "revealed"):
            for number in getattr(self, name):
                at_least(1, **{name: number})
        odd = [count for count in self.revealed if self.block_size % count]
        if odd:
            raise UserError(f"--revealed {odd[0]} does not divide a block of {self.block_size}.")
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)  # fails now, if at all

    def _able(self, device: Any) -> list[str]:
        from dice.bench.decode import has_transformers

        lacking = {}
        if not has_transformers():
            lacking["transformers"] = "it is not installed"
        if device.type == "cpu":
            lacking["engine fp8"] = "products in fp8 need a GPU"
        for name in self.contenders:
            if name in lacking:
                _say(f"{name} is left out: {lacking[name]}")
        return [name for name in self.contenders if name not in lacking]

    def _known(self) -> Figures:
        """What an earlier run with the same settings has measured."""
        from dice.files.bounded import parse_json

        result: Figures = {"rows": []}
        if self.out is not None and self.out.exists():
            old = parse_json(self.out.read_bytes())
            asked = old.get("asked", {})
            if all(
                asked.get(name, 1) == getattr(self, name)
                for name in ("shape", "steps", "block_size", "seed", "tensor_parallel")
            ):
                result["rows"] = old.get("rows", [])
        return result

    def _write(self, result: Figures) -> None:
        if self.out is not None:
            from dice.files.atomic import write_json

            write_json(self.out, result)


def _same(left: Figures, right: Figures) -> bool:
    return all(left[name] == right[name] for name in ("who", "batch", "context", "t"))


def _say(text: str) -> None:
    print(f"measuring: {text}", file=sys.stderr, flush=True)


def show(console: Console, result: Figures) -> None:
    asked = result["asked"]
    table = Table(
        title=f"Decoding, shape {asked['shape']}, blocks of {asked['block_size']}", title_justify="left", box=None,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    for name in ("who", "context", "batch", "t", "tokens/s", "ms", "limit", "share", "first", "GiB"):
        table.add_column(name, justify="left" if name == "who" else "right", no_wrap=True)
    for row in sorted(result["rows"], key=lambda row: (row["context"], row["batch"], row["t"], row["who"])):
        start = (row["who"], f"{row['context']:,}", str(row["batch"]), str(row["t"]))
        if "failed" in row:
            table.add_row(*start, row["failed"])
            continue
        memory = row["peak_memory_bytes"]
        table.add_row(
            *start, f"{row['tokens_per_s']:,.0f}", f"{row['forward_ms']:.2f}", f"{row['limit_ms']:.2f}",
            f"{row['share_of_limit']:.0%}", f"{row['first_block_s']:.3f}",
            "" if memory is None else f"{memory / 2**30:.1f}",
        )  # fmt: skip
    console.print(table)
    ceilings = result["ceilings"]
    console.print(
        "t: tokens that a step reveals of a text. ms: of a forward, host included; limit: the least that it could be "
        f"at {ceilings['bandwidth'] / 1e9:,.0f} GB/s and {ceilings['flops'] / 1e12:,.1f} TFLOP/s, measured in this "
        "run. first: seconds to the first block.",
        highlight=False,
    )
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items() if value), highlight=False)


def draw(result: Figures) -> str:
    """Tokens a second over the batch, a panel for each context and t: the contenders, and the limit, as SVG."""
    from matplotlib.figure import Figure

    from dice.evaluate.report.figures import svg

    rows = [row for row in result["rows"] if "failed" not in row]
    panels = sorted({(row["context"], row["t"]) for row in rows})
    figure = Figure(figsize=(3.6 * max(1, len(panels)), 3.2), layout="constrained")
    for axes, (context, count) in zip(figure.subplots(1, max(1, len(panels)), squeeze=False)[0], panels, strict=True):
        here = sorted((row for row in rows if (row["context"], row["t"]) == (context, count)), key=lambda r: r["batch"])
        for who in sorted({row["who"] for row in here}):
            own = [row for row in here if row["who"] == who]
            axes.plot([row["batch"] for row in own], [row["tokens_per_s"] for row in own], marker="o", label=who)
        limits = {row["batch"]: row["limit_tokens_per_s"] for row in here if row["who"] != "engine fp8"}
        axes.plot(list(limits), list(limits.values()), linestyle="--", color="#8c959f", label="limit")
        axes.set(title=f"context {context:,}, t = {count}", xscale="log", yscale="log", xlabel="texts at once")
        axes.set_ylabel("tokens/s")
        axes.legend(frameon=False, fontsize=8)
    return svg(figure)
