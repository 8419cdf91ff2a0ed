"""Are the verdicts of two checkouts the same, byte for byte but for times? For changes that should change no behaviour.

python benchmarks/same_verdicts.py draw PAIRS.json [--pairs 200]       # once: right kernels, mutants, exploits
PYTHONPATH=CHECKOUT python benchmarks/same_verdicts.py verify PAIRS.json VERDICTS.json   # in each checkout
python benchmarks/same_verdicts.py compare BEFORE.json AFTER.json      # exits with 1 where one differs
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier

HERE = Path(__file__).resolve().parent
SEED = 20_26
TIMES = ("seconds", "timing", "profile")


def draw(path: Path, count: int) -> None:
    """A third from the catalogue of exploits; of the rest half right pairs of the synthetic corpus, half mutants."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "exploits")]
    import catalogue
    from mutants import candidates

    exploits = [one for folder in ("cheats", "honest", "wrong") for one in catalogue.read_all(folder).values()]
    chosen = random.Random(SEED).sample(exploits, count // 3)
    pairs = [(f"exploit {one.name}", one.problem.source, one.kernel.source) for one in chosen]
    drawn = candidates(SEED, right=count // 3, mutants=count)
    pairs += [(one.name, one.problem.source, one.kernel.source) for one in itertools.islice(drawn, count - len(pairs))]
    path.write_text(json.dumps(pairs, indent=1))
    print(f"{len(pairs)} pairs")


def verify(pairs: Path, out: Path) -> None:
    drawn = json.loads(pairs.read_text())
    options = Options(seed=SEED, timing=False)
    verdicts: dict[str, Any] = {}
    with Verifier(backend="emulated", options=options) as verifier:
        stream = ((Problem(problem), Kernel(kernel)) for _, problem, kernel in drawn)
        for number, verdict in verifier.verify_many(stream):
            said = verdict.to_json()
            verdicts[drawn[number][0]] = {name: value for name, value in said.items() if name not in TIMES}
    out.write_text(json.dumps(verdicts, indent=1, sort_keys=True))
    print(f"{len(verdicts)} verdicts")


def compare(before: Path, after: Path) -> int:
    one, other = json.loads(before.read_text()), json.loads(after.read_text())
    differ = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    for name in differ:
        old, new = one.get(name) or {}, other.get(name) or {}
        for field in sorted({*old, *new}):
            if old.get(field) != new.get(field):
                print(f"{name}: {field}: {old.get(field)!r} -> {new.get(field)!r}")
    print(f"{len(one)} and {len(other)} verdicts, {len(differ)} differ")
    return 1 if differ else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["draw", "verify", "compare"])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=200)
    args = parser.parse_args()
    if args.step == "draw":
        draw(args.paths[0], args.pairs)
    elif args.step == "verify":
        verify(args.paths[0], args.paths[1])
    else:
        return compare(args.paths[0], args.paths[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
