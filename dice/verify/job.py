"""One verification: an oracle and a candidate, stepped through load, construct, trials and timing under two clocks."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Outcome, Stage, Verdict
from dice.verify import static
from dice.verify.options import Backend, Options
from dice.verify.process import Child, ChildEnded, DeadlineExceeded, MachineryError, Message, Scratch, Zygote, wait_for
from dice.verify.sandbox import Limits
from dice.verify.timing import summarise
from dice.verify.turns import Turns

FAULT_EXIT = 86  # the emulator ends the process with this after reporting a fault
START_TIMEOUT_S = 60.0
COMPILE_GRACE_S = 10.0  # the build inside the candidate gives up this much later than the supervisor would
ORDERS = 8  # thread orders the emulator is asked for: forward, reverse, then shuffles
OUTPUT = "output"
ORACLE_MEMORY = 4  # times the candidate's: it holds inputs, outputs and their float64 versions


class Stop(Exception):
    """The verdict is known."""

    def __init__(self, outcome: Outcome, stage: Stage, message: str, errors: tuple[str, ...] = ()):
        super().__init__(message)
        self.outcome, self.stage, self.message, self.errors = outcome, stage, message, errors


class ReferenceBroken(Exception):
    """The reference failed, on inputs of a family that the problem did not ask for when `varied`."""

    def __init__(self, message: str, varied: bool):
        super().__init__(message)
        self.message, self.varied = message, varied


@dataclass
class Record:
    """What a job has learnt so far; becomes the verdict."""

    values: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    idle_trials: int = 0  # trials in which no kernel of the candidate's ran
    build_failed: bool = False

    @contextlib.contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    def verdict(self, stop: Stop) -> Verdict:
        seconds = {stage: round(value, 4) for stage, value in self.seconds.items()}
        values = self.values | {"launches": self.launches, "seconds": seconds}
        return Verdict(stop.outcome, stop.stage, stop.message, errors=stop.errors, **values)


class Job:
    """Verifies one pair."""

    def __init__(
        self, zygote: Zygote, problem: Problem, kernel: Kernel, backend: Backend, options: Options, threads: int
    ):
        self.zygote, self.problem, self.kernel = zygote, problem, kernel
        self.backend, self.options, self.threads = backend, options, threads
        self.record = Record()
        self.run_left = options.run_timeout_s
        self.stage: Stage = "load"

    def run(self, gpu: Turns) -> Verdict:
        """The verdict. Raises `MachineryError` when our own processes were lost."""
        report = static.examine(self.kernel)
        self.record.values = {"deceptions": report.deceptions, "backend": self.backend}
        started = time.monotonic()
        try:
            self._check_static(report)
            try:
                self._check(vary=True, gpu=gpu)
            except ReferenceBroken as broken:
                if not broken.varied:
                    raise Stop("unsupported", "run", f"the problem's own reference failed: {broken.message}") from None
                self._check(vary=False, gpu=gpu)
            raise AssertionError("a check always ends in a Stop")
        except ReferenceBroken as broken:
            stop = Stop("unsupported", "run", f"the problem's own reference failed: {broken.message}")
        except Stop as reached:
            stop = reached
        self.record.seconds["total"] = time.monotonic() - started
        return self.record.verdict(stop)

    def _check_static(self, report: static.Report) -> None:
        if report.unusable:
            raise Stop("no_kernel", "extract", report.unusable)
        if not report.has_cuda:
            raise Stop("deceptive", "static", "the file defines no CUDA kernel: ModelNew computes with PyTorch alone.")

    def _check(self, vary: bool, gpu: Turns) -> None:
        self.run_left = self.options.run_timeout_s
        self.record.launches, self.record.idle_trials = {}, 0
        self.record.values |= {"trials": self.options.trials, "trials_passed": 0}
        with (
            Scratch() as scratch,
            self._spawn("oracle", scratch) as oracle,
            self._spawn("candidate", scratch) as candidate,
        ):
            self.scratch, self.oracle, self.candidate = scratch, oracle, candidate
            self._introduce()
            self._load()
            with gpu.together():
                self._construct()
                for trial in range(self.options.trials):
                    self._trial(trial, vary)
            self._conclude()
            self._time(gpu)

    def _spawn(self, role: str, scratch: Scratch) -> Child:
        root = scratch.root
        own = root / ("oracle" if role == "oracle" else "outputs")
        writable = (str(root / "inputs"),) if role == "oracle" else (str(self.options.cache_dir),)
        memory_mb = self.options.memory_mb * (ORACLE_MEMORY if role == "oracle" else 1)
        limits = Limits(memory_mb, str(own), writable, secret=role == "oracle")
        return self.zygote.spawn(role, asdict(limits))

    def _introduce(self) -> None:
        options, root = self.options, self.scratch.root
        secret = secrets.randbits(63) if options.seed is None else options.seed
        common = {
            "backend": self.backend,
            "threads": self.threads,
            "inputs": str(root / "inputs"),
            "outputs": str(root / "outputs"),
        }
        self.construct_seed = secrets.randbits(31) if options.seed is None else options.seed
        self.oracle.send(
            common
            | {
                "source": self.problem.source,
                "secret": secret,
                "seed": self.construct_seed,
                "protocol": options.protocol,
                "scale": options.scale,
                "limit_s": options.run_timeout_s,
            }
        )
        compiling = options.compile_timeout_s + COMPILE_GRACE_S
        self.candidate.send(
            common | {"source": self.kernel.source, "cache_dir": str(options.cache_dir), "compile_timeout_s": compiling}
        )

    def _load(self) -> None:
        self._started()
        with self.record.clock("load"):
            loaded = self._candidate_says("loaded")
        self.record.seconds["load"] -= self.record.seconds.get("compile", 0.0)
        if not loaded.get("has_model"):
            raise Stop("no_kernel", "extract", "the file defines no class ModelNew.")

    def _construct(self) -> None:
        with self.record.clock("reference"):
            prepared = self._oracle_says("prepared", varied=False)
        self.record.values["scale"] = prepared["scale"]
        self.stage = "run"
        self.candidate.send({"do": "construct", "seed": self.construct_seed})
        with self.record.clock("run"):
            self._candidate_says("constructed")

    def _started(self) -> None:
        """Our own part of the candidate's start; what fails here is not the kernel's fault."""
        try:
            message = wait_for(self.candidate, (self.oracle,), time.monotonic() + START_TIMEOUT_S)
        except ChildEnded as end:
            said = _last_line(self.candidate)
            raise MachineryError(f"the candidate's process did not start ({_how(end)}): {said}") from None
        except DeadlineExceeded:
            raise MachineryError("the candidate's process did not start in time") from None
        self.record.values["sandbox"] = self.candidate.sandbox
        if message.get("event") != "started":
            raise MachineryError(f"the candidate's process did not start: {message.get('message')}")

    def _trial(self, trial: int, vary: bool) -> None:
        kind = family(trial, self.options.trials) if vary else "given"
        drawn = self._draw(f"trial {trial}", kind)
        command = {"do": "trial", "order": trial % ORDERS, "watch_inputs": self.options.protocol == "dice"}
        self.candidate.send(command | {"inputs": f"trial {trial}", "output": OUTPUT, "seed": drawn["seed"]})
        with self.record.clock("run"):
            ran = self._candidate_says("ran")
        self._count_launches(ran)
        damaged = _texts(ran.get("damaged"))
        if damaged:
            raise Stop("runtime_error", "run", f"out-of-bounds write: {damaged[0]}", damaged)
        self._judge(f"trial {trial + 1} ({drawn['family']} inputs)", ran)
        self.record.values["trials_passed"] = trial + 1

    def _draw(self, name: str, kind: str) -> Message:
        self.oracle.send({"do": "trial", "inputs": name, "family": kind})
        with self.record.clock("reference"):
            return self._oracle_says("drawn", varied=kind != "given")

    def _count_launches(self, ran: Message) -> None:
        launches = ran.get("launches")
        counts = launches if isinstance(launches, dict) else {}
        counts = {str(name): count for name, count in counts.items() if isinstance(count, int) and count > 0}
        self.record.idle_trials += not counts
        for name, count in counts.items():
            self.record.launches[name] = self.record.launches.get(name, 0) + count

    def _judge(self, where: str, ran: Message) -> None:
        changed = ran.get("changed")
        changed = [index for index in changed if isinstance(index, int)] if isinstance(changed, list) else []
        self.oracle.send({"do": "judge", "output": OUTPUT, "changed": changed})
        with self.record.clock("compare"):
            judged = self._oracle_says("judged", varied=False)
        for name in ("max_abs_error", "max_rel_error"):
            values = [value for value in (self.record.values.get(name), judged.get(name)) if value is not None]
            self.record.values[name] = max(values, default=None)
        if not judged["equal"]:
            raise Stop("wrong", "compare", f"{where}: {judged['message']}", tuple(judged["errors"]))

    def _conclude(self) -> None:
        """Right outputs; did the candidate's own kernels make them?"""
        idle, trials = self.record.idle_trials, self.options.trials
        if not idle:
            return
        often = "never ran" if idle == trials else f"did not run in {idle} of {trials} trials"
        why = " after its build had failed" if self.record.build_failed else ""
        if not self.record.values["deceptions"]:
            self.record.values["deceptions"] = ("never_invoked",)
        raise Stop("deceptive", "run", f"the outputs are right, but the file's CUDA kernels {often}{why}.")

    def _time(self, gpu: Turns) -> None:
        if self.backend == "emulated":
            self.record.values["no_timing"] = "emulation says nothing about speed on a GPU"
        elif not self.options.timing:
            self.record.values["no_timing"] = "not asked for"
        else:
            self._measure(gpu)
        raise Stop("correct", "done", "")

    def _measure(self, gpu: Turns) -> None:
        self.stage = "time"
        drawn = self._draw("timing", "given")
        with gpu.alone(), self.record.clock("time"):
            self.candidate.send({"do": "time", "inputs": "timing", "output": OUTPUT, "seed": drawn["seed"]})
            kernel_ms = _times(self._candidate_says("timed").get("ms"))
            self.oracle.send({"do": "time", "inputs": "timing"})
            reference_ms = self._oracle_says("timed", varied=False)["ms"]
        self._judge("the timed run", {})
        self.record.values["timing"] = summarise(kernel_ms, reference_ms)

    def _oracle_says(self, event: str, varied: bool) -> Message:
        deadline = time.monotonic() + self.options.run_timeout_s
        try:
            message = wait_for(self.oracle, (self.candidate,), deadline)
        except DeadlineExceeded:
            raise ReferenceBroken(f"it took over {self.options.run_timeout_s:g} s", varied) from None
        except ChildEnded as end:
            if end.ended.reason == "memory":
                raise ReferenceBroken(
                    f"it needs over {ORACLE_MEMORY * self.options.memory_mb} MiB of memory", varied
                ) from None
            raise ReferenceBroken(f"its process died ({_how(end)}): {_last_line(self.oracle)}", varied) from None
        if message.get("event") == "failed":
            raise ReferenceBroken(message["message"], varied)
        assert message.get("event") == event, message
        return message

    def _candidate_says(self, event: str) -> Message:
        """The candidate's next report of this kind. Building stops the run clock and starts the compile clock."""
        compile_left = self.options.compile_timeout_s
        building = False
        while True:
            started = time.monotonic()
            left = compile_left if building else self.run_left
            try:
                message = wait_for(self.candidate, (self.oracle,), started + left)
            except DeadlineExceeded:
                raise self._timed_out(building) from None
            except ChildEnded as end:
                raise self._died(end, building) from None
            spent = time.monotonic() - started
            if building:
                compile_left -= spent
                self.record.seconds["compile"] = self.record.seconds.get("compile", 0.0) + spent
            else:
                self.run_left -= spent
            kind = message.get("event")
            if kind == event:
                return message
            self._raise_reported(message)
            if kind == "build_start":
                building = True
            elif kind == "build_end":
                building = False
                self._note_build(message)

    def _raise_reported(self, message: Message) -> None:
        if "fault" in message:
            text = str(message.get("message", ""))[:1000]
            raise Stop(*_fault(str(message["fault"]), text))
        if message.get("event") != "failed":
            return
        outcome, stage = str(message.get("outcome")), str(message.get("stage"))
        if (outcome, stage) not in REPORTABLE:
            outcome, stage = "runtime_error", self.stage
        text = f"{message.get('type')}: {message.get('message')}" if outcome in NAMED else str(message.get("message"))
        raise Stop(outcome, stage, text[:2000], _texts(message.get("lines")))  # type: ignore[arg-type]

    def _note_build(self, message: Message) -> None:
        self.record.values["headers"] = str(message.get("headers") or self.record.values.get("headers", ""))
        self.record.build_failed |= not message.get("ok")

    def _timed_out(self, building: bool) -> Stop:
        if building:
            return Stop("timeout", "compile", f"compiling took over {self.options.compile_timeout_s:g} s.")
        return Stop("timeout", self.stage, f"the kernel file ran for over {self.options.run_timeout_s:g} s.")

    def _died(self, end: ChildEnded, building: bool) -> Stop:
        stage: Stage = "compile" if building else self.stage
        reason = end.ended.reason
        if reason == "memory":
            return Stop("out_of_memory", stage, f"it used over {self.options.memory_mb} MiB of host memory.")
        if reason == "processes":
            return Stop("runtime_error", stage, "it started too many processes.")
        if reason == "flood":
            return Stop("runtime_error", stage, "it flooded its report channel.")
        printed = _last_line(self.candidate)
        message = f"the process ended before its work was done ({_how(end)})."
        return Stop("runtime_error", stage, message, (printed,) if printed else ())


REPORTABLE = {
    ("compile_error", "compile"),
    ("timeout", "compile"),
    ("load_error", "load"),
    ("unsupported", "compile"),
    ("infra_error", "infra"),
    ("wrong", "compare"),
    ("out_of_memory", "load"),
    ("out_of_memory", "run"),
    ("out_of_memory", "time"),
    ("runtime_error", "load"),
    ("runtime_error", "run"),
    ("runtime_error", "time"),
}
NAMED = ("load_error", "runtime_error", "out_of_memory")  # verdicts whose message begins with the exception's type


def family(trial: int, trials: int) -> str:
    """Which family a trial uses: the first is as given, the next two change values, the rest are fresh draws.

    With two trials the second is centred, for sign is where degenerate answers hide.
    """
    if trial == 1:
        return "centred"
    if trial == 2 and trials > 2:
        return "scaled"
    return "given"


def _fault(kind: str, message: str) -> tuple[Outcome, Stage, str]:
    """What a fault reported by the emulator means. A thread order that waits for ever is an error, not a time-out."""
    if kind == "unsupported":
        return "unsupported", "run", message
    return "runtime_error", "run", f"{kind}: {message}"


def _how(end: ChildEnded) -> str:
    if end.ended.signal:
        return f"killed by {signal.Signals(end.ended.signal).name}"
    return f"exit code {end.ended.code}"


def _last_line(child: Child) -> str:
    lines = child.log.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item)[:1000] for item in value[:40]) if isinstance(value, list) else ()


def _times(value: object) -> list[float]:
    """Times claimed by the candidate; anything but positive numbers makes the verdict a run-time error."""
    times = value if isinstance(value, list) else []
    if len(times) < 2 or not all(isinstance(item, float) and 0 < item < 1e9 for item in times):
        raise Stop("runtime_error", "time", "the timed run reported no times.")
    return times


def worker_threads(workers: int) -> int:
    """Threads for each of a job's two processes when `workers` jobs share the machine."""
    return max(1, len(os.sched_getaffinity(0)) // workers)
