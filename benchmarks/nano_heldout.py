"""Exec of a checkpoint on the held-out synthetic problems: one greedy sample a problem, no retries, both backends.

    python benchmarks/nano_heldout.py write  --model nano --data corpus/heldout --out results
    python benchmarks/nano_heldout.py verify --out results --backend emulated
    python benchmarks/nano_heldout.py verify --out results --backend cuda
    python benchmarks/nano_heldout.py report --out results

`write` stores the candidates once, so that both backends judge the same texts. Each step records hardware and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

import dice
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import NO_KERNEL, compact, extract_kernel
from dice.synth.prose import without_prose
from dice.verdict import Verdict

COLUMNS = ["name", "problem", "family", "operators", "composition", "heldout_by"]


def machine() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"dice": dice.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"cpu_cores": os.cpu_count(), "gpu": gpu, **versions}


def write(args: argparse.Namespace) -> None:
    """Denoise one kernel a problem and store it, with how long that took."""
    import torch

    from dice.decode.generate import DecodeConfig, generate
    from dice.model.checkpoint import load_model, resolve_model
    from dice.model.tokenizer import Tokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = resolve_model(args.model)
    tokenizer, model = Tokenizer.from_folder(folder), load_model(folder, torch.float32, device)
    rows = ds.dataset(args.data, format="parquet").to_table(columns=COLUMNS).to_pylist()[: args.limit]
    if args.prose_free:
        rng = random.Random(0)
        rows = [{**row, "problem": without_prose(row["problem"], rng)} for row in rows]
    config = DecodeConfig(
        max_new_tokens=args.max_new_tokens,
        stop_ids=tokenizer.stop_ids,
        temperature=0.0,
        confidence_threshold=args.confidence_threshold,
    )
    records, start = [], time.perf_counter()
    for first in range(0, len(rows), args.batch_size):
        batch = rows[first : first + args.batch_size]
        prompts = [
            tokenizer.encode_chat([{"role": "user", "content": compact(Problem(row["problem"]))}]) for row in batch
        ]
        for row, trace in zip(batch, generate(model, prompts, config), strict=True):
            reply = tokenizer.decode(trace.response_ids)
            kernel = extract_kernel(reply)
            counts = {"tokens": len(trace.response_ids), "forwards": trace.forwards}
            records.append({**row, "reply": reply, "kernel": kernel.source if kernel else None, **counts})
        print(f"{len(records)} of {len(rows)} written", flush=True)
    seconds = time.perf_counter() - start
    decode = f"greedy, dynamic {args.confidence_threshold}"
    head = {"model": args.model, "device": device, "seconds": seconds, "decode": decode, **machine()}
    write_json(args.out / "candidates.json", {"run": head, "rows": records})


def verify(args: argparse.Namespace) -> None:
    """Judge the stored candidates on one backend."""
    from dice.verify import Options, Verifier

    rows = json.loads((args.out / "candidates.json").read_text())["rows"]
    pairs = [(Problem(row["problem"], row["name"]), Kernel(row["kernel"])) for row in rows if row["kernel"]]
    places = [index for index, row in enumerate(rows) if row["kernel"]]
    verdicts = [NO_KERNEL] * len(rows)
    start = time.perf_counter()
    options = Options(timing=args.backend == "cuda", timing_s=args.timing_seconds)
    with Verifier(backend=args.backend, options=options) as verifier:
        for done, (index, verdict) in enumerate(verifier.verify_many(pairs, workers=args.workers), 1):
            verdicts[places[index]] = verdict
            if done % 20 == 0:
                print(
                    f"{done} of {len(pairs)} verified, {60 * done / (time.perf_counter() - start):.0f} a minute",
                    flush=True,
                )
    head = {"backend": args.backend, "workers": args.workers, "seconds": time.perf_counter() - start, **machine()}
    write_json(args.out / f"verdicts_{args.backend}.json", {"run": head, "verdicts": [v.to_json() for v in verdicts]})


def report(args: argparse.Namespace) -> None:
    """Tables of Exec by hold-out rule and family, failure outcomes, fast1, and agreement of the backends."""
    candidates = json.loads((args.out / "candidates.json").read_text())
    rows, summary = candidates["rows"], {"generation": candidates["run"], "problems": len(candidates["rows"])}
    judged = {}
    for path in sorted(args.out.glob("verdicts_*.json")):
        data = json.loads(path.read_text())
        judged[data["run"]["backend"]] = [Verdict.from_json(item) for item in data["verdicts"]]
        summary[data["run"]["backend"]] = {"run": data["run"], **_table(rows, judged[data["run"]["backend"]])}
    if len(judged) == 2:
        summary["agreement"] = _agreement(rows, judged["emulated"], judged["cuda"])
    write_json(args.out / "summary.json", summary)
    print(json.dumps(summary, indent=1))


def _table(rows: list[dict[str, Any]], verdicts: list[Verdict]) -> dict[str, Any]:
    timed = [v for v in verdicts if v.correct and v.timing is not None]
    table: dict[str, Any] = {
        "exec": _rate(v.correct for v in verdicts),
        "outcomes": dict(Counter(v.outcome for v in verdicts)),
        "by_heldout_rule": _grouped(rows, verdicts, "heldout_by"),
        "by_family": _grouped(rows, verdicts, "family"),
    }
    if timed:
        table["fast1"] = _rate(v.correct and v.timing is not None and v.timing.speedup > 1 for v in verdicts)
        table["fast2"] = _rate(v.correct and v.timing is not None and v.timing.speedup > 2 for v in verdicts)
        table["median_speedup_of_correct"] = sorted(v.timing.speedup for v in timed if v.timing)[len(timed) // 2]
    return table


def _rate(hits: Iterable[bool]) -> float:
    values = list(hits)
    return round(100 * sum(values) / len(values), 1)


def _grouped(rows: list[dict[str, Any]], verdicts: list[Verdict], key: str) -> dict[str, Any]:
    groups = defaultdict(list)
    for row, verdict in zip(rows, verdicts, strict=True):
        groups[str(row[key])].append(verdict.correct)
    return {name: {"n": len(hits), "exec": _rate(hits)} for name, hits in sorted(groups.items())}


def _agreement(rows: list[dict[str, Any]], emulated: list[Verdict], cuda: list[Verdict]) -> dict[str, Any]:
    """Share of candidates on which both backends say correct or both say not; each disagreement in full."""
    both = [(r, e, c) for r, e, c in zip(rows, emulated, cuda, strict=True) if e.about_kernel and c.about_kernel]
    apart = [
        {
            "name": r["name"],
            "emulated": [e.outcome, e.message, list(e.errors)],
            "cuda": [c.outcome, c.message, list(c.errors)],
        }
        for r, e, c in both
        if e.correct != c.correct
    ]
    same_outcome = _rate(e.outcome == c.outcome for _, e, c in both)
    return {
        "compared": len(both),
        "agree": _rate(e.correct == c.correct for _, e, c in both),
        "same_outcome": same_outcome,
        "disagreements": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["write", "verify", "report"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--prose-free", action="store_true", help="problems without docstrings and comments")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=2048)
    parser.add_argument("--confidence-threshold", type=float, default=0.99)
    parser.add_argument("--backend", choices=["emulated", "cuda"], default="emulated")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timing-seconds", type=float, default=3.0, help="spent at most on timing one (cuda)")
    args = parser.parse_args()
    {"write": write, "verify": verify, "report": report}[args.step](args)


if __name__ == "__main__":
    main()
