"""`dice optimize --training --tune --export` on a GPU, as a user types it, and what its three results are worth.

    python benchmarks/trained_gpu.py OUT [--modules FILE.py...] [--tune 4] [--stop-after-s S]

Of each module: the command, with its seconds and its report; the tests that the package brings; and the milliseconds of
`forward` alone and of `forward` with the gradients of all parameters, in turns: eager PyTorch, torch.compile, the
written file, the package's module, and that one under torch.compile. Medians of 15 rounds of 10 calls. OUT/rows.jsonl
has a row for each module; the same command goes on, also within a module.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dice.files import JsonObject
from dice.files.journal import Journal

ROOT = Path(__file__).resolve().parent.parent
MODULES = [ROOT / "benchmarks" / name for name in ("trained/block.py", "networks/llama.py", "networks/bert.py")]
ROUNDS, CALLS, WARM_UPS = 15, 10, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--modules", type=Path, nargs="+", default=MODULES)
    parser.add_argument("--tune", type=int, default=4)
    parser.add_argument("--stop-after-s", type=float, default=1e9)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(timed(args.child, args.out)))
        return
    ends = time.monotonic() + args.stop_after_s
    args.out.mkdir(parents=True, exist_ok=True)
    with Journal(args.out / "rows.jsonl", "run of trained_gpu.py") as journal:
        known = {row["module"] for row in journal.rows()}
        for path in args.modules:
            if path.stem not in known:
                row = one(path.resolve(), args.out.resolve() / path.stem, args.tune, ends)
                print(json.dumps(row), flush=True)
                if row is not None:
                    journal.append(row)


def one(module: Path, out: Path, tune: int, ends: float) -> JsonObject | None:
    """A module's row; None where the time was over before it was whole."""
    package = out / f"{module.stem}_kernels"
    out.mkdir(parents=True, exist_ok=True)
    options = ["--training", f"--tune={tune}", f"--export={package}", f"--run={out / 'run'}", "--json"]
    begun = time.monotonic()
    optimised = None
    if not (out / "optimised.json").exists():
        command = ["-m", "dice", "optimize", str(module), "-o", str(out / "whole.py"), *options]
        optimised = run(command, out, ends)
        if optimised is None or optimised.returncode != 0:
            return None if optimised is None else {"module": module.stem, "failed": optimised.stderr[-2000:]}
        report = json.loads(optimised.stdout)
        report["command_s"] = round(time.monotonic() - begun, 1)
        (out / "optimised.json").write_text(json.dumps(report))
    tests = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "."], package, ends)
    times = run([str(Path(__file__).resolve()), str(out), "--child", str(module)], out, ends)
    if tests is None or times is None:
        return None
    return {
        "module": module.stem,
        "optimised": json.loads((out / "optimised.json").read_text()),
        "tests": tests.stdout.strip().splitlines()[-1:],
        "ms": json.loads(times.stdout.splitlines()[-1]) if times.returncode == 0 else times.stderr[-2000:],
    }


def run(arguments: list[str], folder: Path, ends: float) -> subprocess.CompletedProcess[str] | None:
    """None where it was not over in time: what it has done is on the disk."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True, stdout=-1, stderr=-1
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=max(ends - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            return None
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def timed(module: Path, out: Path) -> dict[str, dict[str, float | str]]:
    """Milliseconds of each way to run the module, or why it cannot be."""
    own = loaded(module)
    models = {"eager": own.Model}
    written = loaded(out / "whole.py").ModelNew
    sys.path.insert(0, str(out / f"{module.stem}_kernels"))
    packed = importlib.import_module(f"{module.stem}_kernels").ModelNew
    models |= {"compile": own.Model, "written": written, "package": packed, "package, compiled": packed}
    inputs = [moved(one) for one in own.get_inputs()]
    made: dict[str, Any] = {}
    for name, kind in models.items():
        torch.manual_seed(0)
        model = kind(*own.get_init_inputs()).cuda()
        made[name] = torch.compile(model) if "compile" in name else model
    return {
        "forward": in_turns({name: forward(model, inputs) for name, model in made.items()}),
        "forward and gradients": in_turns({name: trained(model, inputs) for name, model in made.items()}),
    }


def forward(model: Callable[..., Any], inputs: list[Any]) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            model(*inputs)

    return call


def trained(model: Any, inputs: list[Any]) -> Callable[[], None]:
    def call() -> None:
        model.zero_grad(set_to_none=True)
        found = model(*inputs)
        first = found if isinstance(found, torch.Tensor) else next(iter(found))
        first.float().square().mean().backward()

    return call


def in_turns(calls: dict[str, Callable[[], None]]) -> dict[str, float | str]:
    """Medians; what cannot be run has its error in place of a time."""
    found: dict[str, float | str] = {}
    spent: dict[str, list[float]] = {}
    for name, call in calls.items():
        try:
            for _ in range(WARM_UPS):
                call()
            spent[name] = []
        except Exception as error:  # of this way alone: the others are timed
            found[name] = f"{type(error).__name__}: {error}"[:400]
    for _ in range(ROUNDS):
        for name, times in spent.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(CALLS):
                calls[name]()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / CALLS)
    return found | {name: round(statistics.median(times), 5) for name, times in spent.items()}


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def moved(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    main()
