"""A process of ours on another node: an actor of Ray's, with what is known of whether it lives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import ray

from dice.cluster.connect import Node

CONTROL = "control"  # the group of a process's threads that is free whatever it does


@dataclass(eq=False)
class Peer:
    """`node`: where it is; None where Ray has the choice. `heard`: when it last said anything, by this machine's clock;
    `silent`: that is so long ago that others are asked what it was. `joined`: it was heard of at all; one that was not
    may still be starting."""

    node: Node | None
    actor: Any
    heard: float = field(default_factory=time.monotonic, kw_only=True)
    silent: bool = field(default=False, kw_only=True)
    joined: bool = field(default=True, kw_only=True)
    lost: bool = field(default=False, kw_only=True)

    def is_heard(self) -> None:
        self.heard, self.silent, self.joined = time.monotonic(), False, True


def kill_actor(actor: Any) -> None:
    """End a process, whatever it does: nothing of it may answer any more."""
    ray.kill(actor, no_restart=True)
