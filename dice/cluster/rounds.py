"""One call of `Engines.write`: which engine writes which answers, and what comes of those of engines that are silent or
lost. An answer is the same whoever writes it, since its randomness is its prompt's, so the first one counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dice.cluster.peer import Peer
from dice.decode.generate import DecodeConfig
from dice.decode.trace import Trace

POLL_S = 0.5  # seconds between two looks at engines, and at whether the caller wants to stop


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be written."""

    version: int
    prompts: Sequence[Sequence[int]]
    config: DecodeConfig
    seeds: Sequence[int]

    def ask(self, engine: Any, number: int, places: Sequence[int]) -> Any:
        """The stream of an engine's answers to the prompts of these places."""
        prompts, seeds = [self.prompts[place] for place in places], [self.seeds[place] for place in places]
        return engine.write.options(num_returns="streaming").remote(number, self.version, prompts, self.config, seeds)


@dataclass(eq=False)
class _Share:
    """Places that an engine was asked for. `copied`: another one was asked for what is left of them, too."""

    engine: Peer
    places: list[int]
    answers: Any
    copied: bool = False


class Round:
    """`number`: of this call, higher than that of the one before."""

    def __init__(self, number: int, work: Work, on_trace: Callable[[int, Trace], None]) -> None:
        self._number, self._work, self._on_trace = number, work, on_trace
        self._left = list(range(len(work.prompts)))  # nobody is asked for them
        self._done: set[int] = set()
        self._shares: dict[Any, _Share] = {}  # by what is waited for: an answer, or the next one

    @property
    def ended(self) -> bool:
        return len(self._done) == len(self._work.prompts)

    def deal(self, engines: Iterable[Peer]) -> None:
        """Have those that have nothing to do write what nobody was asked for or, where there is no such thing, what
        silent ones were."""
        busy = {share.engine for share in self._shares.values()}
        idle = [engine for engine in engines if not engine.silent and engine not in busy]
        if not idle:
            return
        for share in [] if self._left else self._shares.values():
            if share.engine.silent and not share.copied:
                share.copied = True
                self._left += self._missing(share.places)
        for place, engine in enumerate(idle):
            if places := self._left[place :: len(idle)]:
                answers = self._work.ask(engine.actor, self._number, places)
                self._shares[answers] = _Share(engine, places, answers)
        self._left.clear()

    def take(self) -> list[tuple[Peer, str]]:
        """Answers that have come, or come soon; the engines that are lost, why. Raises what decoding raises."""
        if not self._shares:
            time.sleep(POLL_S)
            return []
        lost = []
        for one in ray.wait(list(self._shares), num_returns=1, timeout=POLL_S)[0]:
            share = self._shares.pop(one)
            try:
                self._hear(one, share)
            except StopIteration:
                share.engine.is_heard()
            except RayTaskError as error:
                raise error.cause from None
            except RayError as error:
                self._give_back(share)
                lost.append((share.engine, str(error)))
        return lost

    def forget(self, engine: Peer) -> None:
        """It is lost."""
        for one, share in list(self._shares.items()):
            if share.engine is engine:
                del self._shares[one]
                self._give_back(share)

    def unheard(self) -> list[Peer]:
        """Engines that still write, though all is written."""
        return [share.engine for share in self._shares.values()]

    def _hear(self, one: Any, share: _Share) -> None:
        """An answer, or that there is one: large ones have to be fetched, which is waited for like all else."""
        if one is share.answers:
            self._shares[next(share.answers)] = share
            return
        number, trace = ray.get(one)
        self._shares[share.answers] = share
        share.engine.is_heard()
        place = share.places[number]
        if place not in self._done:
            self._done.add(place)
            self._on_trace(place, trace)

    def _give_back(self, share: _Share) -> None:
        """What is missing of a share is nobody's, but for what another one has, too."""
        asked = {place for other in self._shares.values() for place in other.places}
        self._left += self._missing(share.places, asked)

    def _missing(self, places: Collection[int], but: Collection[int] = ()) -> list[int]:
        return [place for place in places if place not in self._done and place not in but]
