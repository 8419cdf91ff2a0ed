"""What is done, how many of how many, at what rate and for how long: bars for a person, a line now and then for a log.
All on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)

from dice.terminal import Console

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}", markup=False),
)
LINE_S = 20.0
ENOUGH = 5  # things done before a rate says anything
Show = Callable[..., None]  # (what, done, total, note="")


class Pace:
    """How fast it goes, and how long it will: the rate over the later half of the time, since what is quick comes
    through first, and none before enough was done to tell."""

    def __init__(self, now: float, done: int):
        self._seen: deque[tuple[float, int]] = deque([(now, done)])
        self._begun, self._first = now, done

    def note(self, now: float, done: int) -> None:
        if done < self._seen[-1][1]:  # the next batch of things, counted from its own beginning
            self._seen.clear()
            self._begun, self._first = now, done
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= (self._begun + now) / 2:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        """0 as long as too little is known."""
        (start, before), (now, done) = self._seen[0], self._seen[-1]
        known = done - self._first >= ENOUGH and now > start
        return (done - before) / (now - start) if known else 0.0

    def said(self, left: int) -> str:
        """The rate and the time left, as far as they are known."""
        if not self.per_s:
            return ""
        return f"{_rate(self.per_s)}, about {_duration(left / self.per_s)} left"


def _rate(per_s: float) -> str:
    return f"{60 * per_s:.0f}/min" if per_s >= 1 / 30 else f"{3600 * per_s:.0f}/h"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
    progress = Progress(*COLUMNS, console=console)
    tasks: dict[str, TaskID] = {}
    paces: dict[str, Pace] = {}

    def show(what: str, done: int, total: int | None, note: str) -> None:
        progress.start()  # not before there is something to show
        if what not in tasks:  # what an earlier run did is no part of the rate
            tasks[what] = progress.add_task(what, total=total, completed=done, note="")
            paces[what] = Pace(time.monotonic(), done)
        paces[what].note(time.monotonic(), done)
        said = paces[what].said(total - done) if total else ""
        progress.update(tasks[what], completed=done, total=total, note=f"{said} {note}".strip())

    try:
        yield show
    finally:
        if tasks:
            progress.stop()


@contextmanager
def _lines() -> Iterator[Show]:
    paces: dict[str, Pace] = {}
    said: dict[str, float] = {}

    def show(what: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        pace = paces.setdefault(what, Pace(now, done))  # what an earlier run did is no part of the rate
        pace.note(now, done)
        if not total or now - said.setdefault(what, now) < LINE_S:
            return
        said[what] = now
        known = ", ".join(filter(None, (f"{what}: {done} of {total}", pace.said(total - done))))
        print(f"{known} {note}".rstrip(), file=sys.stderr, flush=True)

    yield show


@contextmanager
def share_bar(what: str) -> Iterator[Callable[[float, int], None]]:
    """A bar over the bytes to read, with the rows read each second and the time left: `show(share read, rows)`."""
    columns = (
        TextColumn(what, markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(what, total=1.0, rate="")

        def show(share: float, rows: int) -> None:
            elapsed = bar.tasks[task].elapsed or 0.0
            rate = f"{rows} rows, {rows / elapsed:.0f}/s" if elapsed > 0.5 else f"{rows} rows"
            bar.update(task, completed=share, rate=rate)

        yield show
