"""A training corpus as it would be had nobody checked it: deceptive and wrong answers among the right ones.

    python benchmarks/raw_corpus.py CORPUS/train OUT [--seed 0] [--deceptive 0.05 0.15 0.25] [--wrong 0.05]

What the paper sets out to mend (section 4.2): models asked for CUDA define a kernel and compute with PyTorch beside it,
the more often the harder the problem. Of the pairs that `dice data synth` wrote, the answers to problems of one, two,
and more operators become deceptive with the probabilities `--deceptive`: the kernel stays, and `ModelNew` is the
problem's own module (three of four), or there is no kernel at all. Of the others a few are broken by a seeded edit.
Nothing is verified; `OUT_report.json` has the counts. Rows of infilling (`--infill-share`) stay as they are: their
prompts give the module.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from mutants import EDITS  # noqa: E402

from dice.files.atomic import write_json, write_parquet  # noqa: E402
from dice.synth.prose import without_docstrings  # noqa: E402

DECEPTIVE = (0.2, 0.5, 0.7)  # of the answers to problems of one, two, and more operators
BARE = 0.25  # of those: without any kernel
WRONG = 0.1  # of the others
INFILLING = "The file begins:"  # how a prompt of infilling begins
GIVEN = ("get_inputs", "get_init_inputs")


def module_of(problem: str) -> tuple[list[str], str]:
    """The import lines of a problem's file, and its module as `ModelNew` with all that it needs, without prose."""
    tree = without_docstrings(problem)
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in GIVEN]
    names = {node.id for outer in kept for node in ast.walk(outer) if isinstance(node, ast.Name)}
    constants = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and names & {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    ]
    text = "\n\n\n".join([*map(ast.unparse, constants), *map(ast.unparse, kept)])
    return imports, text.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")


def deceptive(problem: str, kernel: str, bare: bool) -> str | None:
    """The answer that computes with PyTorch, behind a kernel that nothing calls or `bare`; None where that fails."""
    imports, module = module_of(problem)
    head, found, _ = kernel.partition("\n\nclass ModelNew(")
    if not found or "class ModelNew(" not in module:
        return None
    if bare:
        return "\n".join(imports) + f"\n\n\n{module}\n"
    lacking = "".join(f"{line}\n" for line in imports if line not in head)
    head = head.replace("import torch.nn as nn\n", f"import torch.nn as nn\n{lacking}", 1)
    return f"{head.rstrip()}\n\n\n{module}\n"


def broken(kernel: str, rng: random.Random) -> str | None:
    for kind in rng.sample(sorted(EDITS), len(EDITS)):
        source = EDITS[kind](kernel, rng)
        if source is not None and source != kernel:
            return source
    return None


def raw(
    row: dict[str, Any], rng: random.Random, shares: Sequence[float] = DECEPTIVE, wrong: float = WRONG
) -> tuple[str, dict[str, Any]]:
    """What became of a row, and the row."""
    kind, source = "right", None
    if str(row.get("prompt", "")).startswith(INFILLING):
        return kind, row
    share = shares[min(len(row["operators"]), len(shares)) - 1]
    if rng.random() < share:
        kind, source = "deceptive", deceptive(row["problem"], row["kernel"], rng.random() < BARE)
    elif rng.random() < wrong:
        kind, source = "wrong", broken(row["kernel"], rng)
    if source is None:
        return "right", row
    return kind, row | {"kernel": source, "response": row["response"].replace(row["kernel"].strip(), source.strip())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deceptive", type=float, nargs=3, default=DECEPTIVE, metavar="SHARE")
    parser.add_argument("--wrong", type=float, default=WRONG, metavar="SHARE")
    args = parser.parse_args()
    shards = sorted(args.corpus.glob("*.parquet"))
    if not shards:
        print(f"raw_corpus.py: {args.corpus} holds no Parquet files.", file=sys.stderr)
        return 2
    counts: Counter[str] = Counter()
    args.out.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        table = pq.read_table(shard)
        rng = random.Random(f"{args.seed} {shard.name}")
        made = [raw(row, rng, args.deceptive, args.wrong) for row in table.to_pylist()]
        counts.update(kind for kind, _ in made)
        rows = pa.Table.from_pylist([row for _, row in made], schema=table.schema)
        write_parquet(args.out / shard.name, rows)
    write_json(args.out.parent / f"{args.out.name}_report.json", {"seed": args.seed} | dict(sorted(counts.items())))
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
