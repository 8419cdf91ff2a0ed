"""One question to a host, and the waiting for its answer: from the driver's side."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dice.verify.sandbox.process import Cancelled

Ask = Callable[[Any, int], Any]
"""From a host's actor and the job's number to the reference of the answer."""

CONTROL = "control"  # the group of a host's threads that is free even where all of its places are taken
_numbers = itertools.count()


class HostLost(Exception):
    """The host's process, or the whole host, ended before it answered; the message is one line of Ray's."""


class Job:
    """A question that is asked until a host answers it.

    `losses`: hosts that were lost while it was under way there and may have been why; `strikes`: those of them that
    were lost over nothing else, as far as it can be told.
    `large`: a host said that it has no room for it. `avoids`: the host whose machinery failed on it last.
    """

    def __init__(self, ask: Ask, group: str = "") -> None:
        self.number = next(_numbers)
        self.group = group
        self.losses = 0
        self.strikes = 0
        self.large = False
        self.avoids = ""
        self._ask = ask
        self._called_off = False
        self._actor: Any = None
        self._answer: Future[Any] = Future()

    def ask(self, actor: Any) -> Any:
        """The answer of a host. Raises `HostLost`, `Cancelled`, and what the host raised."""
        self._actor, self._answer = actor, Future()
        if self._called_off:
            raise Cancelled
        answer = self._answer
        try:
            self._ask(actor, self.number).future().add_done_callback(lambda done: _hand_over(done, answer))
            return answer.result()
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise HostLost(str(error).partition("\n")[0][:200]) from None

    def kill(self) -> None:
        """Wait no longer, and have the host end what it does."""
        self._called_off = True
        with contextlib.suppress(InvalidStateError):
            self._answer.set_exception(Cancelled())
        if self._actor is not None:
            self._actor.cancel.options(concurrency_group=CONTROL).remote(self.number)

    @property
    def called_off(self) -> bool:
        return self._called_off


def kill_actor(actor: Any) -> None:
    """End a host's process, whatever it does: nothing of it may answer any more."""
    ray.kill(actor, no_restart=True)


def _hand_over(done: Future[Any], answer: Future[Any]) -> None:
    """`done` cannot be waited for itself: Ray would set it after it was called off."""
    error = done.exception()
    with contextlib.suppress(InvalidStateError):
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)
