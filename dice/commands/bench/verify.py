"""`dice bench verify`: builds and verdicts a minute, ours against stock `load_inline`, on the same candidates."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import dice
from dice.commands.arguments import Backend, at_least
from dice.commands.bench.bars import Bar, draw_bars
from dice.files.atomic import write_json, write_text
from dice.terminal import Console

Figures = dict[str, Any]


@dataclass
class BenchVerify:
    """Measure builds and verdicts a minute: ours against PyTorch's stock load_inline, same candidates, same run.

    Example: dice bench verify --candidates 96 --out bench
    """

    candidates: int = 96
    """Distinct kernels to build and verify."""
    workers: int = os.cpu_count() or 1
    """At once, ours and stock alike."""
    stock_candidates: int = 16
    """How many of them the stock path builds too: it takes over a minute for each."""
    stock_alone: int = 1
    """How many the stock path verifies one at a time."""
    alone: int = 8
    """Further kernels that ours verifies one at a time."""
    seed: int = 2026
    backend: Backend = "auto"
    budget: float = 400.0
    """Seconds after which the stock path is stopped; what it had finished counts."""
    out: Path | None = None
    """Folder for bench_verify.json and bench_verify.svg. An interrupted run resumes here."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from dice.bench.verify import Bench, VerifyBenchPlan
        from dice.verify.options import resolve_backend

        at_least(1, candidates=self.candidates, workers=self.workers)
        at_least(0, alone=self.alone, stock_candidates=self.stock_candidates, stock_alone=self.stock_alone)
        backend = resolve_backend(self.backend)
        pairs = distinct_pairs(self.candidates + self.alone, self.seed)
        plan = VerifyBenchPlan(
            pairs=tuple(pairs[: self.candidates]),
            alone=tuple(pairs[self.candidates :]),
            backend=backend,
            workers=self.workers,
            stock=min(self.stock_candidates, self.candidates),
            stock_alone=min(self.stock_alone, self.candidates),
            budget_s=self.budget,
        )
        asked = {
            "candidates": self.candidates,
            "alone": self.alone,
            "stock_candidates": plan.stock,
            "stock_alone": plan.stock_alone,
            "workers": self.workers,
            "seed": self.seed,
            "backend": backend,
        }
        head = {"asked": asked, "machine": machine(backend)}
        path = None if self.out is None else self.out / "bench_verify.json"
        known = {} if path is None else _resume(path, head)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)  # before any work is spent

        def store(figures: Figures) -> None:
            if path is not None:
                write_json(path, head | {"figures": figures, "ratios": ratios(figures)})

        def say(text: str) -> None:
            print(f"measuring: {text}", file=sys.stderr, flush=True)

        figures = Bench(plan, known, store, say).run()
        result = head | {"figures": figures, "ratios": ratios(figures)}
        if self.out is not None:
            write_text(self.out / "bench_verify.svg", picture(result))
        if self.json:
            print(json.dumps(result))
        else:
            show(Console(), result)
        return 0


def distinct_pairs(count: int, seed: int) -> list[Any]:
    """(problem, kernel) pairs of the synthetic corpus: every kernel's text occurs once."""
    from dice.synth import generate

    found: dict[str, Any] = {}
    index = 0
    while len(found) < count:
        pair = generate(seed, index)
        found.setdefault(pair.kernel.id, (pair.check_problem, pair.kernel))
        index += 1
    return list(found.values())


def machine(backend: str) -> Figures:
    """Hardware and versions, as every result names them."""
    from importlib.metadata import version

    from dice.verify.options import probe_cuda, toolchain
    from dice.verify.roofline import driver_version

    gpu = probe_cuda()["device"]
    return {
        "gpu": gpu or None,
        "driver": driver_version() or None,
        "cpu_cores": len(os.sched_getaffinity(0)),
        "cpu": _processor(),
        "compiler": toolchain("cuda" if backend == "cuda" else "emulated"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "dice": dice.__version__,
    }


def ratios(figures: Figures) -> Figures:
    """Ours over stock, where both were measured. The stock rate may come from a smaller sample, which `of` states."""
    found: Figures = {}
    ours, stock = figures.get("builds"), figures.get("stock")
    if ours and stock and stock["per_minute"]:
        found["builds"] = ours["per_minute"] / stock["per_minute"]
        found["of"] = f"{ours['count']} builds of ours, {stock['count']} of stock's"
    alone, stock_alone = figures.get("alone"), figures.get("stock_alone")
    if alone and stock_alone and stock_alone["seconds"] and alone["seconds"]:
        found["latency"] = stock_alone["seconds"]["median"] / alone["seconds"]["median"]
    return found


def show(console: Console, result: Figures) -> None:
    figures, where = result["figures"], result["machine"]
    table = Table(title="dice bench verify", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name in ("n", "a minute", "median s", "p10 to p90"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, title in TITLES.items():
        if name in figures:
            table.add_row(title, *_cells(figures[name]))
    console.print(table)
    for name, text in (
        ("builds", "times stock's build rate"),
        ("latency", "times stock's speed for one verdict alone"),
    ):
        if name in result["ratios"]:
            console.print(f"ours: {result['ratios'][name]:.1f} {text}", highlight=False)
    if "of" in result["ratios"]:
        console.print(f"({result['ratios']['of']}, {result['asked']['workers']} at once)", highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in where.items() if value), highlight=False)
    if result["asked"]["backend"] != "cuda":
        console.print(NO_GPU, highlight=False)


TITLES = {
    "builds": "ours: builds",
    "verdicts": "ours: verdicts",
    "warm": "ours: builds cached",
    "remembered": "ours: verdicts kept",
    "alone": "ours: one alone",
    "stock": "stock: builds",
    "stock_alone": "stock: one alone",
}
NO_GPU = (
    "No GPU here: ours compiles the CUDA source for the emulated backend and runs it there; stock builds a one-line "
    "C++ extension, which is what reading PyTorch's headers costs, and runs no kernel."
)


def _cells(figures: Figures) -> list[str]:
    seconds, rate = figures["seconds"], figures.get("per_minute")
    return [
        str(figures["count"]),
        f"{rate:.4g}" if rate else "",
        f"{seconds['median']:.3g}" if seconds else "",
        f"{seconds['p10']:.3g} to {seconds['p90']:.3g}" if seconds else "",
    ]


def picture(result: Figures) -> str:
    """Rates and latencies as bars on a logarithmic scale, as SVG."""
    figures, where = result["figures"], result["machine"]
    rates, latencies = [], []
    for name, title in TITLES.items():
        found = figures.get(name)
        if found is None:
            continue
        ours = title.startswith("ours")
        if found.get("per_minute") and name != "stock_alone":
            rates.append(Bar(title, found["per_minute"], f"{found['per_minute']:.4g}", ours))
        median = found["seconds"]["median"] if found["seconds"] else 0.0
        if median:
            latencies.append(Bar(title, median, f"{median:.3g} s", ours))
    place = f"{where['gpu'] or 'no GPU'}, {where['cpu_cores']} cores, torch {where['torch']}, {where['compiler']}"
    return draw_bars(
        f"dice bench verify: {result['asked']['candidates']} candidates, {result['asked']['workers']} at once",
        place,
        [("a minute (higher is better)", rates), ("median seconds of one (lower is better)", latencies)],
    )


def _resume(path: Path, head: Figures) -> Figures:
    """Figures of an interrupted run that was asked the same on the same machine."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    same = all(stored.get(key) == value for key, value in head.items())
    return dict(stored["figures"]) if same else {}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
