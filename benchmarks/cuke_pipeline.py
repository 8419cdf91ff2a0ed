"""The data pipeline whole, on a mixed pool: import, measure, curate, RL sets. Killed in the middle, is it the same set?

    python benchmarks/cuke_pipeline.py --out FOLDER [--pairs 3000] [--backend cuda|emulated] [--workers N]
                                       [--budget SECONDS] [--timing-seconds 0.5] [--seed 2026]

`cuke_pool.py` writes the pool, each source in its own file format, with slow, wrong, deceptive and repeated rows
planted. Every step is the command that a person would run. The first pass is killed with SIGKILL in the middle of each
long step and run again; the second is not interrupted, takes the first one's verdicts and audits (times of two runs
differ), and must give the same files, byte for byte. Then what was kept is compared with what should be, by other means
(`cuke_checks.py`). A run that its budget interrupted goes on when called again. `FOLDER/cuke_pipeline.json` is the
report; exit code 1: a promise is broken, 75: out of budget.

Emulation knows no speed, so there the speed-ups are invented between measuring and curating, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cuke_checks import check  # noqa: E402
from cuke_pool import FILES, read_truth, write_pool  # noqa: E402

from dice.data.cuke.candidates import CurationSettings  # noqa: E402
from dice.data.cuke.curate import candidates, curate  # noqa: E402
from dice.data.decontaminate import Index  # noqa: E402
from dice.data.sample import Sample, read_sets, sample_files, write_samples  # noqa: E402
from dice.files.atomic import write_json  # noqa: E402
from dice.launch import environment, python_command  # noqa: E402
from dice.verdict import Timing  # noqa: E402

OUT_OF_BUDGET = 75
KILL_AT = 1 / 3  # of the verdicts
KILL_AFTER_S = 1.5  # of the short steps
GRACE_S = 20.0
COMPARED = ("cuke", "rl")
THRESHOLDS = (1.5, 2.0, 2.5)  # the paper's Table 4


class OutOfBudget(Exception):
    """Called again, the run goes on."""


class Run:
    """One pass over the steps in a folder of its own. Finished steps are noted and not run again."""

    def __init__(self, args: argparse.Namespace, name: str, deadline: float):
        self.args, self.name, self.deadline = args, name, deadline
        self.folder = args.out / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._notes = self.folder / "steps.json"
        self.steps: dict[str, Any] = json.loads(self._notes.read_text()) if self._notes.exists() else {}

    def step(self, name: str, command: Sequence[object], kill: Callable[[], bool] | None = None) -> None:
        """Run a `dice data` command to its end. With `kill`, first once until it says so, and then SIGKILL."""
        if self.steps.get(name, {}).get("done"):
            return
        note = self.steps.setdefault(name, {"seconds": 0.0, "killed": 0, "done": False})
        if kill and not note["killed"]:
            note["killed"] += self._call(command, note, kill)
            self.save()
        if not note["done"]:
            self._call(command, note, None)
        self.save()

    def work(self, name: str, do: Callable[[], object]) -> None:
        if not self.steps.get(name, {}).get("done"):
            started = time.monotonic()
            do()
            self.steps[name] = {"seconds": round(time.monotonic() - started, 1), "done": True}
            self.save()

    def save(self) -> None:
        write_json(self._notes, self.steps)

    def _call(self, command: Sequence[object], note: dict[str, Any], kill: Callable[[], bool] | None) -> bool:
        """Whether it was killed as wanted. Raises `OutOfBudget`, having interrupted it."""
        words = python_command("dice", "data", *map(str, command))
        log = self.args.out / "log.txt"
        started = time.monotonic()
        with log.open("ab") as said:
            child = subprocess.Popen(words, env=environment(), stdout=said, stderr=said)
            while child.poll() is None:
                time.sleep(0.05)
                if kill and kill():
                    child.send_signal(signal.SIGKILL)
                    child.wait()
                elif time.monotonic() > self.deadline:
                    end(child)
        note["seconds"] = round(note["seconds"] + time.monotonic() - started, 1)
        if time.monotonic() > self.deadline and child.returncode != 0:
            self.save()
            raise OutOfBudget
        if child.returncode == -signal.SIGKILL:
            return True
        if child.returncode != 0:
            sys.exit(f"`{' '.join(words)}` ended with {child.returncode}; see {log}")
        note["done"] = True
        return False


def end(child: subprocess.Popen[bytes]) -> None:
    """Interrupt it as a person would; kill it if it does not listen."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def through(run: Run, killed: bool) -> None:
    """All steps of one pass."""
    args, folder, pool = run.args, run.folder, run.args.out / "pool"
    samples = {name: folder / f"{name}.parquet" for name in ("pool", "structural")}
    files = [pool / path for source, path in FILES.items() if source != "structural"]
    run.step("import pool", ["import", *files, "-o", samples["pool"]])
    run.step("import structural", ["import", pool / FILES["structural"], "-o", samples["structural"]])
    for name, path in samples.items():
        measured = folder / f"measured_{name}"
        pairs = sum(bool(one.kernel) for one in read_sets([path]))
        limits = ["--run-timeout", 30, "--compile-timeout", 60, "--timing-seconds", args.timing_seconds]
        command = ["measure", path, "-o", measured, "--backend", args.backend, "--workers", args.workers, *limits]
        run.step(f"measure {name}", command, reached(measured, KILL_AT * pairs) if killed else None)
        if args.backend == "emulated":
            run.work(f"invent {name}", partial(invent_speeds, measured, folder / f"timed_{name}"))
    place = "timed" if args.backend == "emulated" else "measured"
    measured, structural = folder / f"{place}_pool", folder / f"{place}_structural"
    keep_out = ["--benchmarks", pool / "benchmark"]
    command = ["cuke", measured, "--structural", structural, *keep_out, "-o", folder / "cuke"]
    run.step("cuke", command, after(KILL_AFTER_S) if killed else None)
    sets = ["rl", measured, structural, "-o", folder / "rl", *keep_out]
    sets += ["--backend", args.backend, "--workers", args.workers, "--infill", 992, "--generate", args.generate]
    audited = folder / "rl" / "audit.jsonl"
    run.step("rl", sets, (lambda: lines(audited) >= min(200, args.pairs // 10)) if killed else None)


def sizes(out: Path, folder: Path, place: str) -> dict[str, int]:
    """How large the set is at each threshold of the paper's Table 4."""
    index = Index.from_folders([out / "pool" / "benchmark"])
    measured, structural = (list(read_sets([folder / f"{place}_{name}"])) for name in ("pool", "structural"))
    found = {}
    for threshold in THRESHOLDS:
        settings = CurationSettings(min_speedup=threshold)
        found[f"{threshold}x"] = len(curate(candidates(measured, structural, settings), settings, index).kept)
    return found


def verdicts(folder: Path) -> int:
    """How many the cache of a measurement holds."""
    path = folder / "1of1.verdicts.sqlite"
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1) as database:
            return int(database.execute("SELECT COUNT(*) FROM verdicts").fetchone()[0])
    except sqlite3.Error:
        return 0


def reached(folder: Path, count: float) -> Callable[[], bool]:
    return lambda: verdicts(folder) >= count


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def after(seconds: float) -> Callable[[], bool]:
    started = time.monotonic()
    return lambda: time.monotonic() - started > seconds


def invent_speeds(measured: Path, out: Path) -> None:
    """Give correct pairs a speed-up that follows from their text alone; those that repeat themselves are slow."""
    for path in sample_files(measured):
        write_samples(out / path.name, map(_with_speed, read_sets([path])))


def _with_speed(sample: Sample) -> Sample:
    verdict = sample.verdict
    if verdict is None or not verdict.correct:
        return sample
    draw = sha256(sample.kernel.encode()).digest()[0] / 256
    speedup = 0.2 if "ModelOnce" in sample.kernel else 0.8 + 3 * draw
    timing = Timing(1 / speedup, 1.0, speedup, 8, speedup_low=0.97 * speedup, speedup_high=1.03 * speedup)
    return sample.measured(replace(verdict, timing=timing, no_timing=""))


def lend(first: Path, second: Path) -> None:
    """Verdicts and audits: what was measured is the same for both passes, and what follows from it must be."""
    for name in ("pool", "structural"):
        target = second / f"measured_{name}"
        target.mkdir(parents=True, exist_ok=True)
        for path in (first / f"measured_{name}").glob("1of1.verdicts.sqlite*"):
            shutil.copy(path, target / path.name)
    (second / "rl").mkdir(exist_ok=True)
    for path in (first / "rl").glob("*.jsonl"):
        shutil.copy(path, second / "rl" / path.name)


def differences(first: Path, second: Path) -> list[str]:
    """Files of the two passes that are not equal, byte for byte."""
    names = {
        path.relative_to(folder)
        for folder in (first, second)
        for part in COMPARED
        for path in (folder / part).rglob("*")
        if path.is_file() and path.suffix != ".jsonl"
    }
    same = {name for name in names if (first / name).exists() and (second / name).exists()}
    same = {name for name in same if (first / name).read_bytes() == (second / name).read_bytes()}
    return sorted(str(name) for name in names - same)


def report(args: argparse.Namespace, runs: Sequence[Run]) -> dict[str, Any]:
    first, second = (run.folder for run in runs)
    place = "timed" if args.backend == "emulated" else "measured"
    found = check(read_truth(args.out), first, place)
    found["broken"] += [f"differs between the killed and the whole run: {name}" for name in differences(first, second)]
    measured = json.loads((first / "measured_pool" / "report.json").read_text())
    return {
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        "backend": args.backend,
        "speeds": "invented" if args.backend == "emulated" else "measured",
        "pairs": args.pairs,
        "compared_files": sum(1 for part in COMPARED for path in (first / part).rglob("*") if path.is_file()),
        "kept_by_threshold": sizes(args.out, first, place),
        **found,
        "measured": measured,
        "curation": json.loads((first / "cuke" / "report.json").read_text()),
        "rl": json.loads((first / "rl" / "report.json").read_text()),
        "steps": {run.name: run.steps for run in runs},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--generate", type=int, default=4000, help="rows wanted of the generation set")
    parser.add_argument("--backend", choices=["emulated", "cuda"], default="cuda")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--budget", type=float, default=86_400.0)
    parser.add_argument("--timing-seconds", type=float, default=0.5, help="spent at most on timing one pair")
    parser.add_argument("--seed", type=int, default=2026)
    args = parser.parse_args()
    deadline = time.monotonic() + args.budget
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "truth.json").exists():
        write_pool(args.out, args.pairs, args.seed)
    runs = [Run(args, "killed", deadline), Run(args, "whole", deadline)]
    try:
        through(runs[0], killed=True)
        runs[1].work("lend", lambda: lend(runs[0].folder, runs[1].folder))
        through(runs[1], killed=False)
    except OutOfBudget:
        steps = {run.name: run.steps for run in runs}
        print(json.dumps({"out_of_budget": True, "steps": steps}, indent=1))
        return OUT_OF_BUDGET
    found = report(args, runs)
    write_json(args.out / "cuke_pipeline.json", found)
    shown = ("rows", "expectation", "explained", "split", "broken", "kept_by_threshold")
    print(json.dumps({name: found[name] for name in shown}, indent=1))
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
