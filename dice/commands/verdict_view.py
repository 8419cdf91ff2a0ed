"""How verdicts look in a terminal, and as plain lines when piped."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from dice.terminal import Console
from dice.verdict import BEYOND_ROOFLINE, ReplacedWork, Verdict

STYLE = {"correct": "bold green", "unsupported": "yellow", "infra_error": "yellow"}


def verdict_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """(name, value) lines that say what was concluded, why, and on what."""
    rows: list[tuple[str, str]] = [("verdict", verdict.outcome), ("stage", verdict.stage)]
    if verdict.message:
        rows.append(("reason", verdict.message))
    if verdict.deceptions:
        rows.append(("deceptions", ", ".join(verdict.deceptions)))
    if verdict.labels:
        rows.append(("labels", ", ".join(verdict.labels)))
    if verdict.provenance:
        rows.append(("provenance", provenance(verdict)))
    if verdict.replaced is not None:
        rows.append(("replaced", verdict.replaced.describe()))
    if verdict.trials:
        rows.append(("trials", f"{verdict.trials_passed} of {verdict.trials} passed"))
    if verdict.max_abs_error is not None:
        relative = "" if verdict.max_rel_error is None else f", relative {verdict.max_rel_error:.2g}"
        allowed = f" (allowed: {verdict.tolerance})" if verdict.tolerance else ""
        rows.append(("largest error", f"absolute {verdict.max_abs_error:.2g}{relative}{allowed}"))
    if verdict.determinism is False:
        rows.append(("deterministic", "no: the same inputs gave other bits the second time"))
    if verdict.launches:
        rows.append(("kernels run", ", ".join(f"{name} x{count}" for name, count in verdict.launches.items())))
    if verdict.profile:
        shares = (
            f"{name} x{one['calls']} {one['ms']:.4g} ms ({one['share']:.0%})" for name, one in verdict.profile.items()
        )
        rows.append(("GPU time", ", ".join(shares)))
    if verdict.timing is not None:
        timing = verdict.timing
        interval = f" ({timing.speedup_low:.2f} to {timing.speedup_high:.2f})" if timing.speedup_high else ""
        times = f"{timing.kernel_ms:.4g} ms, PyTorch {timing.reference_ms:.4g} ms: {timing.speedup:.2f}x{interval}"
        rows.append(("time", times))
        if timing.compile_ms:
            over = timing.compile_ms / timing.kernel_ms
            rows.append(("torch.compile", f"{timing.compile_ms:.4g} ms: {over:.2f}x"))
        if timing.host_ms > timing.kernel_ms:
            host = f"{timing.host_ms:.4g} ms until forward returns, PyTorch {timing.reference_host_ms:.4g} ms"
            rows.append(("host", f"{host}: calls in a row may take that long, unless a CUDA graph launches them"))
        if timing.ceiling_ms:
            reached = f"{timing.roofline_share:.0%} of it reached" if timing.roofline_share <= 1 else BEYOND_ROOFLINE
            rows.append(("roofline", f"{timing.ceiling_ms:.4g} ms for the reference's work: {reached}"))
    elif verdict.no_timing:
        rows.append(("time", f"none: {verdict.no_timing}"))
    if verdict.scale:
        rows.append(("scaled", ", ".join(f"{name}: {change}" for name, change in verdict.scale.items())))
    where = [
        part for part in (verdict.backend, verdict.device, verdict.headers and f"{verdict.headers} headers") if part
    ]
    rows.append(("backend", ", ".join(where)))
    if verdict.sandbox:
        lacking = f" (lacking: {', '.join(verdict.lacking)})" if verdict.lacking else ""
        rows.append(("sandbox", verdict.sandbox + lacking))
    if verdict.seconds:
        rows.append(("seconds", ", ".join(f"{stage} {value:.1f}" for stage, value in verdict.seconds.items())))
    return rows


def provenance(verdict: Verdict) -> str:
    """How it is known who computed the outputs."""
    why = str(verdict.evidence.get("not_captured", ""))
    return f"{verdict.provenance} ({why})" if why else verdict.provenance


def show_verdict(console: Console, verdict: Verdict, title: str) -> None:
    """A table in a terminal, `name: value` lines elsewhere; then the errors, for the writer of the kernel."""
    rows = verdict_rows(verdict)
    if console.is_terminal:
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        style = STYLE.get(verdict.outcome, "bold red")
        for name, value in rows:
            table.add_row(name, Text(value, style=style if name == "verdict" else ""))
        console.print(table)
    else:
        print(title)
        for name, value in rows:
            print(f"  {name}: {value}")
    lines = verdict.errors or tuple(f"{found.kind}: {found.message}" for found in verdict.findings)
    for line in lines[:10]:
        if line not in verdict.message:
            console.print(f"  {line}", markup=False, highlight=False, style="dim", soft_wrap=not console.is_terminal)


def exit_code(verdict: Verdict, replaced: ReplacedWork = "any") -> int:
    """0 for a correct kernel that replaces as much as it is to, 3 when this machine could not say, 1 for every other
    verdict."""
    if verdict.solves(replaced):
        return 0
    return 1 if verdict.about_kernel else 3
