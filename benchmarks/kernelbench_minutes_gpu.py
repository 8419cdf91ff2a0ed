"""Builds and verdicts a minute on a GPU, one verdict's stages, and KernelBench's 250 problems, in eight minutes.

    python benchmarks/kernelbench_minutes_gpu.py --kernelbench CHECKOUT --out FOLDER [--limit 460] [--stages ...]

Stages: `rates` (`dice bench verify`; its stock path builds one candidate alone, which tells how fast the machine is:
figures of two machines compare by that), `alone` (`verifier_profile.py`, one job at a time) and `kernelbench`
(`dice eval --model nano`). FOLDER/minutes.json has what is done so far. A stage that was cut short goes on at the next
call of the same command. `--backend emulated --candidates 2 --level 1 --ids 19` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dice.evaluate.run_folder import RunFolder
from dice.files.atomic import write_json
from dice.verdict import Verdict

ROOT = Path(__file__).parent.parent
PROTOCOL = "dice"
Figures = dict[str, Any]


class Clock:
    """What is left of the time for all stages."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def run(self, command: list[str], log: Path) -> tuple[float, int | None]:
        """Seconds and exit code; None where it was told to stop in the end."""
        started = time.monotonic()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        with (
            log.open("ab") as output,
            subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output
            ) as process,
        ):
            try:
                code: int | None = process.wait(max(self.left, 1))
            except subprocess.TimeoutExpired:
                process.terminate()  # what it has done is on the disk
                process.wait()
                code = None
        return round(time.monotonic() - started, 1), code


def main() -> int:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    path, clock = args.out / "minutes.json", Clock(args.limit)
    report: Figures = json.loads(path.read_text()) if path.exists() else {}
    stages: dict[str, Callable[[argparse.Namespace, Clock, Figures], Figures]]
    stages = {"rates": rates, "alone": alone, "kernelbench": kernelbench}
    for name in args.stages or stages:
        if report.get(name, {}).get("finished"):
            continue
        if clock.left < 20:
            print(f"no time is left for {name}", flush=True)
            break
        report[name] = stages[name](args, clock, report.get(name, {}))
        write_json(path, report)
        print(f"{name}: {json.dumps(report[name])[:1500]}", flush=True)
    return 0 if all(report.get(name, {}).get("finished") for name in args.stages or stages) else 1


def rates(args: argparse.Namespace, clock: Clock, before: Figures) -> Figures:
    folder = args.out / "rates"
    asked = {"candidates": args.candidates, "workers": args.workers, "backend": args.backend, "alone": 8}
    options = [f"--{name}={value}" for name, value in asked.items()]
    command = ["-m", "dice", "bench", "verify", *options, "--stock-candidates=0", "--stock-alone=1"]
    seconds, code = clock.run([*command, f"--budget={max(clock.left - 60, 60):.0f}", "--out", str(folder)], _log(args))
    stored = folder / "bench_verify.json"
    return {"s": seconds, "finished": code == 0} | (json.loads(stored.read_text()) if stored.exists() else {})


def alone(args: argparse.Namespace, clock: Clock, before: Figures) -> Figures:
    """Mean seconds of each stage, first with a cold cache of builds, then with a warm one."""
    log = args.out / "alone.jsonl"
    log.unlink(missing_ok=True)
    options = ["--backend", args.backend, "--pairs", str(min(8, args.candidates)), "--workers", "1"]
    seconds, code = clock.run(["-m", "benchmarks.verifier_profile", *options], log)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {"s": seconds, "finished": code == 0, "runs": lines}


def kernelbench(args: argparse.Namespace, clock: Clock, before: Figures) -> Figures:
    """What `dice eval` has judged, how fast, and where its jobs' time went."""
    folder = args.out / "kernelbench"
    command = ["-m", "dice", "eval", "--model", "nano", "--problems", str(args.kernelbench / "KernelBench")]
    command += ["--level", *args.level, "--timing-seconds", "1", "-o", str(folder)]
    command += ["--ids", args.ids] if args.ids else []
    command += ["--backend", args.backend] if args.backend != "auto" else []
    seconds, code = clock.run(command, _log(args))
    found: Figures = {"s": round(before.get("s", 0.0) + seconds, 1), "finished": code == 0}
    if not (folder / "run.json").exists():  # problems were still being tried
        return found
    run = RunFolder(folder)
    verdicts = [one.verdict for one in run.judgements(PROTOCOL)]
    found |= {"problems": len(run.tasks()), "written": len(run.generations()), "judged": len(verdicts)}
    return found | {"per_minute": round(60 * len(verdicts) / found["s"], 1), **_split(verdicts)}


def _split(verdicts: list[Verdict]) -> Figures:
    """By stage, the mean seconds of those that waited for others for most of their time, and of the rest."""
    parts: dict[str, list[Verdict]] = {"waited": [], "ran": []}
    for verdict in verdicts:
        waited = verdict.seconds.get("wait", 0.0) > 0.5 * verdict.seconds.get("total", 0.0)
        parts["waited" if waited else "ran"].append(verdict)
    stages = sorted({stage for verdict in verdicts for stage in verdict.seconds})
    means = {
        name: {"count": len(part)}
        | {stage: round(statistics.fmean(one.seconds.get(stage, 0.0) for one in part), 3) for stage in stages if part}
        for name, part in parts.items()
    }
    return {"outcomes": dict(Counter(verdict.outcome for verdict in verdicts)), "mean_s": means}


def _log(args: argparse.Namespace) -> Path:
    log: Path = args.out / "log"
    return log


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, default=Path(os.environ.get("KERNELBENCH", "KernelBench")))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "minutes")))
    parser.add_argument("--limit", type=float, default=460.0)
    parser.add_argument("--stages", nargs="*", choices=("rates", "alone", "kernelbench"))
    parser.add_argument("--candidates", type=int, default=192)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--level", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--ids", default="")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.kernelbench = args.kernelbench.resolve()
    return args


if __name__ == "__main__":
    raise SystemExit(main())
