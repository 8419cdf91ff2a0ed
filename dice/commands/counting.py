"""Counts with a rate and the time that is left, on stderr: bars for a person, a line now and then for a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Show = Callable[[str, int, int], None]  # what is done, how many, of how many
LINE_S = 20.0


@contextmanager
def counting() -> Iterator[Show]:
    """May be told from several threads."""
    console, lock = Console(file=sys.stderr), threading.Lock()
    with _bars(console) if console.is_terminal else _lines() as show:

        def one_at_a_time(what: str, done: int, total: int) -> None:
            with lock:
                show(what, done, total)

        yield one_at_a_time


@contextmanager
def _bars(console: Console) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    bars = Progress(*columns, TimeRemainingColumn(), console=console)
    tasks: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        bars.start()  # not before there is something to show
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total, rate="", completed=done)
        speed = bars.tasks[tasks[what]].speed
        bars.update(tasks[what], completed=done, total=total, rate=f"{60 * speed:.0f}/min" if speed else "")

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


@contextmanager
def _lines() -> Iterator[Show]:
    begun: dict[str, tuple[float, int]] = {}
    said: dict[str, float] = {}

    def show(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, before = begun.setdefault(what, (now, done))
        if now - said.get(what, start) < LINE_S:
            return
        said[what] = now
        rate = (done - before) / (now - start)
        left = f", about {(total - done) / rate:.0f} s left" if rate else ""
        print(f"{what}: {done} of {total}, {60 * rate:.0f}/min{left}", file=sys.stderr, flush=True)

    yield show
