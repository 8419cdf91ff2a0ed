"""How scores of `dice eval`, and the rows of the paper's tables, look in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from dice.evaluate.paper_rows import ROWS, resolve
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.evaluate.metrics import Score, Summary
    from dice.evaluate.statistics import Estimate


def print_summaries(summaries: Sequence[Summary]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    wide = console.width >= 104  # room for every interval; the report has them all
    has_levels = any(level for one in summaries for level in one.levels)
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0))
    groups = ("protocol", "level") if has_levels else ("protocol",)
    for name in (*groups, "judged", "Exec %", "all ops %", "fast_1 %", "fast_2 %", "speed-up", "deceptive %"):
        table.add_column(name, justify="left" if name == "protocol" else "right", no_wrap=True)
    for one in summaries:
        if not has_levels:
            table.add_row(one.protocol, *_cells(one.total, wide))
            continue
        levels = [(str(level or "none"), score) for level, score in one.levels.items()]
        for level, score in (*levels, *([("all", one.total)] if len(levels) > 1 else [])):
            table.add_row(one.protocol, level, *_cells(score, wide))
    console.print(table)


def _cells(score: Score, wide: bool) -> list[str]:
    shares = [percent(share, wide) for share in (score.fast1, score.fast2)]
    speedup = "-" if score.speedup_correct.value is None else f"{score.speedup_correct.value:.2f}x"
    judged = f"{score.judged}" if not score.unjudged else f"{score.judged} of {score.judged + score.unjudged}"
    return [
        judged,
        percent(score.exec),
        percent(score.exec_all, False),
        *shares,
        speedup,
        percent(score.deception, wide),
    ]


def percent(estimate: Estimate, with_interval: bool = True) -> str:
    if with_interval or estimate.value is None:
        return str(estimate.percent())
    return f"{100 * estimate.value:.1f}"


def list_rows(as_json: bool) -> int:
    if as_json:
        print(json.dumps([row.to_json() for row in ROWS]))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("table", "row", "size", "model", "runs as", "Exec by level %"):
        table.add_column(name, no_wrap=True)
    for row in ROWS:
        numbers = " / ".join(f"{row.published[level][0]:g}" for level in (1, 2, 3))
        table.add_row(str(row.table), row.name, row.size, row.model, resolve(row)[0], numbers)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0
