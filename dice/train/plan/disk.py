"""How much disk a run needs, said before it starts and refused where it is not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dice.errors import MachineError

# Beside the tensors: indices, manifests, tokenizer files, metrics.
SMALL_FILES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Bytes of a checkpoint with moments, of the last one, and of the exported model; how many checkpoints are kept.

    `during`: how many are due by the number of steps before the last one; others may come by time, or by a signal.
    None: as many as are kept, or more.
    """

    checkpoint: int
    final: int
    export: int
    kept: int
    during: int | None = None

    @property
    def peak(self) -> int:
        """The most at any moment: a new checkpoint is whole before the oldest is removed."""
        return (self.kept + 1) * self.checkpoint + self.export + SMALL_FILES

    @property
    def least(self) -> int:
        """What a run is sure to need that nothing interrupts."""
        if self.during is None or self.during > self.kept:
            return self.peak
        return self.during * self.checkpoint + self.final + self.export + SMALL_FILES

    def __str__(self) -> str:
        last = "" if self.final == self.checkpoint else f", the last one of {size(self.final)}"
        return (
            f"{size(self.peak)} of disk: {self.kept} + 1 checkpoints of {size(self.checkpoint)}{last}, "
            f"and the model of {size(self.export)}"
        )


def size(count: float) -> str:
    """Bytes in the unit that disks are sold in."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def check_disk(need: DiskNeed, folder: Path, say: Callable[[str], None]) -> None:
    """Say what the run in `folder` may need. Raises `MachineError` where there is less than it is sure to need,
    counting what an earlier call of the same run has written there already: it will be replaced."""
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free + min(written, need.peak)
    if need.least > free:
        raise MachineError(
            f"{folder} has {size(free)} for this run, which needs {need}; lower keep_checkpoints or give another `out`."
        )
    short = " That is too little, should a checkpoint be due by time or by a signal." if need.peak > free else ""
    say(f"Needs up to {need}; {size(free)} are free.{short}")
