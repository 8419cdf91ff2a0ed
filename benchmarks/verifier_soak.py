"""Thousands of mixed candidates through one stream of the verifier: is every one answered, and is nothing left behind?

    python benchmarks/verifier_soak.py --out FOLDER [--candidates 3000] [--backend emulated|cuda] [--workers N]
                                       [--budget SECONDS] [--run-timeout 30] [--seed 2026]

The mixture: 60% synthetic kernels that are right, 28% seeded mutants of others (`mutants.py`), 12% hostile cases of the
test suite in turn, each made distinct by a comment. A process of its own verifies; this one watches it, kills it with
SIGKILL after a third of the verdicts, and starts it anew. Verdicts are kept, so that it goes on where it was; a run
that its budget interrupted goes on when called again. `FOLDER/soak.json` is the report; exit code 1: a promise broken.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from mutants import CASES, Candidate, candidates  # noqa: E402

from dice.files.atomic import write_json  # noqa: E402
from dice.kernel import Kernel  # noqa: E402
from dice.problem import Problem  # noqa: E402
from dice.verdict import Verdict  # noqa: E402
from dice.verify import Options, Verifier  # noqa: E402
from dice.verify.sandbox.scratch import PREFIX  # noqa: E402
from dice.verify.sandbox.usage import descendants  # noqa: E402
from dice.verify.supervisor.gpu_lock import GpuLock  # noqa: E402
from dice.verify.supervisor.job import Job  # noqa: E402

SHARES = {"right": 0.60, "mutant": 0.28, "hostile": 0.12}
HOSTILE = re.compile(r"fault_|fork_bomb|memory_hog|hang_|daemon|flood|forged|sys_exit|deceptive_|crash|out_of_bounds")
MEMORY_MB = 2048  # of a candidate; cases that need a lower limit than this run's to fail are left out
KILL_AT = 1 / 3
SAMPLE_S = 1.0
GONE_S = 30.0  # a killed process's children have this long to end
SHOWN = 400  # characters of a message
Line = dict[str, Any]


def mixture(count: int, seed: int, backend: str) -> list[tuple[Candidate, str]]:
    """(candidate, the outcome that its header states, if any), shuffled; the same for the same arguments."""
    right, mutants = round(SHARES["right"] * count), round(SHARES["mutant"] * count)
    made = list(islice(candidates(seed, right, mutants), right + mutants))
    mixed = [(one, "correct" if one.kind == "right" else "") for one in made]
    cases = hostile(backend)
    for number in range(count - len(mixed)):
        case, expected = cases[number % len(cases)]
        mixed.append((replace(case, kernel=Kernel(f"{case.kernel.source}\n# {number}\n")), expected))
    Random(seed).shuffle(mixed)
    return mixed


def hostile(backend: str) -> list[tuple[Candidate, str]]:
    found = []
    for path in sorted(CASES.glob("*.py")):
        header: dict[str, str] = dict(re.findall(r"^# ([\w-]+): (.*)$", path.read_text(), re.MULTILINE))
        expected = header.get(f"expect-{backend}", header.get("expect", "")).partition(" ")[0]
        limit = re.search(r"memory_mb=(\d+)", header.get("limits", ""))
        needs_less = bool(limit and int(limit[1]) < MEMORY_MB) or "compile_timeout_s" in header.get("limits", "")
        if expected and HOSTILE.search(path.stem) and not needs_less:
            problem = Problem.from_file(CASES / "problems" / f"{header['problem']}.py")
            found.append((Candidate(path.stem, "hostile", problem, Kernel.from_file(path)), expected))
    return found


# ---- the process that verifies -------------------------------------------------------------------------------------


def verify(args: argparse.Namespace) -> None:
    """Prints a line for each job that ran, `{"ran": index}`, and one for each verdict."""
    inner = Job.run

    def counted(self: Job, gpu: GpuLock) -> Verdict:
        verdict = inner(self, gpu)
        say({"ran": int(self.assignment.kernel.name)})
        return verdict

    Job.run = counted  # type: ignore[method-assign]
    mixed = mixture(args.candidates, args.seed, args.backend)
    pairs = [(one.problem, replace(one.kernel, name=str(index))) for index, (one, _) in enumerate(mixed)]
    limit = args.run_timeout
    options = Options(timing=False, run_timeout_s=limit, compile_timeout_s=limit, memory_mb=MEMORY_MB)
    with Verifier(backend=args.backend, options=options, cache=args.out / "verdicts.sqlite") as verifier:
        for index, verdict in verifier.verify_many(pairs, args.workers):
            known = {"outcome": verdict.outcome, "stage": verdict.stage, "message": verdict.message[:SHOWN]}
            say({"index": index, "about_kernel": verdict.about_kernel, "sandbox": verdict.sandbox} | known)
            if time.time() > args.deadline:
                break
    say({"ended": True})


def say(line: Line) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


# ---- the process that watches --------------------------------------------------------------------------------------


@dataclass
class Run:
    """What one verifying process did, and what it left."""

    killed: bool
    seconds: float = 0.0
    ran: list[int] = field(default_factory=list)
    verdicts: dict[int, Line] = field(default_factory=dict)
    ended: bool = False  # by itself
    samples: list[dict[str, float]] = field(default_factory=list)
    left_processes: list[str] = field(default_factory=list)
    left_folders: list[str] = field(default_factory=list)
    said: str = ""  # its standard error, the end of it

    def summary(self) -> Line:
        supervisor = [sample["rss_mb"] for sample in self.samples]
        settled = self.samples[len(self.samples) // 4 :]
        return {
            "killed": self.killed,
            "seconds": round(self.seconds, 1),
            "verdicts": len(self.verdicts),
            "jobs_run": len(self.ran),
            "jobs_per_minute": round(60 * len(self.ran) / max(self.seconds, 1e-9), 1),
            "supervisor_rss_mb_max": max(supervisor, default=0),
            "supervisor_rss_mb_slope_per_1000_verdicts": slope(settled, "verdicts", "rss_mb"),
            "zygote_rss_mb_max": max((sample["zygote_mb"] for sample in self.samples), default=0),
            "descriptors_max": max((sample["descriptors"] for sample in self.samples), default=0),
            "descriptors_slope_per_1000_verdicts": slope(settled, "verdicts", "descriptors"),
            "threads_max": max((sample["threads"] for sample in self.samples), default=0),
            "processes_max": max((sample["processes"] for sample in self.samples), default=0),
            "folders_max": max((sample["folders"] for sample in self.samples), default=0),
            "left_processes": self.left_processes,
            "left_folders": self.left_folders,
            "said": self.said,
        }


def slope(samples: list[dict[str, float]], x: str, y: str) -> float | None:
    """Of `y` over 1,000 of `x`, by least squares; None where too little was seen."""
    if len(samples) < 10 or len({sample[x] for sample in samples}) < 10:
        return None
    fitted = statistics.linear_regression([sample[x] for sample in samples], [sample[y] for sample in samples])
    return round(1000 * fitted.slope, 2)


def watch(args: argparse.Namespace, deadline: float, kill_after: int | None) -> Run:
    command = [sys.executable, __file__, "--child", "--deadline", str(time.time() + deadline - time.monotonic())]
    command += ["--out", str(args.out), "--candidates", str(args.candidates), "--seed", str(args.seed)]
    command += ["--backend", args.backend, "--workers", str(args.workers), "--run-timeout", str(args.run_timeout)]
    run = Run(killed=kill_after is not None)
    started = time.monotonic()
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints)
        reader = threading.Thread(target=read, args=(child, run))
        reader.start()
        while child.poll() is None:
            run.samples.append(sample(child.pid, len(run.verdicts)))
            if kill_after is not None and len(run.verdicts) >= kill_after:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(SAMPLE_S)
        child.wait()
        reader.join()
        complaints.seek(0)
        run.said = complaints.read().decode(errors="replace")[-2000:]
    run.seconds = time.monotonic() - started
    run.killed &= child.returncode == -signal.SIGKILL
    run.left_processes = lasting()
    run.left_folders = [str(path) for path in folders(child.pid)]
    return run


def read(child: subprocess.Popen[bytes], run: Run) -> None:
    assert child.stdout is not None
    for text in child.stdout:
        line = json.loads(text)
        if "ran" in line:
            run.ran.append(line["ran"])
        elif "index" in line:
            run.verdicts[line.pop("index")] = line
        else:
            run.ended = True


def sample(pid: int, verdicts: int) -> dict[str, float]:
    below = descendants(pid)
    status = status_of(pid)
    return {
        "verdicts": verdicts,
        "rss_mb": rss_mb(pid),
        "zygote_mb": rss_mb(below[0]) if below else 0,
        "threads": float(status.get("Threads", "0")),
        "descriptors": entries(f"/proc/{pid}/fd"),
        "processes": len(below),
        "folders": sum(1 for root in folders(pid) for _ in root.glob("job-*")),
    }


def lasting() -> list[str]:
    """Processes that outlive their supervisor: this process adopts them all."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        time.sleep(0.1)
    return [f"{pid} {status_of(pid).get('Name', '')}" for pid in descendants(os.getpid())]


def folders(pid: int) -> list[Path]:
    places = ("/dev/shm", tempfile.gettempdir())
    return [path for place in places for path in Path(place).glob(f"{PREFIX}{pid}-*")]


def status_of(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def rss_mb(pid: int) -> float:
    return round(int(status_of(pid).get("VmRSS", "0 kB").split()[0]) / 1024, 1)


def entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def gpu_memory_mb() -> list[int] | None:
    """Of each GPU, as the driver tells it; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return [int(line) for line in done.stdout.split()] if done.returncode == 0 else None


def unexpected(mixed: list[tuple[Candidate, str]], verdicts: dict[int, Line]) -> Iterator[Line]:
    """Right ones that are not correct, hostile ones that are, and faults of ours."""
    for index, verdict in sorted(verdicts.items()):
        one, expected = mixed[index]
        outcome = verdict["outcome"]
        found = ""
        if outcome == "infra_error":
            found = "a fault of ours"
        elif expected == "correct" and outcome != "correct":
            found = "not correct"
        elif one.kind == "hostile" and outcome == "correct" != expected:
            found = "a hostile one is correct"
        if found:
            yield {"index": index, "name": one.name, "kind": one.kind, "what": found, "verdict": verdict}


def report(args: argparse.Namespace, state: Line) -> Line:
    """The state with what follows from it."""
    mixed = mixture(args.candidates, args.seed, args.backend)
    verdicts = {int(index): verdict for index, verdict in state["verdicts"].items()}
    by_kind: dict[str, Counter[str]] = {}
    for index, verdict in verdicts.items():
        by_kind.setdefault(mixed[index][0].kind, Counter())[verdict["outcome"]] += 1
    odd = list(unexpected(mixed, verdicts))
    broken = [f"unexpected: {len(odd)}"] * bool(odd)
    for run in state["runs"]:
        broken += [f"left processes: {run['left_processes']}"] * bool(run["left_processes"])
        broken += [f"left folders: {run['left_folders']}"] * bool(run["left_folders"])
    broken += [f"run again though finished: {state['run_again']}"] * bool(state["run_again"])
    complete = len(verdicts) == args.candidates
    return {
        "command": " ".join(sys.argv),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        "backend": args.backend,
        "workers": args.workers,
        "mixture": {kind: f"{share:.0%}" for kind, share in SHARES.items()},
        "candidates_in": args.candidates,
        "verdicts_out": len(verdicts),
        "complete": complete,
        "killed_and_resumed": any(run["killed"] for run in state["runs"]) and len(state["runs"]) > 1,
        "jobs_run": sum(run["jobs_run"] for run in state["runs"]),
        "run_again_though_finished": state["run_again"],
        "sandboxes": dict(Counter(verdict["sandbox"] for verdict in verdicts.values())),
        "outcomes": {kind: dict(outcomes.most_common()) for kind, outcomes in sorted(by_kind.items())},
        "broken": broken,
        "unexpected": odd,
        "gpu_memory_mb": state["gpu_memory_mb"],
        "runs": state["runs"],
        "verdicts": state["verdicts"],
    }


def note(state: Line, run: Run) -> None:
    """Add a run. A verdict that was handed out before, if it was one on the kernel, must not have cost a job again."""
    before = {int(index) for index, verdict in state["verdicts"].items() if verdict["about_kernel"]}
    state["run_again"] = sorted({*state["run_again"], *before.intersection(run.ran)})
    state["verdicts"] |= {str(index): verdict for index, verdict in run.verdicts.items()}
    state["runs"].append(run.summary())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--candidates", type=int, default=3000)
    parser.add_argument("--backend", choices=["emulated", "cuda"], default="emulated")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--budget", type=float, default=86_400.0)
    parser.add_argument("--run-timeout", type=float, default=30.0, help="of a candidate, and for its compiler")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        verify(args)
        return 0
    deadline = time.monotonic() + args.budget
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what is left behind becomes ours
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "soak.json"
    empty: Line = {"runs": [], "verdicts": {}, "run_again": [], "gpu_memory_mb": []}
    state = empty
    if path.exists():
        known = json.loads(path.read_text())
        state = {name: known[name] for name in empty if name != "run_again"}
        state["run_again"] = known["run_again_though_finished"]
    state["gpu_memory_mb"].append(gpu_memory_mb())
    kill_after = round(KILL_AT * args.candidates)
    first = not any(run["killed"] for run in state["runs"])
    for kill in (kill_after, None) if first else (None,):
        run = watch(args, deadline, kill)
        note(state, run)
        state["gpu_memory_mb"].append(gpu_memory_mb())
        found = report(args, state)
        write_json(path, found)
        if not run.killed and kill is not None:
            break  # the budget was spent before there was anything to kill
    shown = {name: value for name, value in found.items() if name not in ("runs", "verdicts", "unexpected")}
    print(json.dumps(shown, indent=1))
    for run_summary in found["runs"]:
        print(json.dumps(run_summary))
    for one in found["unexpected"][:20]:
        print(json.dumps(one))
    return 1 if found["broken"] or (run.said and not run.ended and not run.killed) else 0


if __name__ == "__main__":
    sys.exit(main())
