"""Are verdicts the same, byte for byte but for times? Those of two checkouts, for changes that should change no
behaviour, and those of this machine's verifier and of the hosts of a Ray cluster.

python benchmarks/same_verdicts.py draw PAIRS.json [--pairs 200]       # once: right kernels, mutants, exploits
PYTHONPATH=CHECKOUT python benchmarks/same_verdicts.py verify PAIRS.json VERDICTS.json   # in each checkout
PYTHONPATH=. python benchmarks/same_verdicts.py verify PAIRS.json VERDICTS.json --nodes 2  # by that many nodes of Ray
python benchmarks/same_verdicts.py compare BEFORE.json AFTER.json      # exits with 1 where one differs
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier

HERE = Path(__file__).resolve().parent
SEED = 20_26
WHEN_AND_WHERE = ("seconds", "timing", "profile", "host")


def draw(path: Path, count: int) -> None:
    """A third from the catalogue of exploits, as far as it goes; then a third right pairs of the synthetic corpus, and
    mutants."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "exploits")]
    import catalogue
    from mutants import candidates

    exploits = [one for folder in ("cheats", "honest", "wrong") for one in catalogue.read_all(folder).values()]
    chosen = random.Random(SEED).sample(exploits, min(len(exploits), count // 3))
    pairs = [(f"exploit {one.name}", one.problem.source, one.kernel.source) for one in chosen]
    drawn = candidates(SEED, right=count // 3, mutants=count)
    pairs += [(one.name, one.problem.source, one.kernel.source) for one in itertools.islice(drawn, count - len(pairs))]
    path.write_text(json.dumps(pairs, indent=1))
    print(f"{len(pairs)} pairs")


@contextmanager
def opened(nodes: int) -> Iterator[Verifier]:
    """The verifier of this machine or, with `nodes`, of a cluster of so many, which share its cores."""
    options = Options(seed=SEED, timing=False)
    if not nodes:
        with Verifier(backend="emulated", options=options) as verifier:
            yield verifier
        return
    from ray_nodes import RayNodes

    from dice.cluster.verifier import ClusterVerifier

    cores = max(1, len(os.sched_getaffinity(0)) // nodes)
    with (
        RayNodes(nodes, cpus=cores) as cluster,
        ClusterVerifier(cluster.address, backend="emulated", options=options) as hosts,
    ):
        yield hosts


def verify(pairs: Path, out: Path, nodes: int) -> None:
    drawn = json.loads(pairs.read_text())
    verdicts: dict[str, Any] = {}
    with opened(nodes) as verifier:
        stream = ((Problem(problem), Kernel(kernel)) for _, problem, kernel in drawn)
        for number, verdict in verifier.verify_many(stream):
            said = verdict.to_json()
            verdicts[drawn[number][0]] = {name: value for name, value in said.items() if name not in WHEN_AND_WHERE}
    out.write_text(json.dumps(verdicts, indent=1, sort_keys=True))
    print(f"{len(verdicts)} verdicts")


def compare(before: Path, after: Path, summary: Path | None) -> int:
    one, other = json.loads(before.read_text()), json.loads(after.read_text())
    differ = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    for name in differ:
        old, new = one.get(name) or {}, other.get(name) or {}
        for field in sorted({*old, *new}):
            if old.get(field) != new.get(field):
                print(f"{name}: {field}: {old.get(field)!r} -> {new.get(field)!r}")
    print(f"{len(one)} and {len(other)} verdicts, {len(differ)} differ")
    if summary is not None:
        outcomes = dict(Counter(verdict["outcome"] for verdict in one.values()))
        found = {"verdicts": [len(one), len(other)], "differ": differ, "outcomes": outcomes}
        summary.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if differ else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["draw", "verify", "compare"])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--summary", type=Path)
    args = parser.parse_args()
    if args.step == "draw":
        draw(args.paths[0], args.pairs)
    elif args.step == "verify":
        verify(args.paths[0], args.paths[1], args.nodes)
    else:
        return compare(args.paths[0], args.paths[1], args.summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
