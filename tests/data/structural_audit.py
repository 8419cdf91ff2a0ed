"""The audit of one problem in this process, without its jail, for problems of our own; and fast enough for hundreds."""

from __future__ import annotations

from typing import cast

from dice.verify.audit.messages import AuditProblem, Found
from dice.verify.audit.probe import Probe
from dice.verify.execution.running import Device
from dice.verify.ipc.channel import Channel
from dice.verify.reference.trial import ReferenceFailed

IGNORED = ("launch_bound",)  # at reduced scale all are


class _Record:
    """What an audit sends to its supervisor."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def send(self, message: object) -> None:
        if isinstance(message, Found) and message.kind not in IGNORED:
            self.found.append((message.kind, message.message))


def audit(source: str) -> list[tuple[str, str]]:
    """Kinds and messages of what the audit finds, on the CPU. Writes to the current folder."""
    record = _Record()
    order = AuditProblem(source, "emulated", "dice", limit_s=60.0, memory_mb=4096, seed=0, depth="full")
    try:
        Probe(cast(Channel, record), order, Device("emulated")).audit()
    except ReferenceFailed as error:
        record.found.append(("broken", str(error)))
    return record.found
