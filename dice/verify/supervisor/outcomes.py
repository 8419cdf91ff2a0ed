"""Which verdict an ending means: what a candidate reports of itself, how its process ended, how its build failed."""

from __future__ import annotations

import re
import time

from dice.verdict import Stage
from dice.verify.build.service import Answer
from dice.verify.ipc import untrusted
from dice.verify.ipc.encoding import claim, is_a
from dice.verify.ipc.messages import Failed, Started
from dice.verify.sandbox.process import Child, ChildEnded, DeadlineExceeded, MachineryError, wait_for
from dice.verify.supervisor.record import VerdictReached

START_TIMEOUT_S = 60.0

# What a candidate may say of itself. How a build ended is not among it: that the builder says.
REPORTABLE = {
    ("load_error", "load"),
    ("wrong", "compare"),
    ("out_of_memory", "load"),
    ("out_of_memory", "run"),
    ("out_of_memory", "time"),
    ("runtime_error", "load"),
    ("runtime_error", "run"),
    ("runtime_error", "time"),
}
HURTING = ("runtime_error", "timeout", "out_of_memory", "unsupported")  # a device that is lost looks like one of these
NAMED = ("load_error", "runtime_error", "out_of_memory")  # verdicts whose message begins with the exception's type

# What a kernel file says that has PyTorch record CUDA graphs, which are not emulated.
ASKS_FOR_GRAPHS = re.compile(r"\b(CUDAGraph|make_graphed_callables|cuda\.graphs?)\b")
_MISSING = re.compile(r"NameError: name '(\w+)' is not defined\b.*")


def reported(failed: Failed, stage: Stage, problem: str = "", wants_graphs: bool = False) -> VerdictReached:
    """What a candidate says that it failed with, in `stage` by our own knowledge. `problem`: the source of its problem,
    whose names KernelBench's evaluator lends to kernel files. `wants_graphs`: its file asks for CUDA graphs where they
    are not emulated. That something is not, no other file is believed: it would not count as a failure."""
    if failed.outcome == "unsupported" and wants_graphs:
        return VerdictReached("unsupported", stage, untrusted.text(failed.message), failed.lines)
    outcome, said = failed.outcome, failed.stage
    if (outcome, said) not in REPORTABLE:
        outcome, said = "runtime_error", stage
    text = f"{failed.type}: {failed.message}" if outcome in NAMED else failed.message
    missing = _MISSING.fullmatch(f"{failed.type}: {failed.message}")
    if missing and re.search(rf"^(?!\s|#|def |class ).*\b{missing[1]}\b", problem, re.M):
        text += "; the problem's file has it, but a kernel file has to stand alone"
    lacks = outcome == "out_of_memory"  # that is of the GPU: what the host's memory lacks ends the process
    return VerdictReached(outcome, said, untrusted.text(text), failed.lines, lacks)  # type: ignore[arg-type]


def fault(kind: str, message: str, emulated: bool) -> VerdictReached:
    """What a fault reported by the emulator means. A thread order that waits for ever is an error, not a time-out.

    Where there is no emulator, whoever reports one is not believed that the backend is to blame.
    """
    if kind == "unsupported" and emulated:
        return VerdictReached("unsupported", "run", message)
    return VerdictReached("runtime_error", "run", f"{kind}: {message}")


def build_failure(answer: Answer) -> VerdictReached:
    if answer.kind == "link_error":
        return VerdictReached("load_error", "load", f"LinkError: {answer.message}"[:2000], answer.lines)
    first = answer.lines[0] if answer.lines else answer.message
    return VerdictReached("compile_error", "compile", f"the CUDA source does not compile: {first}"[:2000], answer.lines)


def died(candidate: Child, end: ChildEnded, stage: Stage, memory_mb: int) -> VerdictReached:
    """A candidate's process that is gone, by itself or for a limit that it hit."""
    reason = end.ended.reason
    if reason == "memory":
        return VerdictReached("out_of_memory", stage, f"it used over {memory_mb} MiB of host memory.")
    if reason == "files":
        return VerdictReached("runtime_error", stage, f"it wrote over {memory_mb} MiB of files.")
    if reason == "processes":
        return VerdictReached("runtime_error", stage, "it started too many processes.")
    if reason == "flood":
        return VerdictReached("runtime_error", stage, "it flooded its report channel.")
    printed = last_line(candidate)
    message = f"the process ended before its work was done ({end.ended.describe()})."
    return VerdictReached("runtime_error", stage, message, (printed,) if printed else ())


def last_line(child: Child) -> str:
    lines = child.log.decode(errors="replace").strip().splitlines()
    return untrusted.text(lines[-1], 500) if lines else ""


def await_start(candidate: Child) -> None:
    """Our own part of the candidate's start; what fails here is not the kernel's fault. Raises `MachineryError`."""
    failed = "the candidate's process did not start"
    try:
        message = wait_for(candidate, (), time.monotonic() + START_TIMEOUT_S)
    except ChildEnded as end:
        raise MachineryError(f"{failed} ({end.ended.describe()}): {last_line(candidate)}") from None
    except DeadlineExceeded:
        raise MachineryError(f"{failed} in time") from None
    if not is_a(message, Started):
        raise MachineryError(f"{failed}: {claim(message, Failed).message}")
