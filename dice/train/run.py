"""What training runs have around their loops: a folder for one run at a time, its log, its checkpoints, its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dice.errors import UserError
from dice.model.chat import ChatTemplateError
from dice.model.checkpoint import CheckpointError
from dice.model.config import ConfigError
from dice.model.tokenizer import TokenizerError
from dice.train.runlog import RunLog
from dice.train.session import Stop, locked, stop_signals
from dice.train.state import Checkpoints
from dice.train.world import World, joined


class Surroundings(NamedTuple):
    """What a loop is given."""

    world: World
    log: RunLog
    checkpoints: Checkpoints
    stopped: Stop


@contextmanager
def surroundings(folder: Path, kind: str, device: str, keep_checkpoints: int) -> Iterator[Surroundings]:
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
            yield Surroundings(world, log, checkpoints, stopped)
        except (CheckpointError, ConfigError, TokenizerError, ChatTemplateError) as error:
            raise UserError(str(error)) from error


def check_identity(folder: Path, manifest: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raises `UserError` where a checkpoint's manifest is that of another run."""
    changed = [name for name, value in identity.items() if manifest["identity"].get(name) != value]
    if changed:
        raise UserError(f"{folder} holds a run with other {', '.join(changed)}; give another `out` folder.")
