"""Checkpoints of a run in progress: whole or absent, never half-written.

`checkpoints/step-00001200/` holds the tensors (weights, optimiser moments, averages) as written by
`torch.distributed.checkpoint`, and `manifest.json`. Everything is written and synced in a hidden sibling, the manifest
last, which is then renamed; a process killed at any instant leaves the previous checkpoints and at most a hidden folder
that the next start removes.

One process uses that format too: it costs nothing there, and a run may go on with more processes, or fewer.
"""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.files.atomic import sync
from dice.files.bounded import parse_json, read_bytes
from dice.train.world import PATIENCE, World

# How the folder of a checkpoint begins that is not whole yet.
PENDING = ".pending-"
warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it should be in a run of one process
# What reading a damaged checkpoint may raise.
DAMAGE = (OSError, ValueError, KeyError, EOFError, pickle.UnpicklingError, CheckpointException)


@dataclass(frozen=True, slots=True)
class Restored:
    """What `Checkpoints.load` found: the manifest that `save` was given, and which tensors it could fill."""

    manifest: JsonObject
    names: frozenset[str]


class _Writer(FileSystemWriter):
    """Says in the process where it happens what the system said. An error that travels to the others leaves its causes
    behind, and of a full disk nothing would be left but how far PyTorch's archive had come."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            system = _system_error(error)
            if system is None:
                raise
            raise OSError(system.errno, system.strerror) from None


class Checkpoints:
    """The checkpoints in `folder`, which all processes of `world` see. Only the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int, world: World | None = None) -> None:
        self.folder, self.keep, self.world = folder, keep, world or World(torch.device("cpu"))
        self.world.broadcast_from_leader(lambda: _remove_pending(folder))
        # A group of its own, so that messages of the background do not mix with those of training.
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE) if self.world.size > 1 else None
        # A new thread uses the machine's first GPU unless it is told which one is this process's.
        device = self.world.device
        choose = () if device.index is None else (torch.cuda.set_device, (device,))
        self._background = ThreadPoolExecutor(1, "checkpoint", *choose)
        self._writing: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.shutdown()
        if error is None:
            self.settle()

    def save(self, step: int, tensors: dict[str, Tensor], manifest: JsonObject) -> None:
        """Begin to write checkpoint `step`; returns once the tensors are copied, and they may change.

        Raises `MachineError` when the disk refused the checkpoint before.
        """
        self.settle()
        copied = DefaultStager(StagingOptions(False, False, False, False)).stage(tensors)
        assert not isinstance(copied, Future)  # none of the options asks for that
        self._writing = self._background.submit(self._write, step, copied, manifest)

    def settle(self) -> None:
        """Wait until what `save` began is written. Raises `MachineError` when the disk refused it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def load(
        self, tensors: dict[str, Tensor], check: Callable[[JsonObject], None] | None = None
    ) -> tuple[Restored | None, list[str]]:
        """Fill `tensors` in place from the newest checkpoint that can be read, as far as it has them (None: there is
        no checkpoint), and return a sentence for each damaged one passed over.

        `check` sees the manifest first, and may raise. Raises `UserError` when checkpoints exist and all are damaged:
        starting over silently would throw a run away.
        """
        self.settle()
        notes: list[str] = []
        for path in self.world.broadcast_from_leader(lambda: list(reversed(_checkpoints(self.folder)))):
            try:
                return self._read(path, tensors, check), notes
            except DAMAGE as error:
                notes.append(f"Checkpoint {path} is damaged ({_reason(error)}); trying the one before.")
        if notes:
            raise UserError(f"Every checkpoint in {self.folder} is damaged; remove the folder to start over.")
        return None, notes

    def _read(self, path: Path, tensors: dict[str, Tensor], check: Callable[[JsonObject], None] | None) -> Restored:
        manifest = parse_json(read_bytes(path / "manifest.json"))
        if check is not None:
            check(manifest)
        for name, size in manifest.pop("files").items():
            if (path / name).stat().st_size != size:
                raise ValueError(f"{name} does not have its {size} bytes")
        reader = FileSystemReader(path)
        stored = reader.read_metadata().state_dict_metadata
        wanted = {name: tensor for name, tensor in tensors.items() if name in stored}
        state_dict_loader.load(wanted, storage_reader=reader, process_group=self._group, no_dist=self._group is None)
        return Restored(manifest, frozenset(wanted))

    def _write(self, step: int, tensors: dict[str, Tensor], manifest: JsonObject) -> None:
        final, pending = self.folder / f"step-{step:08d}", self.folder / f"{PENDING}{step:08d}"
        try:
            writer = _Writer(pending)
            alone = self._group is None
            state_dict_saver.save(tensors, storage_writer=writer, process_group=self._group, no_dist=alone)
            if not self.world.leads:
                return
            files = {path.name: path.stat().st_size for path in sorted(pending.iterdir())}
            (pending / "manifest.json").write_text(json.dumps(manifest | {"step": step, "files": files}))
            sync(pending / "manifest.json")
            sync(pending)
            if final.exists():
                shutil.rmtree(final)
            pending.rename(final)
            sync(self.folder)
        except (OSError, CheckpointException) as error:
            if self.world.leads:
                shutil.rmtree(pending, ignore_errors=True)
            last = next((path.name for path in reversed(_checkpoints(self.folder))), None)
            kept = f"the last good one is {last}" if last else "there is no earlier one"
            raise MachineError(f"Cannot write checkpoint {final}: {_reason(error)}; {kept}.") from None
        for old in _checkpoints(self.folder)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)


def _reason(error: BaseException | None) -> str:
    """What went wrong in the first process where it did, in a line: what the system said, where it was the system."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    system = _system_error(error)
    if system is not None and system.strerror:
        return system.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _system_error(error: BaseException | None) -> OSError | None:
    """What the system said that `error` comes from: a writer that cannot finish complains of that, not of the disk."""
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return error
        error = error.__cause__ or error.__context__
    return None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _remove_pending(folder: Path) -> None:
    for path in folder.glob(f"{PENDING}*"):
        shutil.rmtree(path, ignore_errors=True)
