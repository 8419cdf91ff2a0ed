"""What every training run needs: one process per run folder, signals that end it well, its device, its errors."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from dice.errors import MachineError, UserError
from dice.files.journal import held


class TrainingError(UserError):
    """Training cannot go on; the message says why and what is left."""


class Interrupted(Exception):
    """A signal asks the run to end; the message is why, as the run's result says it."""


class StopSignal(threading.Event):
    """Set when a signal asks the run to end. `reason` is what its result says then."""

    reason = ""

    def check(self) -> None:
        """Raises `Interrupted` once it is set."""
        if self.is_set():
            raise Interrupted(self.reason)


# Why a run ended, as its result says it: after SIGTERM, and after Ctrl-C.
TERMINATED = "interrupted"
BY_HAND = "interrupted by Ctrl-C"


def locked(folder: Path) -> AbstractContextManager[object]:
    """In the block, no other process trains in `folder`: two of them would destroy each other's checkpoints."""
    return held(folder / ".lock", f"Another process is training in {folder}.")


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """SIGTERM and the first Ctrl-C set the event; the second Ctrl-C interrupts as usual."""
    stopped = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: object) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.reason = BY_HAND if number == signal.SIGINT else TERMINATED
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pick_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one. Raises `UserError` for no device, `MachineError` for a GPU not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise MachineError("There is no CUDA device here; use device=cpu.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device {name!r}; give auto, cpu or cuda.") from None


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type that forward passes compute in; `auto` is bfloat16 on a GPU and float32 elsewhere."""
    wide = precision == "fp32" or (precision == "auto" and device.type != "cuda")
    return torch.float32 if wide else torch.bfloat16
