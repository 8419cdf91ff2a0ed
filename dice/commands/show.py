"""How verdicts look in a terminal, and as plain lines when piped."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dice.verdict import Verdict

STYLE = {"correct": "bold green", "unsupported": "yellow", "infra_error": "yellow"}


def verdict_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """(name, value) lines that say what was concluded, why, and on what."""
    rows = [("verdict", verdict.outcome), ("stage", verdict.stage)]
    if verdict.message:
        rows.append(("reason", verdict.message))
    if verdict.deceptions:
        rows.append(("deceptions", ", ".join(verdict.deceptions)))
    if verdict.trials:
        rows.append(("trials", f"{verdict.trials_passed} of {verdict.trials} passed"))
    if verdict.max_abs_error is not None:
        relative = "" if verdict.max_rel_error is None else f", relative {verdict.max_rel_error:.2g}"
        rows.append(("largest error", f"absolute {verdict.max_abs_error:.2g}{relative}"))
    if verdict.launches:
        rows.append(("kernels run", ", ".join(f"{name} x{count}" for name, count in verdict.launches.items())))
    if verdict.timing is not None:
        timing = verdict.timing
        rows.append(("time", f"{timing.kernel_ms:.4g} ms, PyTorch {timing.reference_ms:.4g} ms: {timing.speedup:.2f}x"))
    elif verdict.no_timing:
        rows.append(("time", f"none: {verdict.no_timing}"))
    if verdict.scale:
        rows.append(("scaled", ", ".join(f"{name}: {change}" for name, change in verdict.scale.items())))
    where = [
        part for part in (verdict.backend, verdict.device, verdict.headers and f"{verdict.headers} headers") if part
    ]
    rows.append(("backend", ", ".join(where)))
    if verdict.sandbox:
        rows.append(("sandbox", verdict.sandbox))
    if verdict.seconds:
        rows.append(("seconds", ", ".join(f"{stage} {value:.1f}" for stage, value in verdict.seconds.items())))
    return rows


def show_verdict(console: Console, verdict: Verdict, title: str) -> None:
    """A table in a terminal, `name: value` lines elsewhere; then the errors, for the writer of the kernel."""
    rows = verdict_rows(verdict)
    if console.is_terminal:
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        style = STYLE.get(verdict.outcome, "bold red")
        for name, value in rows:
            table.add_row(name, f"[{style}]{value}[/]" if name == "verdict" else escape(value))
        console.print(table)
    else:
        print(title)
        for name, value in rows:
            print(f"  {name}: {value}")
    for error in verdict.errors[:10]:
        console.print(f"  {error}", markup=False, highlight=False, style="dim")


def exit_code(verdict: Verdict) -> int:
    """0 for a correct kernel, 3 when this machine could not say, 1 for every other verdict."""
    if verdict.correct:
        return 0
    return 1 if verdict.about_kernel else 3
