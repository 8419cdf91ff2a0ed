"""Checkpoints of a run in progress: whole or absent, never half-written.

`checkpoints/step-00001200/` holds `state.safetensors` (weights, optimiser moments, averages) and `manifest.json`.
Both are written and synced in a hidden sibling, the manifest last, which is then renamed; a process killed at any
instant leaves the previous checkpoints and at most a hidden folder that the next save removes.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dice.errors import MachineError, UserError

PENDING = ".pending-"


@dataclass(frozen=True, slots=True)
class State:
    """A checkpoint read back: named tensors on the CPU, and what `save_state` was given as manifest."""

    tensors: dict[str, Tensor]
    manifest: dict[str, Any]


def save_state(folder: Path, step: int, tensors: dict[str, Tensor], manifest: dict[str, Any], keep: int) -> Path:
    """Write checkpoint `step` and delete all but the newest `keep`. Raises `MachineError` when the disk refuses."""
    final, pending = folder / f"step-{step:08d}", folder / f"{PENDING}{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_pending(folder)
        pending.mkdir()
        host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(host, pending / "state.safetensors")
        _sync(pending / "state.safetensors")
        (pending / "manifest.json").write_text(json.dumps(manifest | {"step": step}), encoding="utf-8")
        _sync(pending / "manifest.json")
        _sync(pending)
        if final.exists():
            shutil.rmtree(final)
        pending.rename(final)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(pending, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        last = next((path.name for path in reversed(_checkpoints(folder))), None)
        kept = f"the last good one is {last}" if last else "there is no earlier one"
        raise MachineError(f"Cannot write checkpoint {final}: {reason}; {kept}.") from None
    for old in _checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_state(folder: Path) -> tuple[State | None, list[str]]:
    """The newest checkpoint that can be read (None: there is none), and a sentence for each damaged one passed over.

    Raises `UserError` when checkpoints exist and all are damaged: starting over silently would throw a run away.
    """
    notes: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
            return State(load_file(path / "state.safetensors"), manifest), notes
        except (OSError, ValueError, SafetensorError) as error:
            notes.append(f"Checkpoint {path} is damaged ({error}); trying the one before.")
    if notes:
        raise UserError(f"Every checkpoint in {folder} is damaged; remove the folder to start over.")
    return None, notes


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _remove_pending(folder: Path) -> None:
    for path in folder.glob(f"{PENDING}*"):
        shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
