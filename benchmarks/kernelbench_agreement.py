"""Our verdicts under the protocol `kernelbench` beside those of KernelBench's own evaluator. Needs an NVIDIA GPU.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/kernelbench_agreement.py --kernelbench KernelBench --out results

The evaluator is KernelBench's `eval_kernel_against_ref`, unchanged, one process a candidate. Only `load_inline` under
it is replaced by our builder: PyTorch's own would take over a minute for each of some 180 candidates. `--stock` of
them are also evaluated with PyTorch's, and those verdicts must be the same. Every verdict that differs is listed with
what both said; `explained` names the rule that one of the two does not have, and what has no such rule is for a person
to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from kernelbench_code import Row, accelerate, in_processes, module, why
from mutants import Candidate, candidates

from dice.commands.bench.verify import machine
from dice.verdict import Verdict
from dice.verify import Options, Verifier

SEED, TRIALS = 515, 5
TIMEOUT_S, STOCK_TIMEOUT_S = 60.0, 400.0
LEAVES_MEMORY = ("half_grid", "unwritten", "no_launch", "off_by_one")


def evaluate(root: Path, candidate: Candidate, cache_dir: Path | None) -> Row:
    """In a process of its own: KernelBench's verdict on one candidate, with our builder where `cache_dir` is given."""
    evaluator = module(root, "eval").eval_kernel_against_ref  # here, for importing it starts CUDA
    if cache_dir is not None:
        accelerate(cache_dir)
    with tempfile.TemporaryDirectory() as folder:
        result = evaluator(
            candidate.problem.source,
            candidate.kernel.source,
            num_correct_trials=TRIALS,
            build_dir=folder,
            device=0,
            backend="cuda",
        )
    if result is None:
        return {"compiled": False, "correct": False, "why": "no result"}
    return {"compiled": result.compiled, "correct": result.correctness, "why": why(result.metadata)}


def evaluate_all(
    root: Path, chosen: list[Candidate], workers: int, cache_dir: Path | None, limit_s: float
) -> list[Row]:
    """KernelBench's verdicts, in the order of the candidates."""
    rows: list[Row] = [{}] * len(chosen)
    works = [partial(evaluate, root, candidate, cache_dir) for candidate in chosen]
    for number, row in in_processes(works, workers, limit_s):
        rows[number] = {"compiled": None, "correct": False, "why": row["error"]} if "error" in row else row
    return rows


def explain(kind: str, theirs: Row, ours: Verdict) -> str | None:
    """Why two verdicts differ; None when that takes a person."""
    if not ours.about_kernel:
        return None
    if theirs["correct"] and ours.outcome == "deceptive":
        return f"KernelBench does not ask which code made the output ({', '.join(ours.deceptions)})"
    if theirs["correct"] and ours.outcome == "no_kernel":
        return "KernelBench accepts a file without a CUDA kernel"
    if theirs["correct"] and ours.outcome == "wrong" and kind in LEAVES_MEMORY:
        return "the output is partly never written, and in KernelBench's process it finds earlier results there"
    return None


def compare(chosen: list[Candidate], theirs: list[Row], ours: list[Verdict]) -> dict[str, Any]:
    """Counts, and every verdict that differs."""
    rows: list[Row] = []
    differing: list[Row] = []
    for candidate, their, verdict in zip(chosen, theirs, ours, strict=True):
        row = {
            "name": candidate.name,
            "kind": candidate.kind,
            "kernelbench": their,
            "ours": {"outcome": verdict.outcome, "stage": verdict.stage, "message": verdict.message[:600]},
        }
        rows.append(row)
        if their["correct"] != verdict.correct:
            differing.append(
                row | {"explained": explain(candidate.kind, their, verdict), "kernel": candidate.kernel.source}
            )
    return {
        "compared": len(rows),
        "agree": len(rows) - len(differing),
        "correct_by_both": sum(row["kernelbench"]["correct"] and row["ours"]["outcome"] == "correct" for row in rows),
        "kinds": dict(Counter(candidate.kind for candidate in chosen)),
        "unexplained": sum(row["explained"] is None for row in differing),
        "differing": differing,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, required=True, help="folder of KernelBench's source")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--right", type=int, default=60)
    parser.add_argument("--mutants", type=int, default=84)
    parser.add_argument("--stock", type=int, default=8, help="so many also with PyTorch's own load_inline")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch.utils.cpp_extension  # noqa: F401 - children inherit it

    root = args.kernelbench.resolve()
    chosen = list(candidates(SEED, args.right, args.mutants))
    result: dict[str, Any] = {"machine": machine("cuda"), "trials": TRIALS, "seed": SEED}
    with tempfile.TemporaryDirectory() as folder:
        cache_dir = Path(folder)  # builds are shared by both, so that both run the same library
        evaluate_all(root, chosen[:1], 1, cache_dir, 300)  # what all builds share, made once
        started = time.perf_counter()
        theirs = evaluate_all(root, chosen, args.workers, cache_dir, TIMEOUT_S)
        result["kernelbench_seconds"] = time.perf_counter() - started
        print(f"KernelBench, accelerated: {len(theirs)} in {result['kernelbench_seconds']:.0f} s", flush=True)
        started = time.perf_counter()
        ours: list[Verdict] = [Verdict("infra_error", "infra")] * len(chosen)
        options = Options(protocol="kernelbench", timing=False, trials=TRIALS, cache_dir=cache_dir)
        pairs = [(candidate.problem, candidate.kernel) for candidate in chosen]
        with Verifier(backend="cuda", options=options) as verifier:
            for index, verdict in verifier.verify_many(pairs, workers=args.workers):
                ours[index] = verdict
        result["our_seconds"] = time.perf_counter() - started
        print(f"ours: {len(ours)} in {result['our_seconds']:.0f} s", flush=True)
        result |= compare(chosen, theirs, ours)
        _store(args.out, result)
        if args.stock:
            step = max(1, len(chosen) // args.stock)
            sample = chosen[::step][: args.stock]
            stock = evaluate_all(root, sample, args.workers, None, STOCK_TIMEOUT_S)
            same = [
                row["correct"] == theirs[chosen.index(item)]["correct"] for item, row in zip(sample, stock, strict=True)
            ]
            result["stock"] = {"count": len(stock), "same_verdict": sum(same), "names": [item.name for item in sample]}
            _store(args.out, result)
    for row in result["differing"]:
        print(row["name"], row["kernelbench"], row["ours"], row["explained"] or "UNEXPLAINED", sep="\n    ")
    print(
        {key: result[key] for key in ("compared", "agree", "correct_by_both", "unexplained", "stock") if key in result}
    )


def _store(folder: Path, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernelbench_agreement.json").write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
