"""`dice bench verify`: this verifier against the stock path, on the same candidates, in one run.

Each phase is a function from candidates to a dictionary of plain numbers. `Bench` runs them in turn, within one budget
of time, and hands each result to be stored at once, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dice.kernel import Kernel
from dice.launch import environment
from dice.problem import Problem
from dice.verdict import Backend
from dice.verify.build.service import BuildService
from dice.verify.build.sources import Sources
from dice.verify.options import Options
from dice.verify.sandbox.process import Zygote
from dice.verify.verifier import Verifier

Pair = tuple[Problem, Kernel]
Figures = dict[str, Any]
BUILD_TIMEOUT_S = 300.0
STOCK = Path(__file__).with_name("stock.py")
BARE_EXTENSION = '''
import torch
from torch.utils.cpp_extension import load_inline
source = """
torch::Tensor scaled(torch::Tensor x) {{ return x * {number}; }}
"""
extension = load_inline(name="bare", cpp_sources=source, functions=["scaled"])
assert extension.scaled(torch.ones(2))[0] == {number}
'''


@dataclass(frozen=True, slots=True)
class VerifyBenchPlan:
    """What is measured. `alone` candidates are verified one at a time; the stock path builds `stock` of `pairs`."""

    pairs: tuple[Pair, ...]
    alone: tuple[Pair, ...]
    backend: Backend
    workers: int
    stock: int
    stock_alone: int
    budget_s: float


class Bench:
    """Runs the phases of a plan that `known` does not hold yet. `store` hears of each result, `say` of progress."""

    def __init__(
        self, plan: VerifyBenchPlan, known: Figures, store: Callable[[Figures], None], say: Callable[[str], None]
    ) -> None:
        self.plan, self.store, self.say = plan, store, say
        self.results: Figures = dict(known)

    def run(self) -> Figures:
        """All figures. Phases for which no time is left are absent."""
        deadline = time.monotonic() + self.plan.budget_s
        with tempfile.TemporaryDirectory(prefix="dice-bench-") as folder:
            root = Path(folder)
            self._phase("builds", lambda: builds(self.plan, root / "builds"))
            if "remembered" not in self.results:  # it needs the cache that the cold run fills
                self._verdicts(root)
            for name, count, workers in (
                ("stock_alone", self.plan.stock_alone, 1),
                ("stock", self.plan.stock, self.plan.workers),
            ):
                left = deadline - time.monotonic()
                if count and left > 0 and name not in self.results:
                    self.say(f"stock load_inline, {count} candidates, {workers} at once")
                    pairs = self.plan.pairs[:count] if workers > 1 else self.plan.pairs[-count:]
                    self._keep(name, stock(pairs, self.plan.backend, workers, left, root / name))
        return self.results

    def _verdicts(self, root: Path) -> None:
        cache_dir = root / "verdicts"
        cache_dir.mkdir()
        if (root / "builds" / "headers").is_dir():  # made already, and reported as `prepare_s`
            shutil.copytree(root / "builds" / "headers", cache_dir / "headers")
        options = Options(cache_dir=cache_dir, timing=False)
        with Verifier(backend=self.plan.backend, options=options) as verifier:
            verifier.verify(*_first_of(self.plan))  # what is done once for all is not part of a rate
            self.say("verdicts, cold cache")
            self._keep("verdicts", verdicts(verifier, self.plan.pairs, self.plan.workers))
            self._phase("alone", lambda: alone(verifier, self.plan.alone))
        for name in ("warm", "remembered"):  # the first has the builds, and keeps its verdicts for the second
            with Verifier(backend=self.plan.backend, options=options, cache=True) as verifier:
                verifier.verify(*_first_of(self.plan))
                self.say(name)
                figures = verdicts(verifier, self.plan.pairs, self.plan.workers)
                if name == "remembered":
                    figures["seconds"] = {}  # a kept verdict tells those of the run that made it
                self._keep(name, figures)

    def _phase(self, name: str, measure: Callable[[], Figures]) -> None:
        if name not in self.results:
            self.say(name)
            self._keep(name, measure())

    def _keep(self, name: str, figures: Figures) -> None:
        self.results[name] = figures
        self.store(self.results)


def _first_of(plan: VerifyBenchPlan) -> Pair:
    """A pair that is none of those measured: the last with its name changed in the source, so that it is built anew."""
    problem, kernel = plan.pairs[-1]
    return problem, replace(kernel, source=kernel.source.replace("__global__", "/* first */ __global__", 1))


def builds(plan: VerifyBenchPlan, cache_dir: Path) -> Figures:
    """Builds only, cold cache: the sources that each kernel hands to `load_inline`."""
    cache_dir.mkdir(parents=True)
    sources = [found for _, kernel in plan.pairs if (found := sources_of(kernel.source)) is not None]
    zygote = Zygote()
    try:
        service = BuildService(plan.backend, cache_dir)
        started = time.perf_counter()
        service.prepare(zygote)
        prepare_s = time.perf_counter() - started
        started = time.perf_counter()
        ends: list[float] = []
        seconds: list[float] = []
        kinds: Counter[str] = Counter()
        with ThreadPoolExecutor(plan.workers) as pool:
            jobs = [pool.submit(service.build, zygote, item, "bench", BUILD_TIMEOUT_S) for item in sources]
            for job in as_completed(jobs):
                answer = job.result()
                ends.append(time.perf_counter() - started)
                seconds.append(answer.seconds)
                kinds[answer.built.headers if answer.built else answer.kind] += 1
    finally:
        zygote.close()
    return rates(ends) | {"seconds": quantiles(seconds), "took": dict(kinds), "prepare_s": prepare_s}


def verdicts(verifier: Verifier, pairs: Sequence[Pair], workers: int) -> Figures:
    """Complete verdicts: compiled, run, compared; not timed."""
    started = time.perf_counter()
    ends: list[float] = []
    seconds: list[float] = []
    outcomes: Counter[str] = Counter()
    for _, verdict in verifier.verify_many(pairs, workers=workers):
        ends.append(time.perf_counter() - started)
        seconds.append(verdict.seconds.get("total", 0.0))
        outcomes[verdict.outcome] += 1
    return rates(ends) | {"seconds": quantiles(seconds), "outcomes": dict(outcomes)}


def alone(verifier: Verifier, pairs: Sequence[Pair]) -> Figures:
    """The latency of one verdict on a machine that does nothing else, cold build."""
    seconds = []
    for problem, kernel in pairs:
        started = time.perf_counter()
        verifier.verify(problem, kernel)
        seconds.append(time.perf_counter() - started)
    return {"count": len(seconds), "seconds": quantiles(seconds)}


def stock(pairs: Sequence[Pair], backend: Backend, workers: int, limit_s: float, folder: Path) -> Figures:
    """The stock path: a fresh Python and `load_inline` for each candidate, as many at once as we get workers.

    On the emulated backend it builds a C++ extension of one line instead: without a GPU there is no stock path to run,
    and this is what reading PyTorch's headers costs. What is not done after `limit_s` is counted as unfinished.
    """
    deadline = time.monotonic() + limit_s
    began = time.time()
    with ThreadPoolExecutor(workers) as pool:
        jobs = [
            pool.submit(_stock_one, folder / str(number), pair, number, backend, deadline)
            for number, pair in enumerate(pairs)
        ]
        reports = [job.result() for job in jobs]
    done = [report for report in reports if "total_s" in report]
    built = [report for report in done if report["build_ended"]]
    first = min((report["build_began"] for report in built), default=began)
    return rates([report["build_ended"] - first for report in built]) | {
        "what": "load_inline, cuda" if backend == "cuda" else "load_inline, a C++ extension of one line",
        "seconds": quantiles([report["wall_s"] for report in done]),
        "build_seconds": quantiles([report["build_ended"] - report["build_began"] for report in built]),
        "correct": sum(report["correct"] is True for report in done),
        "unfinished": len(reports) - len(done),
        "errors": sorted({report["error"] for report in reports if "error" in report}),
    }


def _stock_one(folder: Path, pair: Pair, number: int, backend: Backend, deadline: float) -> Figures:
    folder.mkdir(parents=True)
    kernel = pair[1].source if backend == "cuda" else BARE_EXTENSION.format(number=number + 2)
    (folder / "problem.py").write_text(pair[0].source)
    (folder / "kernel.py").write_text(kernel)
    variables = environment() | {"TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
    command = [sys.executable, "-P", str(STOCK), str(folder / "problem.py"), str(folder / "kernel.py")]
    started = time.monotonic()
    if started >= deadline:
        return {}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, complaint = process.communicate(timeout=deadline - started)
        except subprocess.TimeoutExpired:
            return {}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its compilers too
    if process.returncode != 0:
        last = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"error": last[:300]}
    report: Figures = json.loads(printed.strip().splitlines()[-1])
    return report | {"wall_s": time.monotonic() - started}


def sources_of(text: str) -> Sources | None:
    """What a kernel file hands to `load_inline`, read without running it; None where that is computed."""
    tree = ast.parse(text)
    constants: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                constants[statement.targets[0].id] = ast.literal_eval(statement.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load_inline"):
            with contextlib.suppress(ValueError, KeyError):
                return _sources({item.arg: _value(item.value, constants) for item in node.keywords})
    return None


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return constants[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, constants) for item in node.elts]
    return ast.literal_eval(node)


def _sources(keywords: dict[str | None, Any]) -> Sources:
    functions = keywords.get("functions") or []
    names = [functions] if isinstance(functions, str) else list(functions)
    return Sources(
        tuple(_texts(keywords["cpp_sources"])),
        tuple(_texts(keywords.get("cuda_sources") or [])),
        tuple((name, name) for name in names),
        tuple(keywords.get("extra_cflags") or ()),
        tuple(keywords.get("extra_cuda_cflags") or ()),
    )


def _texts(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def rates(ends: Sequence[float]) -> Figures:
    """Count, wall time and rate a minute of things that ended at these moments (seconds after the start); and the
    lowest and highest rate over thirds of them, as a spread."""
    if not ends:
        return {"count": 0, "wall_s": 0.0, "per_minute": 0.0, "per_minute_thirds": []}
    ordered = sorted(ends)
    third = len(ordered) // 3
    marks = [0.0, *(ordered[third * part - 1] for part in (1, 2, 3))] if third else []
    thirds = [60 * third / max(late - early, 1e-9) for early, late in zip(marks, marks[1:], strict=False)]
    return {
        "count": len(ordered),
        "wall_s": ordered[-1],
        "per_minute": 60 * len(ordered) / max(ordered[-1], 1e-9),
        "per_minute_thirds": sorted(thirds),
    }


def quantiles(seconds: Sequence[float]) -> Figures:
    """Median, 10% and 90% quantile, extremes."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[int(0.1 * (len(ordered) - 1) + 0.5)],
        "p90": ordered[int(0.9 * (len(ordered) - 1) + 0.5)],
        "min": ordered[0],
        "max": ordered[-1],
    }
