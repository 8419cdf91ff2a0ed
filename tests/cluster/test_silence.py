"""Hosts that say nothing: what they had to do is done elsewhere, they are believed again, and answers count once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from ray_machines import RayMachines, why_not
from ray_nodes import RayNodes, at_work

from tests.cluster.fakes import Fake, lines, numbers, pair, wait_until
from tests.conftest import ROOT

pytest.importorskip("ray")

from ray.exceptions import RayActorError  # noqa: E402

from dice.cluster import hosts as room  # noqa: E402
from dice.cluster import pulse as listening  # noqa: E402
from dice.cluster.connect import Node  # noqa: E402
from dice.cluster.host import HostFacts, Kind  # noqa: E402
from dice.cluster.job import Job, Member  # noqa: E402
from dice.cluster.pulse import Pulses  # noqa: E402
from dice.verify.sandbox.process import Cancelled  # noqa: E402

pytestmark = pytest.mark.xdist_group("cluster")  # they share the nodes
FACTS = HostFacts("host", Kind("emulated", "CPU", "g++", "2", "1"), 1, ())


class Actor:
    """A host's process that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: dict[int, Future[str]] = {}
        self.called_off: list[int] = []
        self.pulses: list[Future[None]] = []

    def __getattr__(self, name: str) -> Any:
        return _Method(getattr(self, f"_{name}"))

    def _verify(self, number: int) -> Future[str]:
        return self.asked.setdefault(number, Future())

    def _cancel(self, number: int) -> Future[None]:
        self.called_off.append(number)
        return Future()

    def _pulse(self) -> Future[None]:
        self.pulses.append(Future())
        return self.pulses[-1]

    def answer(self, what: str) -> None:
        """To the newest question."""
        list(self.asked.values())[-1].set_result(what)


class _Method:
    """As methods of Ray's actors are called."""

    def __init__(self, call: Callable[..., Future[Any]]) -> None:
        self._call = call

    def options(self, **_: object) -> _Method:
        return self

    def remote(self, *arguments: object) -> Any:
        answer = self._call(*arguments)
        return type("Reference", (), {"future": lambda self: answer})()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[room.Hosts]:
    """Two of one place each, which do not run."""
    monkeypatch.setattr(room, "kill_actor", lambda actor: None)
    monkeypatch.setattr(room, "nodes", lambda: [Node(name, name, 1, 0) for name in "ab"])
    monkeypatch.setattr(room.Hiring, "hire", lambda self, node: Member(node, Actor(), FACTS, 1))
    monkeypatch.setattr(room.Hosts, "_watch", lambda self: None)  # nobody is replaced
    made = room.Hosts(Fake(), lambda node: True, lambda node: 0, lambda found: lambda one: True)
    yield made
    made.close()


def begun(hosts: room.Hosts, job: Job) -> list[Any]:
    """What comes of a job that a thread waits for."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(hosts.run(job))
        except room.Poisonous as error:
            found.append(error)

    threading.Thread(target=work, daemon=True).start()
    wait_until(lambda: job.asked and job.asked[0].member.actor.asked)  # the member is noted before it is asked
    return found


def a_job() -> Job:
    return Job(lambda actor, number: actor.verify.remote(number))


def test_the_first_answer_wins_and_the_other_is_called_off(hosts: room.Hosts) -> None:
    job = a_job()
    found = begun(hosts, job)
    first = job.asked[0].member
    (second,) = (member for member in hosts.members if member is not first)
    hosts._doubt(first)
    wait_until(lambda: second.actor.asked)
    assert hosts.hedged == 1 and second.jobs == {job}
    second.actor.answer("second")
    wait_until(lambda: found)
    assert found == [("second", second)]
    assert first.actor.called_off == list(first.actor.asked) and not second.actor.called_off
    first.actor.answer("late")  # nobody's
    assert not first.silent and not first.jobs, "it is believed again, and free"
    other = a_job()
    answers = begun(hosts, other)
    other.asked[0].member.actor.answer("of the other job")
    wait_until(lambda: answers)
    assert answers[0][0] == "of the other job" and len(found) == 1


def test_one_that_comes_back_first_is_heard(hosts: room.Hosts) -> None:
    job = a_job()
    found = begun(hosts, job)
    first = job.asked[0].member
    hosts._doubt(first)
    wait_until(lambda: len(job.asked) == 2)
    first.actor.answer("first")
    wait_until(lambda: found)
    assert found == [("first", first)] and not any(member.jobs for member in hosts.members)


def test_a_job_that_silences_hosts_does_not_go_from_one_to_the_next(hosts: room.Hosts) -> None:
    hosts._admit([Member(Node("c", "c", 1, 0), Actor(), FACTS, 1)])
    job = a_job()
    found = begun(hosts, job)
    for count in (1, 2):
        wait_until(lambda count=count: len(job.asked) == count)
        hosts._doubt(job.asked[-1].member)
    (third,) = (member for member in hosts.members if not member.silent)
    time.sleep(0.1)  # whoever asks a third does so by now
    assert not third.jobs
    for asking in list(job.asked):
        hosts._lose(asking.member, "given up")
    wait_until(lambda: third.jobs)
    assert (job.losses, job.strikes) == (2, 1)  # of the second it was the only suspect
    hosts._lose(third, "given up")
    wait_until(lambda: found)
    assert isinstance(found[0], room.Poisonous)


def test_fresh_jobs_make_way_for_those_of_a_silent_host(hosts: room.Hosts) -> None:
    """However many there are: with a thread for each, as a stream has them, that of the place asks for it first."""
    doubtful, other = a_job(), a_job()
    found, rest = begun(hosts, doubtful), begun(hosts, other)
    silent, busy = doubtful.asked[0].member, other.asked[0].member
    hosts._doubt(silent)
    wait_until(lambda: hosts._waiting)
    busy.jobs.clear()  # a place is free, and nobody who waits has been told
    fresh = a_job()
    latecomer: list[Any] = []
    threading.Thread(target=lambda: latecomer.append(hosts.run(fresh)[0]), daemon=True).start()
    wait_until(lambda: busy.jobs)
    assert busy.jobs == {doubtful} and not fresh.asked
    busy.actor.answer("doubtful")
    wait_until(lambda: found and fresh.asked)
    busy.actor.answer("fresh")
    wait_until(lambda: latecomer)
    assert (found[0][0], latecomer, rest) == ("doubtful", ["fresh"], [])


def test_what_comes_of_an_earlier_asking_is_nobodys(hosts: room.Hosts) -> None:
    """A job may be asked again, as where a host's machinery failed on it: also of one that called it off before."""
    job = a_job()
    found = begun(hosts, job)
    first = job.asked[0].member
    hosts._doubt(first)
    wait_until(lambda: len(job.asked) == 2)
    second = job.asked[1].member
    second.actor.answer("its machinery failed")
    wait_until(lambda: found)
    again = begun(hosts, job)
    (called_off,) = first.actor.asked.values()
    called_off.set_exception(Cancelled())
    time.sleep(0.1)  # whoever takes it for an answer does so by now
    assert not again
    job.asked[0].member.actor.answer("right")
    wait_until(lambda: again)
    assert again[0][0] == "right"


def test_a_loss_that_is_told_twice_is_one(hosts: room.Hosts) -> None:
    """By Ray, and by whoever of its jobs hears of it first."""
    job = a_job()
    found = begun(hosts, job)
    first = job.asked[0].member
    (second,) = (member for member in hosts.members if member is not first)
    (asked,) = first.actor.asked.values()
    asked.set_exception(RayActorError())
    wait_until(lambda: second.actor.asked)
    second.actor.answer("second")
    wait_until(lambda: found)
    assert found == [("second", second)] and (hosts.lost, job.losses) == (1, 1)


def test_who_says_nothing_is_doubted_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "SILENT_S", 3.0)
    monkeypatch.setattr(listening, "GIVEN_UP_S", 45.0)
    monkeypatch.setattr(listening.Pulses, "_listen", lambda self: None)
    quick, slow, gone = (Member(Node(name, name, 1, 0), Actor(), FACTS, 1, heard=100.0) for name in ("q", "s", "g"))
    doubted: list[Member] = []
    lost: list[tuple[Member, str]] = []

    def doubt(member: Member) -> None:
        member.silent = True
        doubted.append(member)

    pulses = Pulses(lambda: [quick, slow, gone], doubt, lambda member, why: lost.append((member, why)))
    pulses.look(100.5)
    assert not quick.actor.pulses, "it has just been heard of"
    pulses.look(101.5)
    quick.actor.pulses[0].set_result(None)
    quick.heard = 103.0  # by the clock of this test
    gone.actor.pulses[0].set_exception(RayActorError())
    pulses.look(103.5)
    assert doubted == [slow, gone] and [member for member, _ in lost] == [gone]
    pulses.look(104.5)
    assert len(slow.actor.pulses) == 1 and len(quick.actor.pulses) == 2, "one question at a time"
    assert doubted == [slow, gone]
    pulses.look(146.0)
    assert (slow, "nothing was heard of it for 46 s") in lost
    pulses.close()


@pytest.mark.slow  # hosts start and one is stopped for seconds, and replaced
def test_a_process_that_hangs_is_replaced(cluster: RayNodes, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which Ray never says that it is lost."""
    from dice.cluster.verifier import ClusterVerifier

    monkeypatch.setattr(listening, "SILENT_S", 2.0)
    monkeypatch.setattr(listening, "GIVEN_UP_S", 8.0)
    with ClusterVerifier(cluster.address, make=Fake(journal)) as hosts:
        found = []
        for count, one in enumerate(hosts.verify_many([pair(number, sleep=0.1) for number in range(60)])):
            found.append(one)
            if count == 10:
                stopped = at_work(hosts)[0]
                os.kill(stopped, signal.SIGSTOP)
        assert numbers(found) == {number: number for number in range(60)}
        assert all(verdict.correct for _, verdict in found)
        wait_until(lambda: hosts.hosts_lost and hosts.default_workers == 4)
        wait_until(lambda: stopped not in cluster.actors())
        again = list(hosts.verify_many([pair(number) for number in range(100, 140)]))
        assert numbers(again) == {number: 100 + number for number in range(40)}


@pytest.mark.slow  # nodes start, hosts, and spares for them
def test_a_spare_stands_in_with_the_gpus_of_the_lost_one_which_nobody_gets_in_between(journal: Path) -> None:
    import ray

    from dice.cluster.verifier import ClusterVerifier

    with (
        RayNodes(2, environment={"PYTHONPATH": str(ROOT)}, gpus=True) as nodes,
        ClusterVerifier(nodes.address, make=Fake(journal)) as hosts,
    ):
        before = {member.node.id: member for member in hosts._hosts.members}
        assert sorted(str(member.facts.devices) for member in before.values()) == ["0", "1"]
        wait_until(lambda: len(nodes.actors()) == 4 and not hosts._hosts._busy)
        stranger = ray.remote(num_gpus=1)(lambda: "has a GPU").remote()
        started = set(nodes.actors())
        os.kill(at_work(hosts)[0], signal.SIGKILL)
        wait_until(lambda: hosts.hosts_lost == 1 and len(hosts._hosts.members) == 2)
        assert set(at_work(hosts)) <= started, "nobody waited for a process to start"
        for member in hosts._hosts.members:
            sees = member.actor.__ray_call__.remote(lambda actor: os.environ["CUDA_VISIBLE_DEVICES"])
            assert ray.get(sees) == member.facts.devices == before[member.node.id].facts.devices
        assert not ray.wait([stranger], timeout=1)[0]
        found = list(hosts.verify_many([pair(number) for number in range(40)]))
        assert numbers(found) == {number: number for number in range(40)}


@pytest.mark.slow  # nodes with networks of their own start
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_node_whose_network_is_cut_and_healed(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every packet is dropped without a word; what the node says when it is back is nobody's."""
    from dice.cluster.verifier import ClusterVerifier

    monkeypatch.setattr(listening, "SILENT_S", 3.0)
    with RayMachines(2, environment={"PYTHONPATH": str(ROOT)}) as machines:
        with ClusterVerifier(machines.address, make=Fake(journal)) as hosts:
            found = []
            for count, one in enumerate(hosts.verify_many([pair(number, sleep=0.5) for number in range(40)])):
                found.append(one)
                if count == 10:
                    machines.cut(1)
            assert numbers(found) == {number: number for number in range(40)}
            assert all(verdict.correct for _, verdict in found)
            assert hosts._hosts.hedged == 2 and not hosts.hosts_lost
            machines.heal(1)
            wait_until(lambda: not any(member.silent for member in hosts._hosts.members))
            again = list(hosts.verify_many([pair(number, sleep=0.1) for number in range(100, 140)]))
            assert numbers(again) == {number: 100 + number for number in range(40)}
            assert len({verdict.message.split()[1] for _, verdict in again}) == 1
        both = [number for number in range(40) if lines(journal, "begun").count(number) == 2]
        assert len(both) == 2, "what was under way at the cut was begun twice"
