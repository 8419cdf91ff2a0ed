"""What there is to say of one answer: its verdicts, its times against the roofline, how it was denoised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dice.errors import UserError
from dice.evaluate.report import denoised
from dice.evaluate.report.gather import Answer, Run
from dice.verdict import BEYOND_ROOFLINE, Timing, Verdict

ERRORS = 5  # lines of a compiler or a traceback that are shown


def verdict_facts(verdict: Verdict) -> list[tuple[str, str]]:
    """(name, value) pairs, the outcome first."""
    facts = [("verdict", verdict.outcome.replace("_", " ")), ("stage", verdict.stage), ("reason", verdict.message)]
    facts += [("deceptions", ", ".join(verdict.deceptions)), ("labels", ", ".join(verdict.labels))]
    facts.append(("provenance", verdict.provenance))
    facts.append(("replaced", verdict.replaced.describe() if verdict.replaced else ""))
    facts += [("error", line) for line in verdict.errors[:ERRORS] if line not in verdict.message]
    facts += [(found.kind, found.message) for found in verdict.findings[:ERRORS]]
    if verdict.trials:
        facts.append(("trials", f"{verdict.trials_passed} of {verdict.trials} passed"))
    if verdict.max_abs_error is not None:
        allowed = f" (allowed: {verdict.tolerance})" if verdict.tolerance else ""
        facts.append(("largest error", f"{verdict.max_abs_error:.3g}{allowed}"))
    facts.append(("kernels run", ", ".join(f"{name} x{count}" for name, count in verdict.launches.items())))
    if verdict.timing:
        facts.append(("speed-up", speedup(verdict.timing)))
    facts += [("no timing", verdict.no_timing), ("backend", ", ".join(filter(None, (verdict.backend, verdict.device))))]
    facts.append(("scaled", ", ".join(f"{name}: {change}" for name, change in verdict.scale.items())))
    return [(name, value) for name, value in facts if value]


def speedup(timing: Timing) -> str:
    interval = f" ({timing.speedup_low:.2f} to {timing.speedup_high:.2f})" if timing.speedup_high else ""
    return f"{timing.speedup:.2f}x{interval}"


def times(timing: Timing) -> list[tuple[str, str, float]]:
    """(name, kind, milliseconds) of the reference, the kernel and what the device could do at best."""
    found = [("PyTorch", "reference", timing.reference_ms)]
    if timing.compile_ms:
        found.append(("torch.compile", "reference", timing.compile_ms))
    found.append((f"kernel, {timing.speedup:.2f}x", "kernel", timing.kernel_ms))
    if timing.ceiling_ms:
        reached = f"{timing.roofline_share:.0%} reached" if timing.roofline_share <= 1 else "passed"
        found.append((f"roofline, {reached}", "ceiling", timing.ceiling_ms))
    return found


def work(timing: Timing) -> str:
    """What the reference moves and computes, and what rate the kernel's time makes of that."""
    if not timing.bytes_moved or not timing.kernel_ms:
        return ""
    rate = timing.bytes_moved / timing.kernel_ms / 1e6
    flops = f" and computes {timing.flops / 1e9:.4g} GFLOP" if timing.flops else ""
    moves = f"The reference moves {timing.bytes_moved / 1e6:.4g} MB{flops}"
    beyond = f" It is {BEYOND_ROOFLINE}." if timing.roofline_share > 1 else ""
    return f"{moves}; the kernel's time makes that {rate:.4g} GB/s.{beyond}"


def trace_pieces(run: Run, answer: Answer) -> dict[str, Any] | None:
    """The denoised text by token and step, where the run kept a trace and its tokenizer is on this machine."""
    trace = run.trace(answer)
    tokenizer = None if trace is None else _tokenizer(run.model)
    return None if trace is None or tokenizer is None else denoised.pieces(trace, tokenizer)


_TOKENIZERS: dict[str, Any] = {}


def _tokenizer(model: str) -> Any | None:
    """Of a model that is on this machine already: a report fetches nothing."""
    if model not in _TOKENIZERS:
        from dice.model.checkpoint import NANO_FOLDER
        from dice.model.tokenizer import Tokenizer

        folder = NANO_FOLDER if model == "nano" else Path(model).expanduser()
        try:
            _TOKENIZERS[model] = Tokenizer.from_folder(folder) if folder.is_dir() else None
        except UserError:
            _TOKENIZERS[model] = None
    return _TOKENIZERS[model]
