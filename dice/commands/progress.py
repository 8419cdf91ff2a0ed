"""What is done, how many of how many, at what rate and for how long: bars for a person, a line now and then for a log.
All on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from dice.terminal import Console

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}", markup=False),
)
LINE_S = 20.0
Show = Callable[..., None]  # (what, done, total, note="")


@contextmanager
def bars(shown: bool = True) -> Iterator[Show]:
    """`show(what, done, total, note)` counts for each `what`, from when it is first told of; from any thread."""
    console, lock = Console(file=sys.stderr), threading.Lock()
    with _bars(console) if console.is_terminal else _lines() as show:

        def one_at_a_time(what: str, done: int, total: int | None, note: str = "") -> None:
            with lock:
                if shown:
                    show(what, done, total, note)

        yield one_at_a_time


@contextmanager
def _bars(console: Console) -> Iterator[Show]:
    progress = Progress(*COLUMNS, TimeRemainingColumn(), console=console)
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int | None, note: str) -> None:
        progress.start()  # not before there is something to show
        if what not in tasks:  # what an earlier run did is no part of the rate
            tasks[what] = progress.add_task(what, total=total, completed=done, note="")
        task = progress.tasks[tasks[what]]
        speed = task.finished_speed or task.speed
        rate = f"{60 * speed:.0f}/min" if speed else ""
        progress.update(tasks[what], completed=done, total=total, note=f"{rate} {note}".strip())

    try:
        yield show
    finally:
        if tasks:
            progress.stop()


@contextmanager
def _lines() -> Iterator[Show]:
    begun: dict[str, tuple[float, int]] = {}
    said: dict[str, float] = {}

    def show(what: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        start, before = begun.setdefault(what, (now, done))
        if not total or now - said.get(what, start) < LINE_S:
            return
        said[what] = now
        rate = (done - before) / (now - start)
        left = f", about {(total - done) / rate:.0f} s left" if rate else ""
        line = f"{what}: {done} of {total}, {60 * rate:.0f}/min{left} {note}"
        print(line.rstrip(), file=sys.stderr, flush=True)

    yield show
