"""Which verdict an ending means: what a candidate reports of itself, how its process ended, how its build failed."""

from __future__ import annotations

import time

from dice.verdict import Stage
from dice.verify import claims, shortage
from dice.verify.builds import Answer
from dice.verify.process import Child, ChildEnded, DeadlineExceeded, MachineryError, Message, wait_for
from dice.verify.record import Stop

START_TIMEOUT_S = 60.0
NO_MEMORY = "a trial of it needs more memory than the GPU has left"  # of a reference
HOST_MEMORY = "MiB of host memory."

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


def reported(message: Message, stage: Stage) -> Stop:
    """What a candidate says that it failed with, in `stage` by our own knowledge."""
    outcome, said = str(message.get("outcome")), str(message.get("stage"))
    if (outcome, said) not in REPORTABLE:
        outcome, said = "runtime_error", stage
    text = f"{message.get('type')}: {message.get('message')}" if outcome in NAMED else str(message.get("message"))
    return Stop(outcome, said, claims.text(text), claims.texts(message.get("lines")))  # type: ignore[arg-type]


def fault(kind: str, message: str, emulated: bool) -> Stop:
    """What a fault reported by the emulator means. A thread order that waits for ever is an error, not a time-out.

    Where there is no emulator, whoever reports one is not believed that the backend is to blame.
    """
    if kind == "unsupported" and emulated:
        return Stop("unsupported", "run", message)
    return Stop("runtime_error", "run", f"{kind}: {message}")


def build_failure(answer: Answer) -> Stop:
    if answer.kind == "link_error":
        return Stop("load_error", "load", f"LinkError: {answer.message}"[:2000], answer.lines)
    first = answer.lines[0] if answer.lines else answer.message
    return Stop("compile_error", "compile", f"the CUDA source does not compile: {first}"[:2000], answer.lines)


def died(candidate: Child, end: ChildEnded, stage: Stage, memory_mb: int) -> Stop:
    """A candidate's process that is gone, by itself or for a limit that it hit."""
    reason = end.ended.reason
    if reason == "memory":
        return Stop("out_of_memory", stage, f"it used over {memory_mb} {HOST_MEMORY}")
    if reason == "files":
        return Stop("runtime_error", stage, f"it wrote over {memory_mb} MiB of files.")
    if reason == "processes":
        return Stop("runtime_error", stage, "it started too many processes.")
    if reason == "flood":
        return Stop("runtime_error", stage, "it flooded its report channel.")
    printed = last_line(candidate)
    message = f"the process ended before its work was done ({end.ended.describe()})."
    return Stop("runtime_error", stage, message, (printed,) if printed else ())


def is_short_of_memory(stop: Stop) -> bool:
    """Whether a candidate, or the reference, may have lacked memory of the GPU that others had."""
    if stop.outcome == "out_of_memory":
        return not stop.message.endswith(HOST_MEMORY)
    return stop.message.endswith(NO_MEMORY) or (stop.outcome == "unsupported" and shortage.is_named(stop.message))


def last_line(child: Child) -> str:
    lines = child.log.decode(errors="replace").strip().splitlines()
    return claims.text(lines[-1], 500) if lines else ""


def await_start(candidate: Child) -> None:
    """Our own part of the candidate's start; what fails here is not the kernel's fault. Raises `MachineryError`."""
    failed = "the candidate's process did not start"
    try:
        message = wait_for(candidate, (), time.monotonic() + START_TIMEOUT_S)
    except ChildEnded as end:
        raise MachineryError(f"{failed} ({end.ended.describe()}): {last_line(candidate)}") from None
    except DeadlineExceeded:
        raise MachineryError(f"{failed} in time") from None
    if message.get("event") != "started":
        raise MachineryError(f"{failed}: {message.get('message')}")
