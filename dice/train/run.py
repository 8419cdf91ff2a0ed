"""What both kinds of training run in: a folder for one run at a time, its log, its checkpoints, its stop signal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.model.chat import ChatTemplateError
from dice.model.checkpoint import CheckpointError
from dice.model.config import ConfigError
from dice.model.tokenizer import TokenizerError
from dice.train.checkpoints import Checkpoints
from dice.train.runlog import RunLog
from dice.train.session import StopSignal, locked, stop_signals
from dice.train.world import GONE, World, is_loss, joined


class RunContext(NamedTuple):
    """What a training loop is given. `started`: the moment, by `time.monotonic`, that this call began."""

    world: World
    log: RunLog
    checkpoints: Checkpoints
    stopped: StopSignal
    started: float


@contextmanager
def run_context(folder: Path, kind: str, device: str, keep_checkpoints: int) -> Iterator[RunContext]:
    """For a run of `kind` (sft, rl) in `folder`, which is made. A model that cannot be read is a `UserError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        joined(device) as world,
        world.held(locked(folder)),
        RunLog(folder, kind, silent=not world.leads) as log,
        Checkpoints(folder / "checkpoints", keep_checkpoints, world) as checkpoints,
        stop_signals() as stopped,
    ):
        try:
            yield RunContext(world, log, checkpoints, stopped, time.monotonic())
        except (CheckpointError, ConfigError, TokenizerError, ChatTemplateError) as error:
            raise UserError(str(error)) from error
        except RuntimeError as error:  # from within a forward or backward pass, which gathers weights
            if is_loss(error):
                raise MachineError(GONE) from error
            raise


def check_identity(folder: Path, manifest: JsonObject, identity: JsonObject) -> None:
    """Raises `UserError` where a checkpoint's manifest is that of another run."""
    changed = [name for name, value in identity.items() if manifest["identity"].get(name) != value]
    if changed:
        raise UserError(f"{folder} holds a run with other {', '.join(changed)}; give another `out` folder.")
