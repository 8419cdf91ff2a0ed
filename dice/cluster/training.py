"""BiC-RL with hosts of a cluster: kernels are verified there and, where it is asked for, responses written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from dice.cluster.engines import Engines
from dice.cluster.trainers import TAKEN
from dice.cluster.verifier import on_cluster
from dice.errors import UserError
from dice.model.sdar import SDARConfig
from dice.train.rl.config import RLConfig
from dice.train.rl.loop import RLResult, train_rl
from dice.train.rl.rollout import Write
from dice.train.session import pick_device


def train_on_cluster(config: RLConfig) -> RLResult:
    """As `train_rl`. Engines take their GPUs first, and verifiers have what is left. Raises `UserError` for engines
    with several trainers: those decode a share each."""
    maker = on_cluster(config.cluster, config.mixed_hosts)
    taken: dict[str, int] = json.loads(os.environ.get(TAKEN, "{}"))  # by the trainers of this run
    if not config.engines:
        return train_rl(config, partial(maker, taken=taken))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("engines write for one trainer; torchrun's processes decode themselves, a share each.")

    @contextmanager
    def open_engines(model: SDARConfig) -> Iterator[Write]:
        device = pick_device(config.device).type
        with Engines(config.cluster, model, config.engines, device) as engines:
            taken.update(engines.gpus_taken)
            yield engines.write

    return train_rl(config, partial(maker, taken=taken), open_engines)
