"""Thousands of jobs, every seventh of them hostile, while processes are killed at random: is every promise kept?

    python benchmarks/isolation_soak.py --out FOLDER [--jobs 3000] [--kills 50] [--backend emulated|cuda]
                                        [--workers N] [--limit-seconds S] [--seed 2026]

The hostile ones are the probes of `dice doctor --probe`, each made distinct by a comment; among them are kernels that
are right, wrong, or do not compile. One process verifies them in a stream; this one watches it, and kills processes
below it with SIGKILL: candidates, builders, oracles, compilers, wardens, now and then the zygote. Verdicts are kept, so
that a run that was stopped goes on when it is called again. `FOLDER/isolation_soak.json` is the report; the exit code
is 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import dice
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.options import probe_cuda, toolchain
from dice.verify.probes import files, leftovers
from dice.verify.probes.files import ESCAPED
from dice.verify.probes.runner import MEMORY_MB
from dice.verify.sandbox.usage import descendants
from dice.verify.supervisor.gpu_lock import GpuLock
from dice.verify.supervisor.job import Job

HOSTILE, WRONG, UNBUILDABLE, NEW = 0.15, 0.2, 0.1, 0.05  # shares; the rest is right. `NEW`: right, and to be built anew
MOST_RSS_MB = 120  # of the process that verifies, at any moment
ZYGOTE_SHARE = 0.06  # of the kills
APART = 12  # verdicts from one kill to the next, at least: a job that is hit twice is lost, and that is promised
SETTLE_S = 30.0  # until everything of a process that ended is gone
SHOWN = 400  # characters of a message
MARK = "dsoak"  # what the processes of probes are called
Line = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """One job. `allowed`: outcomes that it may have, and `lacking`: guarantees without which it may have others."""

    kind: str
    kernel: Kernel
    allowed: tuple[str, ...]
    lacking: tuple[str, ...] = ()


def mixture(count: int, seed: int, backend: str) -> list[Member]:
    """The same for the same arguments."""
    random = Random(seed)
    probes = [(probe, ending) for probe in files.all_probes() if probe.quick for ending in probe.endings]
    turns = itertools.cycle(random.sample(probes, len(probes)))
    made = []
    for number in range(count):
        draw = random.random()
        if draw < HOSTILE:
            probe, ending = next(turns)
            kernel = probe.kernel(ending, MEMORY_MB[backend], f"{MARK}{number}")
            made.append(Member(kernel.name, kernel, probe.outcomes[ending], probe.lacking))
        elif (draw := draw - HOSTILE) < WRONG:
            made.append(Member("wrong", files.wrong(str(number)), ("wrong",)))
        elif (draw := draw - WRONG) < UNBUILDABLE:
            broken = files.right(str(number)).source.replace("blockIdx.x *", f"undeclared_{number} *")
            made.append(Member("unbuildable", Kernel(broken), ("compile_error",)))
        elif draw - UNBUILDABLE < NEW:
            made.append(Member("new", files.victim(str(number), f"soak {seed} {number}"), ("correct",)))
        else:
            made.append(Member("right", files.right(str(number)), ("correct",)))
    return [
        replace(one, kernel=Kernel(f"{one.kernel.source}\n# {seed} {index}\n", str(index)))
        for index, one in enumerate(made)
    ]


def wrongly_judged(one: Member, verdict: Line) -> str:
    """What is wrong with a verdict, or ""."""
    if set(one.lacking) & set(verdict["lacking"]):
        return ""
    if ESCAPED in verdict["message"]:
        return "it got what it must not get"
    return "" if verdict["outcome"] in one.allowed else f"not {' or '.join(one.allowed)}"


# ---- the process that verifies -------------------------------------------------------------------------------------


def verify(args: argparse.Namespace) -> None:
    """Prints a line for each job that ran to its verdict, one for each verdict, and a last one."""
    inner = Job.run

    def counted(self: Job, gpu: GpuLock) -> Verdict:
        verdict = inner(self, gpu)
        if self.assignment.kernel.name.isdigit():  # not one of those that warm the verifier up
            say({"ran": int(self.assignment.kernel.name)})
        return verdict

    Job.run = counted  # type: ignore[method-assign]
    problem, members = files.problem(), mixture(args.jobs, args.seed, args.backend)
    options = Options(timing=False, run_timeout_s=10, compile_timeout_s=60, memory_mb=MEMORY_MB[args.backend])
    with Verifier(backend=args.backend, options=options, cache=args.out / "verdicts.sqlite") as verifier:
        warm = [(problem, files.right(f"warm {number}")) for number in range(args.workers)]
        for _ in verifier.verify_many(warm, args.workers):
            pass
        before = leftovers.Footprint.now(options.cache_dir)
        say({"began": before.descriptors})
        for index, verdict in verifier.verify_many([(problem, one.kernel) for one in members], args.workers):
            known = {"outcome": verdict.outcome, "stage": verdict.stage, "message": verdict.message[:SHOWN]}
            say({"index": index, "lacking": verdict.lacking, "sandbox": verdict.sandbox} | known)
            if time.time() > args.deadline:
                break
        deadline = time.monotonic() + SETTLE_S
        while (left := before.grown(MARK, verifier._get_zygote().pid)) and time.monotonic() < deadline:
            time.sleep(0.2)
    say({"ended": True, "left": left, "peak_rss_mb": peak_rss_mb()})


def say(line: Line) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def peak_rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


# ---- the process that watches --------------------------------------------------------------------------------------


class Watched:
    """The verifying process: what it said, whom we killed below it, and what it left."""

    def __init__(self, args: argparse.Namespace, kills: int, deadline: float):
        leftovers.adopt()
        self.late = leftovers.late_descendants(os.getpid())
        self.folder = Path(tempfile.mkdtemp(prefix="dice-soak-"))
        self.verdicts: dict[int, Line] = {}
        self.twice: list[int] = []
        self.ran: list[int] = []
        self.ended: Line = {}
        self.killed: list[str] = []
        self.started = time.monotonic()
        self.began = threading.Event()
        command = [sys.executable, __file__, "--child", "--deadline", str(time.time() + deadline - time.monotonic())]
        command += ["--out", str(args.out), "--jobs", str(args.jobs), "--seed", str(args.seed)]
        command += ["--backend", args.backend, "--workers", str(args.workers)]
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.complaints, env=os.environ | {"TMPDIR": str(self.folder)}
        )
        reader = threading.Thread(target=self._read)
        reader.start()
        random = Random(args.seed + 1)
        moments = sorted(random.sample(range(0, args.jobs, APART), min(kills, -(-args.jobs // APART))))
        while self.process.poll() is None:
            if self.began.is_set() and moments and len(self.verdicts) >= moments[0] and self._kill_one(random):
                moments.pop(0)
                after = len(self.verdicts) + APART
                moments = [max(moment, after) for moment in moments[:1]] + moments[1:]
            if time.monotonic() > deadline + 10 * SETTLE_S:
                self.process.kill()  # it hangs
            time.sleep(0.02)
        reader.join()
        self.seconds = time.monotonic() - self.started

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = json.loads(text)
            if "ran" in line:
                self.ran.append(line["ran"])
            elif "index" in line:
                index = line.pop("index")
                self.twice += [index] * (index in self.verdicts)
                self.verdicts[index] = line
                if len(self.verdicts) % 250 == 0:
                    print(f"{len(self.verdicts)} verdicts after {time.monotonic() - self.started:.0f} s", flush=True)
            elif "began" in line:
                self.began.set()
            else:
                self.ended = line

    def _kill_one(self, random: Random) -> bool:
        """Kill something of the verifier's, and note what it was."""
        below = descendants(self.process.pid)
        if len(below) < 4:
            return False
        victim = below[0] if random.random() < ZYGOTE_SHARE else random.choice(below[1:])
        what = describe(victim, self.process.pid)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed.append(what)
        return True

    def left(self) -> list[str]:
        """What there is of it even after a while."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = [f"process {pid}" for pid in {*self.late(), *leftovers.named(MARK)}]
            found += [str(path) for path in leftovers.stored(self.process.pid, self.folder)]
            if not found or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        leftovers.discard(self.folder)
        return found

    def last_words(self) -> str:
        self.complaints.seek(0)
        return self.complaints.read().decode(errors="replace")[-2000:]


def describe(pid: int, supervisor: int) -> str:
    """What a process is, by its depth below the supervisor and its name: zygote, warden, init, child, compiler."""
    depth, parent = 0, pid
    while parent not in (supervisor, 0, 1) and depth < 9:
        depth, parent = depth + 1, leftovers.parent(parent)
    name = leftovers.name(pid)
    known = {1: "zygote", 2: "warden", 3: "init", 4: "child"}.get(depth, "of a child")
    return known if name.startswith(("python", MARK)) else f"{known} ({name})"


def report(args: argparse.Namespace, state: Line) -> Line:
    """The state with what follows from it."""
    members = mixture(args.jobs, args.seed, args.backend)
    verdicts = {int(index): verdict for index, verdict in state["verdicts"].items()}
    by_kind: dict[str, Counter[str]] = {}
    odd = []
    for index, verdict in sorted(verdicts.items()):
        one = members[index]
        kind = one.kind if one.kind in ("right", "wrong", "new", "unbuildable") else "hostile"
        by_kind.setdefault(kind, Counter())[verdict["outcome"]] += 1
        if why := wrongly_judged(one, verdict):
            odd.append({"index": index, "kind": one.kind, "why": why, "verdict": verdict})
    runs = state["runs"]
    broken = [f"{len(odd)} verdicts are not what they should be"] * bool(odd)
    broken += [f"jobs with two verdicts: {run['twice']}" for run in runs if run["twice"]]
    broken += [f"jobs that ran again though their verdict was kept: {run['again']}" for run in runs if run["again"]]
    broken += [f"left: {run['left']}" for run in runs if run["left"]]
    broken += [f"the verifier did not end by itself: {run['said'][-300:]}" for run in runs if not run["ended"]]
    peak = max((run["peak_rss_mb"] for run in runs), default=0.0)
    broken += [f"the verifier took {peak} MB of memory, over {MOST_RSS_MB}"] * (peak > MOST_RSS_MB)
    gpu = str(probe_cuda()["device"]) if args.backend == "cuda" else ""
    return {
        "command": " ".join(sys.argv),
        "versions": {
            **{"dice": dice.__version__, "python": platform.python_version(), "linux": platform.release()},
            **{"torch": importlib.metadata.version("torch"), "compiler": toolchain(args.backend)},
        },
        "hardware": {
            **{"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "gpu": gpu},
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        },
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "sandboxes": dict(Counter(verdict["sandbox"] for verdict in verdicts.values())),
        "lacking": sorted({name for verdict in verdicts.values() for name in verdict["lacking"]}),
        "backend": args.backend,
        "workers": args.workers,
        "jobs": args.jobs,
        "verdicts": len(verdicts),
        "complete": len(verdicts) == args.jobs,
        "kills": dict(Counter(what for run in runs for what in run["killed"]).most_common()),
        "outcomes": {kind: dict(outcomes.most_common()) for kind, outcomes in sorted(by_kind.items())},
        "seconds": round(sum(run["seconds"] for run in runs), 1),
        "peak_rss_mb": peak,
        "broken": broken,
        "odd": odd,
        "runs": runs,
        "by_index": state["verdicts"],
    }


def show(found: Line) -> None:
    kinds = found["outcomes"]
    for kind in kinds:
        print(f"{kind:<12} {sum(kinds[kind].values()):>6}  {kinds[kind]}")
    print(f"{'kills':<12} {sum(found['kills'].values()):>6}  {found['kills']}")
    print(
        f"{found['verdicts']} of {found['jobs']} verdicts, {found['seconds']:.0f} s, {found['peak_rss_mb']} MB at most"
    )
    for one in found["odd"][:20]:
        print(f"  {one['kind']}: {one['verdict']['outcome']}, {one['why']}: {one['verdict']['message'][:160]}")
    for sentence in found["broken"]:
        print(f"not held: {sentence}")
    if not found["complete"]:
        print("It was stopped before all jobs had a verdict; called again with the same arguments, it goes on.")
    elif not found["broken"]:
        print("Everything held.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--backend", choices=["emulated", "cuda"], default="emulated")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)) + 1)
    parser.add_argument("--limit-seconds", type=float, default=86_400.0)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        verify(args)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "isolation_soak.json"
    state: Line = {"runs": [], "verdicts": {}}
    if path.exists():
        known = json.loads(path.read_text())
        if (known["jobs"], known["backend"]) != (args.jobs, args.backend):
            sys.exit(f"{path} is of {known['jobs']} jobs on the {known['backend']} backend: give another --out.")
        state = {"runs": known["runs"], "verdicts": known["by_index"]}
    kept = {
        int(index) for index, one in state["verdicts"].items() if one["outcome"] not in ("unsupported", "infra_error")
    }
    kills = max(0, args.kills - sum(len(run["killed"]) for run in state["runs"]))
    watched = Watched(args, kills, time.monotonic() + args.limit_seconds)
    state["verdicts"] |= {str(index): verdict for index, verdict in watched.verdicts.items()}
    state["runs"].append(
        {
            "seconds": round(watched.seconds, 1),
            "verdicts": len(watched.verdicts),
            "jobs_run": len(watched.ran),
            "twice": watched.twice,
            "again": sorted(kept.intersection(watched.ran)),
            "killed": watched.killed,
            "ended": bool(watched.ended),
            "left": [*watched.ended.get("left", ()), *watched.left()],
            "peak_rss_mb": watched.ended.get("peak_rss_mb", 0.0),
            "said": watched.last_words(),
        }
    )
    found = report(args, state)
    write_json(path, found)
    show(found)
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
