"""How right, honest and fast the synthetic corpus is: a random sample of it through the verifier, with timing on a GPU.

    python benchmarks/synth_sample.py --out sample.json --pairs 2000 --backend cuda --budget 500
    python benchmarks/synth_sample.py --out wide.json --pairs 200 --backend emulated --styles wide
    python benchmarks/synth_sample.py --out sample.json --report

A run ends by itself when its budget of seconds is spent; the same command goes on where it ended. Pairs are judged on
the shapes that verify in a moment (`check_problem`): speed-ups there say what launches are saved, not what a large
tensor would show. `--large` judges the printed shapes instead.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dice import synth
from dice.files.atomic import write_json
from dice.files.journal import append_row, read_rows
from dice.optimize.canonical import canonical_pair
from dice.synth.corpus import generator_version
from dice.verdict import Verdict

BUCKETS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)  # upper ends of the histogram's bars; the last bar is open
STRIDE = 104_729  # a prime: neighbouring indices of the sample lie far apart in the corpus


def sample(seed: int, count: int, styles: synth.Styles) -> list[synth.Pair]:
    """Pairs from all over the corpus of that seed."""
    return [synth.generate(seed, number * STRIDE % 10_000_000, styles=styles) for number in range(count)]


def bucket(speedup: float) -> str:
    upper = next((end for end in BUCKETS if speedup < end), None)
    return f"< {upper:g}" if upper else f">= {BUCKETS[-1]:g}"


def row(number: int, pair: synth.Pair, verdict: Verdict) -> dict[str, Any]:
    """What is kept of one verdict; texts only where something failed."""
    kept: dict[str, Any] = {"number": number, "family": pair.family, "style": pair.style, "outcome": verdict.outcome}
    kept["composition"] = pair.composition
    if pair.written:
        kept["written"] = list(pair.written)
    if verdict.correct and verdict.timing:
        kept["speedup"] = round(verdict.timing.speedup, 3)
    if not verdict.correct:
        kept |= {"message": verdict.message, "problem": pair.check_problem.source, "kernel": pair.check_kernel.source}
    return kept


def verify(args: argparse.Namespace, known: dict[int, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    from dice.verify import Options, Verifier

    deadline = time.monotonic() + args.budget
    canonical = canonical_pair if args.styles == "wide" else None
    pairs = sample(args.seed, args.pairs, synth.Styles(args.styles, canonical=canonical))
    pending = [number for number in range(len(pairs)) if number not in known]
    timing = args.backend != "emulated" and args.timing_seconds > 0
    options = Options(trials=args.trials, timing=timing, sanitize=args.sanitize)
    if timing:
        options = replace(options, timing_s=args.timing_seconds)
    with Verifier(backend=args.backend, options=options) as verifier:

        def jobs() -> Iterator[tuple[Any, Any]]:
            for number in pending:
                if time.monotonic() > deadline:
                    return
                pair = pairs[number]
                yield (pair.problem, pair.kernel) if args.large else (pair.check_problem, pair.check_kernel)

        for position, verdict in verifier.verify_many(jobs(), workers=args.workers):
            number = pending[position]
            yield row(number, pairs[number], verdict)


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in rows:
        families[one["family"]].append(one)
    judged = [one for one in rows if one["outcome"] not in ("unsupported", "infra_error")]
    right = sum(one["outcome"] == "correct" for one in judged)
    return {
        "pairs": len(rows),
        "outcomes": dict(Counter(one["outcome"] for one in rows).most_common()),
        "correct_share": round(right / len(judged), 5) if judged else None,
        "written": dict(Counter(style for one in rows for style in one.get("written", ())).most_common()),
        "families": {
            name: {
                "pairs": len(group),
                "outcomes": dict(Counter(one["outcome"] for one in group)),
                "styles": dict(Counter(one["style"] for one in group).most_common()),
                **_speeds([one["speedup"] for one in group if "speedup" in one]),
            }
            for name, group in sorted(families.items())
        },
        "failures": [one for one in rows if one["outcome"] != "correct"],
    }


def _speeds(speedups: list[float]) -> dict[str, Any]:
    if not speedups:
        return {}
    counts = Counter(map(bucket, speedups))
    labels = [*(f"< {end:g}" for end in BUCKETS), f">= {BUCKETS[-1]:g}"]
    middle = sorted(speedups)[len(speedups) // 2]
    return {"median_speedup": middle, "histogram": {label: counts[label] for label in labels if counts[label]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON file; what it holds already is not verified again"
    )
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--styles", default="plain", choices=("plain", "wide"), help="as of `dice data synth`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated"))
    parser.add_argument("--workers", type=int, default=None, help="jobs under way at once")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds after which no further pair is begun")
    parser.add_argument("--timing-seconds", type=float, default=3.0, help="spent at most on timing one; 0: not timed")
    parser.add_argument("--large", action="store_true", help="judge the printed shapes, where they are large")
    parser.add_argument("--sanitize", action="store_true", help="also look for races (much slower)")
    parser.add_argument("--report", action="store_true", help="only print what the file holds")
    args = parser.parse_args()

    settings = {"seed": args.seed, "generator": generator_version(), "large": args.large}
    settings |= {} if args.styles == "plain" else {"styles": args.styles}
    log = args.out.with_suffix(".jsonl")
    rows = list(read_rows(log))
    if rows and rows[0] != settings:
        raise SystemExit(f"{log} holds a sample of {rows[0]}, not of {settings}: choose another --out.")
    known = {one["number"]: one for one in rows[1:]}
    if not args.report:
        if not rows:
            append_row(log, settings)
        for one in verify(args, known):
            known[one["number"]] = one
            append_row(log, one)
    found = {"settings": settings, **report([known[number] for number in sorted(known)])}
    write_json(args.out, found)
    summary = {name: found[name] for name in ("pairs", "outcomes", "correct_share")}
    print(json.dumps(summary | {"missing": args.pairs - len(known)}))


if __name__ == "__main__":
    main()
