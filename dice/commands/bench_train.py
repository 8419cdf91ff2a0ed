"""`dice bench train`: tokens a second, MFU and peak memory of SFT, ours against a stock implementation."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dice.commands.arguments import at_least
from dice.errors import UserError
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cli import BenchTrain

Figures = dict[str, Any]


def train(args: BenchTrain) -> int:
    from dice.recipes import SHAPES
    from dice.train.bench import Plan, TrainBench, peak_flops
    from dice.train.runlog import versions
    from dice.train.world import joined
    from dice.verify.roofline import driver_version

    at_least(1, rounds=args.rounds, batch_rows=args.batch_rows, micro_rows=args.micro_rows, block_size=args.block_size)
    shortest, longest = args.documents
    if not 1 <= shortest <= longest:
        raise UserError(f"--documents are the shortest and the longest in tokens, not {shortest} and {longest}.")
    shape, vocab_size = SHAPES[args.shape]
    most = min(args.row_tokens, shape.max_position_embeddings)
    plan = Plan(
        shape=shape, vocab_size=vocab_size, block_size=args.block_size, row_tokens=args.row_tokens,
        batch_rows=args.batch_rows, micro_rows=min(args.micro_rows, args.batch_rows), rounds=args.rounds,
        shortest=min(shortest, most), longest=min(longest, most), seed=args.seed,
    )  # fmt: skip
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)  # fails now, if at all
    with joined(args.device) as world:

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
        asked = {name: value for name, value in vars(args).items() if name not in ("out", "json")}
        result = {"asked": asked, "parameters": bench.parameters, "machine": where, "figures": figures}
        if world.leads:
            _publish(args, result)
    return 0


def _publish(args: BenchTrain, result: Figures) -> None:
    if args.out is not None:
        from dice.data.whole import write_json

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
