"""Bars on stderr: what is done, how many of how many, at what rate, and how long it will take."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
Show = Callable[..., None]  # (what, done, total, note="")


@contextmanager
def bars(shown: bool = True) -> Iterator[Show]:
    """`show(what, done, total, note)`: a bar for each `what`, from when it is first told of; from any thread."""
    lock = threading.Lock()
    with Progress(*COLUMNS, TimeRemainingColumn(), console=Console(file=sys.stderr), disable=not shown) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None, note: str = "") -> None:
            with lock:
                if what not in tasks:  # what an earlier run did is no part of the rate
                    tasks[what] = progress.add_task(what, total=total, completed=done, note="")
                task = progress.tasks[tasks[what]]
                speed = task.finished_speed or task.speed
                rate = f"{60 * speed:.0f}/min" if speed else ""
                progress.update(tasks[what], completed=done, total=total, note=f"{rate} {note}".strip())

        yield show
