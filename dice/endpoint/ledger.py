"""The log of every request: what was sent, what came back, what it cost. A run that was killed goes on from it.

One JSON object a line. `event`: `sent` (written before the request leaves), `answer` (with its text; on the disk before
anyone sees it), `failed` (one attempt). A `sent` without an end was under way when its run was killed: whether the
endpoint worked on it is unknown, so it is sent again, counted as such, and reckoned at the most it may have cost.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dice.endpoint.request import Usage
from dice.files import JsonObject
from dice.files.journal import Journal


@dataclass
class Account:
    """What all runs of a log came to. `cost` includes `unknown_cost`, the most that unanswered requests may cost."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # of attempts
    unknown: int = 0  # requests sent in a run that was killed before their end
    resent: int = 0  # how many of those were sent once more
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0  # attempts whose tokens the endpoint did not say
    cost: float = 0.0
    unknown_cost: float = 0.0

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"outcomes": dict(sorted(self.outcomes.items())), "cost": round(self.cost, 6)}


class Ledger:
    """A journal of requests; None keeps it in memory."""

    def __init__(self, path: Path | None):
        self.answers: dict[str, JsonObject] = {}  # id -> its `answer` line
        self.account = Account()
        self._journal = Journal(path)
        self._planned: dict[str, float] = {}  # id -> the most that it may cost once it is sent
        self._open: dict[str, float] = {}  # id -> the most that it may cost, of requests that were sent
        self._lost: set[str] = set()  # ids under way when an earlier run was killed

    def __enter__(self) -> Ledger:
        for row in self._journal.__enter__().rows():
            with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):  # of another version
                self._note(row)
        for id_, most in self._open.items():
            self._lose(id_, most)
        self._open.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    @property
    def at_most(self) -> float:
        """What was spent, and may yet be by what is under way."""
        return self.account.cost + sum(self._open.values()) + sum(self._planned.values())

    @property
    def under_way(self) -> int:
        return len(self._open) + len(self._planned)

    def plan(self, id_: str, most: float) -> None:
        """Set money aside for a request that waits for its turn."""
        self._planned[id_] = most

    def sent(self, id_: str, attempt: int, most: float) -> None:
        self._write({"event": "sent", "id": id_, "attempt": attempt, "most": most}, sync=False)

    def answered(self, id_: str, attempt: int, status: int, outcome: str, text: str, usage: Usage, more: Any) -> None:
        line = {"event": "answer", "id": id_, "attempt": attempt, "status": status, "outcome": outcome}
        self._write(line | {"usage": usage.to_json(), **more, "text": text}, sync=True)

    def failed(self, id_: str, attempt: int, status: int, outcome: str, error: str, usage: Usage, more: Any) -> None:
        line = {"event": "failed", "id": id_, "attempt": attempt, "status": status, "outcome": outcome}
        self._write(line | {"usage": usage.to_json(), **more, "error": error}, sync=False)

    def _write(self, line: JsonObject, sync: bool) -> None:
        line["time"] = round(time.time(), 3)
        self._journal.append(line, sync=sync)
        self._note(line)

    def _note(self, line: JsonObject) -> None:
        """Count one line into the account, just written or read from an earlier run."""
        id_, account = line["id"], self.account
        if line["event"] == "sent":
            if id_ in self._open:  # an earlier run was killed while it was under way
                self._lose(id_, self._open[id_])
            if id_ in self._lost:
                self._lost.discard(id_)
                account.resent += 1
            self._planned.pop(id_, None)
            self._open[id_] = line["most"]
            account.sent += 1
            return
        usage = Usage(**line["usage"])
        self._open.pop(id_, None)
        account.outcomes[line["outcome"]] += 1
        account.tokens_in += usage.tokens_in
        account.tokens_out += usage.tokens_out
        if usage.estimated:
            account.estimated += 1
        account.cost += line["cost"]
        if line["event"] == "answer":
            self.answers[id_] = line

    def _lose(self, id_: str, most: float) -> None:
        self._lost.add(id_)
        self.account.unknown += 1
        self.account.unknown_cost += most
        self.account.cost += most
