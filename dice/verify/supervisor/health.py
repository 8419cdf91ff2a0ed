"""Is the GPU well? Asked in a fresh process after a candidate was killed, crashed or hit an error on it.

A device that fails twice in a row is out: no job gets it any more, and the verdicts reached on it meanwhile count for
nothing. Questions that come while one is being answered wait for the next answer, so that many crashes cost few probes.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import Malformed, read
from dice.verify.ipc.out_of_memory import is_shortage
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import ChildEnded, DeadlineExceeded, MachineryError, Zygote, wait_for
from dice.verify.sandbox.roles import HEALTH
from dice.verify.sandbox.scratch import Scratch

PROBE_S = 60.0  # a killed process's last kernel may have to be drained first
PROBE_MEMORY_MB = 4096
INTERVAL_S = 1.0  # from one probe's start to the next: each costs a CUDA context
TRIES = 2
log = logging.getLogger(__name__)

Probe = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """The probe's answer: `well`, `ill`, or `crowded`."""

    condition: str


class DeviceLost(MachineryError):
    """The GPU stopped working."""


class Health:
    """One device's; always well without a `probe`. Thread-safe."""

    def __init__(self, name: str, probe: Probe | None):
        self.name = name
        self.quarantined = False
        self._probe = probe
        self._changed = threading.Condition()
        self._running = False
        self._begun = 0  # probes
        self._answered = 0  # the number of the last one answered
        self._last = 0.0

    def check(self) -> None:
        """Return when a probe that began after this call found the device well. Raises `DeviceLost`."""
        if self._probe is None:
            return
        with self._changed:
            wanted = self._begun + 1
            while self._answered < wanted and not self.quarantined:
                if self._running:
                    self._changed.wait()
                else:
                    self._run_probe()
            if self.quarantined:
                raise DeviceLost(f"the GPU {self.name or '0'} does not work any more")

    def _run_probe(self) -> None:
        """One round of tries, without the lock."""
        self._running = True
        pause = max(0.0, self._last + INTERVAL_S - time.monotonic())
        self._changed.release()
        well = False
        try:
            time.sleep(pause)
            with self._changed:
                self._begun += 1
            self._last = time.monotonic()
            well = self._probe is not None and any(self._probe() for _ in range(TRIES))
        finally:
            self._changed.acquire()
            self._running = False
            self._answered = self._begun
            if not well:
                log.error("GPU %s failed %d health probes and gets no more work", self.name or "0", TRIES)
                self.quarantined = True
            self._changed.notify_all()


def probe_gpu(zygote: Zygote, gpu: str) -> bool:
    """Whether a fresh process can add one number on the device."""
    with Scratch() as scratch:
        limits = Limits(PROBE_MEMORY_MB, str(scratch.root), gpu=gpu, one_queue=True)
        with zygote.spawn(HEALTH, limits) as child:
            try:
                return read(wait_for(child, (), time.monotonic() + PROBE_S), Condition).condition in ("well", "crowded")
            except (ChildEnded, DeadlineExceeded, MachineryError, Malformed):
                return False


def main(link: socket.socket) -> None:
    """The probe's process."""
    channel = Channel(link)
    channel.send(Condition(_find_out()))
    channel.receive()


def _find_out() -> str:
    """`well`, `ill`, or `crowded`: a device whose memory others hold is not ill."""
    import torch

    try:
        one = torch.ones(1, device="cuda")
        return "well" if (one + one).item() == 2.0 else "ill"  # waits for the device
    except RuntimeError as error:
        return "crowded" if is_shortage(error) else "ill"
