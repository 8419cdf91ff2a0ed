"""The audit of one problem in this process, without its jail, for problems of our own; and fast enough for hundreds."""

from __future__ import annotations

from typing import Any, cast

from dice.data.audit.probe import Probe
from dice.verify.channel import Channel
from dice.verify.execution import Device
from dice.verify.trial import ReferenceFailed

IGNORED = ("launch_bound",)  # at reduced scale all are


class _Record:
    """What an audit sends to its supervisor."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def send(self, event: str, **facts: Any) -> None:
        if event == "found" and facts["kind"] not in IGNORED:
            self.found.append((facts["kind"], facts["message"]))


def audit(source: str) -> list[tuple[str, str]]:
    """Kinds and messages of what the audit finds, on the CPU. Writes to the current folder."""
    record = _Record()
    command = {
        "source": source,
        "backend": "emulated",
        "seed": 0,
        "limit_s": 60.0,
        "memory_mb": 4096,
        "protocol": "dice",
        "depth": "full",
    }
    try:
        Probe(cast(Channel, record), command, Device("emulated")).audit()
    except ReferenceFailed as error:
        record.found.append(("broken", str(error)))
    return record.found
