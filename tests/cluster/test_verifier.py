"""The driver with hosts that only pretend to verify: who gets what, and that nothing is lost or counted twice."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import RayNodes, at_work

from dice.cluster.connect import nodes
from dice.errors import MachineError, UserError
from dice.problem import Problem
from dice.verify.stream import WINDOW
from tests.cluster.conftest import NODES
from tests.cluster.fakes import PROBLEM, Fake, lines, numbers, pair, wait_until
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cluster")  # they share the nodes
PLACES = 2 * NODES
SAME_WAY = pytest.mark.slow  # hosts start for each case, and are refused in one place


def verifier(cluster: RayNodes, *, make: Fake, **settings: object):  # type: ignore[no-untyped-def]
    from dice.cluster.verifier import ClusterVerifier

    return ClusterVerifier(cluster.address, make=make, **settings)  # type: ignore[arg-type]


def test_every_pair_gets_its_own_verdict_which_says_where(cluster: RayNodes, journal: Path) -> None:
    with verifier(cluster, make=Fake(journal)) as hosts:
        found = list(hosts.verify_many(itertools.chain(map(pair, range(60)), map(pair, range(10)))))
        assert numbers(found) == {index: index % 60 for index in range(70)}
        assert {verdict.host for _, verdict in found} == {os.uname().nodename}
        assert sorted(lines(journal, "ended")) == list(range(60))  # equal pairs once
        ordered = [index for index, _ in hosts.verify_many(map(pair, range(100, 130)), ordered=True)]
        assert ordered == list(range(30))
        assert hosts.verify(*pair(7)).correct
        assert [fault and fault.message for fault in hosts.find_faults([PROBLEM])] == ["fake is unfit"]
        assert hosts.default_workers == PLACES


def test_an_endless_source_is_read_as_there_is_room_and_leaving_calls_off(cluster: RayNodes, journal: Path) -> None:
    read = itertools.count()
    taken = 0

    def endless() -> Iterator[object]:
        nonlocal taken
        for number in read:
            taken = number + 1
            yield pair(number, sleep=PATIENCE_S if number else 0)

    with verifier(cluster, make=Fake(journal)) as hosts:
        stream = hosts.verify_many(endless(), 2 * PLACES)  # so that some wait for a place
        next(stream)
        wait_until(lambda: len(lines(journal, "begun")) == 1 + PLACES)
        time.sleep(0.2)  # whoever reads too much does so by now
        assert taken <= 1 + WINDOW * 2 * PLACES + 1
        assert [len(member.jobs) for member in hosts._hosts.members] == [2, 2]  # no host has more than its places
        stream.close()
        # However often: a host that is silent on a busy machine is taken for lost, and its job is begun anew.
        wait_until(lambda: {*lines(journal, "called_off")} == {*lines(journal, "begun")} - {0})


def nodes_of(cluster: RayNodes) -> list[str]:
    from dice.cluster.connect import connect

    connect(cluster.address)
    return [node.id for node in nodes()]


def test_a_lost_process_loses_no_job(cluster: RayNodes, journal: Path) -> None:
    with verifier(cluster, make=Fake(journal)) as hosts:
        found = []
        for count, one in enumerate(hosts.verify_many([pair(number, sleep=0.05) for number in range(40)])):
            found.append(one)
            if count == 15:
                os.kill(at_work(hosts)[0], signal.SIGKILL)
        assert numbers(found) == {number: number for number in range(40)}
        assert all(verdict.correct for _, verdict in found)
        assert hosts.hosts_lost == 1
        wait_until(lambda: hosts.default_workers == PLACES)  # both work again


@pytest.mark.slow  # Ray takes seconds to know of a lost node, and to start one
def test_a_lost_node_loses_no_job_and_one_that_joins_works(cluster: RayNodes, journal: Path) -> None:
    with verifier(cluster, make=Fake(journal)) as hosts:
        found = []
        for count, one in enumerate(hosts.verify_many([pair(number, sleep=0.05) for number in range(60)])):
            found.append(one)
            if count == 10:
                cluster.kill_node(-1)
        assert numbers(found) == {number: number for number in range(60)}
        assert all(verdict.correct for _, verdict in found)
        wait_until(lambda: hosts.default_workers == PLACES - 2)
        cluster.add()
        wait_until(lambda: hosts.default_workers == PLACES)


@pytest.mark.slow  # three processes of hosts start anew; who is suspected is tested without them, below
def test_a_pair_that_ends_its_hosts_is_set_aside_and_takes_no_other_with_it(cluster: RayNodes, journal: Path) -> None:
    pairs = [pair(number, sleep=0.05) for number in range(20)]
    pairs.insert(5, pair(99, die="always"))
    with verifier(cluster, make=Fake(journal)) as hosts:
        found = dict(hosts.verify_many(pairs))
    poisonous = found.pop(5)
    assert poisonous.outcome == "infra_error" and "was lost 3 times" in poisonous.message
    assert len(found) == 20 and all(verdict.correct for verdict in found.values())
    assert lines(journal, "begun").count(99) == 3


def test_suspects_become_fewer_with_each_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all jobs of a host that is lost each may be why; then the few of them on the next; then one alone."""
    from dice.cluster import hosts as room
    from dice.cluster.connect import Node
    from dice.cluster.host import HostFacts, Kind
    from dice.cluster.job import Job

    monkeypatch.setattr(room, "kill_actor", lambda actor: None)
    monkeypatch.setattr(room, "nodes", lambda: [Node(name, name, 8, 0) for name in "ab"])
    facts = HostFacts("host", Kind("emulated", "CPU", "g++", "2", "1"), 1, ())
    monkeypatch.setattr(room.Hiring, "hire", lambda self, node: room.Member(node, None, facts, node.cpus))
    hosts = room.Hosts(Fake(), lambda node: True, lambda node: 0, lambda found: lambda one: True)
    jobs = [Job(lambda actor, number: None) for _ in range(9)]
    a, b = hosts.members
    a.jobs.update(jobs[:8])
    hosts._lose(a, "told by one")
    hosts._lose(a, "told by the other")
    assert [job.losses for job in jobs] == [1] * 8 + [0]
    b.jobs.update(jobs[:2])  # a quarter of its places
    assert hosts._choose(jobs[2]) is None and hosts._choose(jobs[8]) is b
    b.jobs.add(jobs[8])
    hosts._lose(b, "again")
    assert [job.losses for job in jobs] == [2, 2] + [1] * 6 + [0] and not any(job.strikes for job in jobs)
    hosts._admit([room.Member(Node("c", "c", 8, 0), None, facts, 8)])
    (c,) = hosts.members[-1:]
    c.jobs.update((jobs[0], jobs[8]))
    assert not c.may_have(jobs[1]) and not c.may_have(jobs[2])  # it has the suspicion to itself
    hosts._lose(c, "and again")
    assert (jobs[0].losses, jobs[0].strikes) == (3, 1) and jobs[8].losses == 0
    hosts.close()


def test_a_host_that_fails_rests_and_what_is_too_large_goes_to_the_largest(cluster: RayNodes, journal: Path) -> None:
    odd = nodes_of(cluster)[0]
    with verifier(cluster, make=Fake(journal, odd=odd, oddity="memory")) as hosts:
        large = [pair(100 + number, Problem("# large"), outcome="unsupported", only="usual") for number in range(20)]
        found = list(hosts.verify_many(large, 2))
        assert {verdict.message.split()[1] for _, verdict in found} == {"odd"}
        tried = [line for line in journal.read_text().splitlines() if line.endswith("begun usual")]
        assert len(tried) <= 2  # those that were under way before anybody knew

        journal.unlink()
        assert hosts.verify(*pair(99, outcome="infra_error", only="odd")).correct  # the odd one is asked first
        pairs = [pair(number, sleep=0.05, outcome="infra_error", only="odd") for number in range(30)]
        found = list(hosts.verify_many(pairs))
    assert all(verdict.correct for _, verdict in found)
    tried = [line for line in journal.read_text().splitlines() if line.endswith("begun odd")]
    assert 3 <= len(tried) <= 4  # the third sends it to rest, with one more under way


@pytest.mark.slow  # two drivers start, and hosts for each
def test_the_driver_keeps_verdicts_and_goes_on_where_it_was_killed(cluster: RayNodes, tmp_path: Path) -> None:
    journal, cache = tmp_path / "journal", tmp_path / "verdicts.sqlite"
    script = (
        "import sys; from pathlib import Path; from dice.cluster.verifier import ClusterVerifier\n"
        "from tests.cluster.fakes import Fake, pair\n"
        f"hosts = ClusterVerifier({cluster.address!r}, make=Fake(Path({str(journal)!r})), cache=Path({str(cache)!r}))\n"
        "for index, verdict in hosts.verify_many([pair(number, sleep=0.05) for number in range(60)]):\n"
        "    print(index, verdict.message.split()[0], flush=True)\n"
        "hosts.close()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        for _ in range(20):
            driver.stdout.readline()
        driver.kill()
    wait_until(lambda: not cluster.actors())  # hosts end with their driver
    verified = len(lines(journal, "ended"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(int(line.split()[0]) for line in done.stdout.splitlines()) == list(range(60))
    assert all(index == number for index, number in map(str.split, done.stdout.splitlines()))
    again = len(lines(journal, "ended")) - verified
    assert again <= 60 - 20  # those that were handed out are not verified again


@pytest.mark.parametrize(
    ("oddity", "said"),
    [
        ("toolchain", r"The hosts differ, so their verdicts and times do too \(.*g\+\+ 9.*--mixed-hosts"),
        pytest.param("code", r"runs another DICE \(verifier another", marks=SAME_WAY),
        pytest.param("sandbox", r"could reach Ray and run anything.*RAY_AUTH_MODE=token", marks=SAME_WAY),
    ],
)
def test_hosts_that_would_spoil_results_are_refused(
    cluster: RayNodes, oddity: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = nodes_of(cluster)[0]
    with pytest.raises(MachineError, match=said):
        verifier(cluster, make=Fake(odd=odd, oddity=oddity))
    wait_until(lambda: not cluster.actors())
    if oddity == "toolchain":
        with verifier(cluster, make=Fake(odd=odd, oddity=oddity), mixed=True) as hosts:
            assert {kind.toolchain for kind in hosts.kinds} > {"g++ 9"}


def test_hosts_whose_cores_others_have_are_named(cluster: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    nodes_of(cluster)
    taken = placement_group([{"CPU": 1.0}] * NODES, strategy="STRICT_SPREAD")
    try:
        ray.get(taken.ready())
        monkeypatch.setattr("dice.cluster.hiring.PLACE_S", 0.5)
        with pytest.raises(MachineError, match="can verify: .*: other work of the cluster has its cores or GPUs"):
            verifier(cluster, make=Fake())
    finally:
        remove_placement_group(taken)


@pytest.mark.slow
def test_several_drivers_each_take_a_part_of_the_hosts(cluster: RayNodes) -> None:
    with (
        verifier(cluster, make=Fake(), part=(0, 2)) as first,
        verifier(cluster, make=Fake(), part=(1, 2)) as second,
    ):
        assert (first.default_workers, second.default_workers) == (2, 2)
    with pytest.raises(UserError, match="3 processes verify on a cluster of 2 nodes"):
        verifier(cluster, make=Fake(), part=(0, 3))


@pytest.mark.slow
def test_no_thread_is_left(cluster: RayNodes) -> None:
    before = set(threading.enumerate())
    with verifier(cluster, make=Fake()) as hosts:
        assert len(list(hosts.verify_many(map(pair, range(5))))) == 5
    wait_until(lambda: not {one for one in set(threading.enumerate()) - before if one.name.startswith("cluster")})
    wait_until(lambda: not cluster.actors())
