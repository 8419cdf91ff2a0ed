"""`dice bench train`: tokens a second, MFU and peak memory of SFT, ours against a stock implementation."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from dice.commands.arguments import at_least
from dice.errors import UserError
from dice.terminal import Console

Figures = dict[str, Any]


@dataclass
class BenchTrain:
    """Measure SFT in tokens a second, MFU and memory: ours against a stock implementation, same weights, same run.

    Example: dice bench train --shape nano --out bench.json
    """

    shape: Literal["tiny", "nano", "mini", "1.7b", "4b", "8b"] = "1.7b"
    """Sizes and vocabulary of a model with random weights."""
    row_tokens: int = 4096
    batch_rows: int = 8
    """Rows of an optimiser step."""
    micro_rows: int = 2
    """Rows at a time at first; each of the two goes down, and then recomputes blocks, until it fits into memory."""
    rounds: int = 8
    """Steps timed of each, in turns."""
    documents: tuple[int, int] = (512, 4096)
    """Shortest and longest document packed into the rows, in tokens; cut to a row, and to what the model reads."""
    block_size: int = 4
    seed: int = 0
    device: str = "auto"
    """auto, cuda or cpu. Under torchrun, one GPU for each process: sharded, at micro_rows as given, recomputing."""
    out: Path | None = None
    """File for the result as JSON."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from dice.bench.train import TrainBench, TrainBenchPlan
        from dice.recipes import SHAPES
        from dice.train.plan.gpus import peak_flops
        from dice.train.runlog import versions
        from dice.train.world import joined
        from dice.verify.roofline import driver_version

        at_least(
            1, rounds=self.rounds, batch_rows=self.batch_rows, micro_rows=self.micro_rows, block_size=self.block_size
        )
        shortest, longest = self.documents
        if not 1 <= shortest <= longest:
            raise UserError(f"--documents are the shortest and the longest in tokens, not {shortest} and {longest}.")
        shape, vocab_size = SHAPES[self.shape]
        most = min(self.row_tokens, shape.max_position_embeddings)
        plan = TrainBenchPlan(
            shape=shape, vocab_size=vocab_size, block_size=self.block_size, row_tokens=self.row_tokens,
            batch_rows=self.batch_rows, micro_rows=min(self.micro_rows, self.batch_rows), rounds=self.rounds,
            shortest=min(shortest, most), longest=min(longest, most), seed=self.seed,
        )  # fmt: skip
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)  # fails now, if at all
        with joined(self.device) as world:

            def say(text: str) -> None:
                if world.leads:
                    print(f"measuring: {text}", file=sys.stderr, flush=True)

            bench = TrainBench(plan, world, say)
            figures = bench.run()
            where = versions(world.device) | {
                "devices": world.size,
                "driver": driver_version() or None,
                "cpu_cores": len(os.sched_getaffinity(0)),
                "peak_bf16_flops": peak_flops(world.device),
            }
            asked = {name: value for name, value in vars(self).items() if name not in ("out", "json")}
            result = {"asked": asked, "parameters": bench.parameters, "machine": where, "figures": figures}
            if world.leads:
                _publish(self, result)
        return 0


def _publish(args: BenchTrain, result: Figures) -> None:
    if args.out is not None:
        from dice.files.atomic import write_json

        write_json(args.out, result)
    if args.json:
        print(json.dumps(result))
    else:
        show(Console(), result)


def show(console: Console, result: Figures) -> None:
    figures, where, asked = result["figures"], result["machine"], result["asked"]
    title = f"SFT of {result['parameters'] / 1e6:,.0f}M parameters, rows of {asked['row_tokens']:,} tokens"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name in ("tokens/s", "p10 to p90", "MFU", "peak GiB", "micro rows", "recompute", "how"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("ours", "stock"):
        found = figures[name]
        rate, memory, mfu = found["tokens_per_s"], found["peak_memory_bytes"], found["mfu"]
        table.add_row(
            name, f"{rate['median']:,.0f}", f"{rate['p10']:,.0f} to {rate['p90']:,.0f}",
            "" if mfu is None else f"{mfu:.1%}", "" if memory is None else f"{memory / 2**30:.1f}",
            str(found["micro_rows"]), "yes" if found["recompute"] else "no", found["how"],
        )  # fmt: skip
    console.print(table)
    ratio = figures["ratio"]
    console.print(
        f"ours: {ratio['median']:.2f} times stock's tokens/s ({ratio['p10']:.2f} to {ratio['p90']:.2f}, "
        f"{ratio['n']} pairs of steps in turns)",
        highlight=False,
    )
    console.print(COUNTED, highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in where.items() if value), highlight=False)


COUNTED = (
    "tokens/s counts the clean tokens of the rows; MFU what a step must compute, where the doubled sequence counts and "
    "recomputed blocks, masked pairs and unasked logits do not, against the data sheet's dense bf16 rate."
)
