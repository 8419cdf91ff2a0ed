"""Processes that decode and say nothing: what they had to write is written by others, and an answer counts once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from ray_nodes import RayNodes
from test_engines import CONFIG, PROMPTS, SEEDS, SHAPE, model, written

from dice.decode.generate import DecodeConfig
from dice.decode.trace import Trace
from dice.train.rl.rollout import write_here
from tests.cluster.fakes import wait_until

pytest.importorskip("ray")

from ray.exceptions import RayActorError  # noqa: E402

from dice.cluster import pulse as listening  # noqa: E402
from dice.cluster import rounds as room  # noqa: E402
from dice.cluster.peer import Peer  # noqa: E402

pytestmark = pytest.mark.xdist_group("cluster")  # they share the nodes


class Writer:
    """A process that writes when it is told to: an answer is the word for its prompt."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.write = self

    def options(self, **_: object) -> Writer:
        return self

    def remote(self, number: int, version: int, prompts: list[str], config: object, seeds: list[int]) -> Stream:
        self.streams.append(Stream(prompts))
        return self.streams[-1]


class Stream:
    """Of Ray's: an answer comes in two steps. `says` are those that there are."""

    def __init__(self, prompts: list[str]) -> None:
        self.prompts, self.says = prompts, list[Any]()

    def __next__(self) -> Any:
        one = self.says.pop(0)
        if isinstance(one, StopIteration):
            raise one
        return Answer(one)

    def write(self, *places: int) -> None:
        self.says += [(place, f"written {self.prompts[place]}") for place in places]

    def end(self) -> None:
        self.says.append(StopIteration())


class Answer:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Rounds wait for the streams above, unless a cluster is asked for."""
    if "cluster" not in request.fixturenames:

        class Ray:
            @staticmethod
            def wait(those: list[Any], **_: object) -> tuple[list[Any], list[Any]]:
                ready = [one for one in those if isinstance(one, Answer) or one.says]
                return ready[:1], those

            @staticmethod
            def get(one: Answer) -> Any:
                if isinstance(one.value, Exception):
                    raise one.value
                return one.value

        monkeypatch.setattr(room, "ray", Ray)
    yield


class Started:
    """A round of so many prompts, and two engines: the first is asked for 0, 2, ..., the second for the others."""

    def __init__(self, count: int) -> None:
        self.first, self.second = Peer(None, Writer()), Peer(None, Writer())
        self.found: list[tuple[int, str]] = []
        work = room.Work(0, [f"{place}" for place in range(count)], None, list(range(count)))  # type: ignore[arg-type,list-item]
        self.round = room.Round(1, work, lambda place, trace: self.found.append((place, str(trace))))
        self.deal()

    def deal(self) -> None:
        self.round.deal([self.first, self.second])

    def take(self) -> None:
        """All that is said."""
        while any(isinstance(one, Answer) or one.says for one in self.round._shares):
            self.round.take()

    def stream(self, engine: Peer) -> Stream:
        return engine.actor.streams[-1]  # type: ignore[no-any-return]


def test_what_a_silent_engine_has_is_written_by_one_that_has_nothing_to_do_and_counts_once() -> None:
    one = Started(6)
    assert (one.stream(one.first).prompts, one.stream(one.second).prompts) == (["0", "2", "4"], ["1", "3", "5"])
    one.stream(one.first).write(1)  # of its places
    one.stream(one.second).write(0, 1)
    one.first.silent = True
    one.take()
    assert not one.first.silent, "an answer is a sign of life"
    one.first.silent = True
    one.deal()
    assert len(one.second.actor.streams) == 1, "it has something to do"
    one.stream(one.second).write(2)
    one.stream(one.second).end()
    one.take()
    one.deal()
    assert one.stream(one.second).prompts == ["0", "4"]
    one.deal()
    assert len(one.second.actor.streams) == 2, "it is asked once"
    one.stream(one.first).write(0)  # is heard again, and first with one of them
    one.stream(one.second).write(0, 1)
    one.take()
    assert sorted(one.found) == [(place, f"written {place}") for place in range(6)]
    assert one.round.ended and one.round.unheard() == [one.first, one.second]


def test_what_a_lost_engine_has_is_dealt_again_but_for_what_another_one_has() -> None:
    one = Started(4)
    one.stream(one.first).says.append(RayActorError())
    one.round.take()
    ((lost, _),) = one.round.take()
    assert lost is one.first
    fresh = one.first = Peer(None, Writer())
    one.deal()
    assert one.stream(fresh).prompts == ["0", "2"]
    fresh.silent = True
    one.stream(one.second).write(0, 1)
    one.stream(one.second).end()
    one.take()
    one.deal()
    assert one.stream(one.second).prompts == ["0", "2"]
    one.round.forget(fresh)
    one.first = Peer(None, Writer())
    one.deal()
    assert not one.first.actor.streams, "the other one has it"


@pytest.mark.slow  # three processes with PyTorch start
def test_one_that_is_stopped_is_waited_for_no_longer_and_believed_again(
    cluster: RayNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which Ray never says that it is lost; until it is given up, when it is replaced."""
    from dice.cluster.engines import Engines

    monkeypatch.setattr(listening, "SILENT_S", 1.0)
    one, found = model(), dict[int, Trace]()
    long = DecodeConfig(max_new_tokens=120, max_active=1, temperature=1.0, stop_ids=frozenset())
    with Engines(cluster.address, SHAPE, 2, "cpu") as engines:
        stopped: list[int] = []

        def take(place: int, trace: Trace) -> None:
            if len(found) == 1:
                stopped.append(cluster.titled("ray::Engine")[0])
                os.kill(stopped[0], signal.SIGSTOP)
            assert place not in found
            found[place] = trace

        engines.write(one, 0, PROMPTS, long, SEEDS, lambda: None, take)
        assert engines.lost == 0 and [engine.silent for engine in engines._engines].count(True) == 1
        again: dict[int, Trace] = {}
        write_here(one, 0, PROMPTS, long, SEEDS, lambda: None, again.__setitem__)
        assert found == again
        assert written(engines.write, model(seed=1), 1) == written(write_here, model(seed=1), 1)
        os.kill(stopped[0], signal.SIGCONT)
        wait_until(lambda: not any(engine.silent for engine in engines._engines))
        assert written(engines.write, model(seed=2), 2) == written(write_here, model(seed=2), 2)
        os.kill(stopped[0], signal.SIGSTOP)
        monkeypatch.setattr(listening, "GIVEN_UP_S", 3.0)
        wait_until(lambda: engines.lost)
        monkeypatch.undo()
        assert written(engines.write, model(), 3) == written(write_here, model(), 3)
        wait_until(lambda: stopped[0] not in cluster.processes())
        assert CONFIG.max_active == 1 and engines.lost == 1
