"""Exceptions that a kernel file lets out, as reports: which outcome, in which stage, and where in its own file."""

from __future__ import annotations

import traceback

from dice.verify.build.sources import CompileError, CompileTimeout, LinkError, Unsupported
from dice.verify.candidate.binding import LoadError
from dice.verify.execution.fake_cuda import NotEmulated
from dice.verify.ipc import out_of_memory
from dice.verify.ipc.messages import BuildAnswer, Failed


class WrongReturn(Exception):
    """`forward` returned something no reference returns."""


def report(error: BaseException, stage: str) -> Failed:
    """What to say of an exception that was met in `stage`: "load", "run" or "time"."""
    outcome, stage = _classify(error, stage)
    root = _root(error)
    lines = [str(line) for line in getattr(root, "lines", ())] or _own_lines(error)
    message = str(root) or type(error).__name__
    build = getattr(root, "build", None)  # the supervisor knows how that build failed
    return Failed(outcome, stage, type(error).__name__, message[:2000], tuple(lines[:40]), build)


def failed_build(answer: BuildAnswer) -> Exception:
    """What `load_inline` raises for a build that the supervisor says has failed."""
    if answer.kind == "unsupported":
        return Unsupported(answer.message)
    kinds = {"link_error": LinkError, "timeout": CompileTimeout}
    error = kinds.get(answer.kind, CompileError)(answer.log, answer.lines, answer.message)
    error.build = answer.request  # type: ignore[attr-defined]  # so that a report can say which build it is about
    return error


def _classify(error: BaseException, stage: str) -> tuple[str, str]:
    """Outcome and stage of an exception that the candidate's code let out."""
    if isinstance(_root(error), LoadError):
        return "load_error", "load"
    if isinstance(error, NotEmulated):
        return "unsupported", stage
    if isinstance(error, WrongReturn):
        return "wrong", "compare"
    if out_of_memory.is_shortage(error):
        return "out_of_memory", stage
    if isinstance(error, SystemExit):
        return "runtime_error", stage
    return ("load_error" if stage == "load" else "runtime_error"), stage


def _root(error: BaseException) -> BaseException:
    """The build error behind an exception, if there is one: candidates wrap what `load_inline` raises."""
    ours = (CompileError, Unsupported, LoadError)
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None or isinstance(seen, ours):
            break
        seen = seen.__cause__ or seen.__context__
    return seen or error


def _own_lines(error: BaseException) -> list[str]:
    """The exception with the lines of the candidate's own file that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("kernel.py")]
    places = [f"line {frame.lineno}: {frame.line}" for frame in frames]
    return [*places, f"{type(error).__name__}: {error}"[:1000]]
