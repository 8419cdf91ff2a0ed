"""Which operators the structural problems run that the synthetic corpus does not, and how many problems have each.

    python benchmarks/synth_operators.py --out operators.json --pairs 2000 --styles wide

Every problem's forward runs once on the CPU, the structural ones at their reduced scale, and what reaches the
dispatcher is counted. `share_of_corpus`: of the corpus's pairs that run an operator.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dice import synth
from dice.data.structural import build
from dice.files.atomic import write_json
from dice.synth.corpus import generator_version


class Recorder(TorchDispatchMode):
    """Names of the operators that run inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def operators(source: str) -> set[str]:
    """What one problem's forward runs."""
    names: dict[str, Any] = {"__name__": "problem"}
    exec(compile(source, "problem.py", "exec"), names)
    model, inputs = names["Model"](*names["get_init_inputs"]()), names["get_inputs"]()
    with torch.no_grad(), Recorder() as recorder:
        model(*inputs)
    return recorder.names


def counted(sources: Iterable[str]) -> tuple[Counter[str], int]:
    """How many of the problems have each operator, and how many could not be run."""
    counts: Counter[str] = Counter()
    failed = 0
    for source in sources:
        try:
            counts.update(operators(source))
        except Exception:
            failed += 1
    return counts, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--styles", choices=("plain", "wide"), default="plain")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    structural, structural_failed = counted(sample.problem for sample in build.samples("reduced"))
    styles = synth.Styles(args.styles)
    drawn = (synth.generate(args.seed, index, styles=styles).check_problem.source for index in range(args.pairs))
    corpus, corpus_failed = counted(drawn)
    missing = {name: count for name, count in structural.most_common() if not corpus[name]}
    found = {
        "generator": generator_version(),
        "torch": torch.__version__,
        "pairs": args.pairs,
        "styles": args.styles,
        "failed": {"structural": structural_failed, "corpus": corpus_failed},
        "missing": missing,
        "structural": {
            name: {"problems": count, "share_of_corpus": round(corpus[name] / args.pairs, 4)}
            for name, count in structural.most_common()
        },
    }
    write_json(args.out, found)
    print(json.dumps({"failed": found["failed"], "missing": missing}))


if __name__ == "__main__":
    main()
