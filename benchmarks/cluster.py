"""The driver of a cluster with hosts that only pretend to verify: its overhead, how it scales, what losing hosts costs.

    PYTHONPATH=.:benchmarks python benchmarks/cluster.py [--out FILE.json] [--nodes 4] [--jobs 3000]

Ray's processes are real, several nodes on one machine; a fake job sleeps and answers, so that cores do not matter.
Every part is run by itself; results go to benchmarks/cluster/<host>.json as they come.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_nodes import RayNodes, at_work
from rich.console import Console

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.sandbox.cancel import Cancellation

HERE = Path(__file__).parent / "cluster"
PROBLEM = Problem("# as long as a problem is\n" + "x = 1  # a line of it\n" * 80, "fake")
SOURCE = "# as long as a kernel is\n" + "y = 2  # a line of one\n" * 200
CUT_S = 10.0  # seconds that a node's network is cut
WARM_S = 20.0  # seconds that a cluster is there before it is measured: a run that lasts has spares by then
PLACES = 16  # jobs at once on a node, as on a host of 16 cores
Pair = tuple[Problem, Kernel]


@dataclass(frozen=True)
class Sleeper:
    """Makes a verifier whose jobs take as long as their kernels' first line says. `journal`: gets a line with the
    number of each job that has ended."""

    journal: Path | None = None

    def __call__(self, cores: int) -> Verifier:
        return _Sleeping(self.journal)


class _Sleeping(Verifier):
    def __init__(self, journal: Path | None) -> None:
        self._journal = journal
        self.backend = "emulated"
        self.options = Options()

    def lacking(self) -> tuple[str, ...]:
        return ()

    def verify(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options | None = None,
        *,
        workers: int = 1,
        on_stage: Callable[[str], None] = lambda stage: None,
        cancellation: Cancellation | None = None,
    ) -> Verdict:
        first = json.loads(kernel.source.partition("\n")[0])
        time.sleep(first["sleep"])
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(f"{first['number']}\n")
        outcome = first.get("outcome", "correct")
        return Verdict(outcome, "done", str(first["number"]), errors=("an error of usual length " * 8,))


def jobs(seconds: list[float]) -> Iterator[Pair]:
    for number, one in enumerate(seconds):
        yield PROBLEM, Kernel(f"{json.dumps({'number': number, 'sleep': one})}\n{SOURCE}")


def mix(count: int, mean: float) -> list[float]:
    """Times as verdicts take them: most near the mean, some several times as long; the same for every count."""
    draw = random.Random(7)
    return [min(draw.expovariate(1 / mean), 6 * mean) for _ in range(count)]


class Ledger:
    """Where the places of the nodes that live go while there is work: looked at now and then, in seconds of one place.

    `empty`: of a node without a host, or with one that has fewer jobs than places. `redone`: of jobs whose host was
    lost, or that another one answered first. `events`: when hosts fell silent, were heard again, or lost, in seconds
    from the first pair, among what `note` was told of.
    """

    def __init__(self, hosts: Any, source: Iterator[Pair]) -> None:
        self.empty = self.redone = 0.0
        self.nodes = len(hosts._hosts.members)
        self.verifier = hosts
        self._hosts, self._source, self._last = hosts._hosts, source, False
        self._begun: dict[Any, float] = {}  # askings under way
        self.events: list[tuple[float, str]] = []
        self._states: dict[Any, str] = {}
        self._start = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def pairs(self) -> Iterator[Pair]:
        self._start = time.monotonic()
        self._thread.start()
        yield from self._source
        self._last = True  # from now on places are empty since no work is left

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def note(self, what: str) -> None:
        self.events.append((round(time.monotonic() - self._start, 2), what))

    def between(self, first: str, then: str) -> list[float]:
        """Seconds from each `first` to the next `then`."""
        times = [[when for when, what in self.events if what == one] for one in (first, then)]
        return [round(min(later) - when, 2) for when in times[0] if (later := [one for one in times[1] if one >= when])]

    def _note_states(self) -> None:
        for member in {*self._states, *self._hosts.members}:
            state = "lost" if member.lost else "silent" if member.silent else "heard"
            if self._states.setdefault(member, "heard") != state:
                self._states[member] = state
                self.note(state)

    def _look(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.02):
            now = time.monotonic()
            self._note_states()
            askings = {one for member in self._hosts.members for job in list(member.jobs) for one in list(job.asked)}
            mine = {one for one in askings if one.member in self._hosts.members and not one.member.silent}
            if not self._last:
                self.empty += max(0, PLACES * self.nodes - len(mine)) * (now - before)
            for gone in self._begun.keys() - askings:
                begun = self._begun.pop(gone)
                self.redone += (now - begun) if gone.member.lost or gone.member.silent else 0.0
            for fresh in askings - self._begun.keys():
                self._begun[fresh] = now
            before = now


def run(
    nodes: int,
    seconds: list[float],
    disturb: Callable[[RayNodes, Ledger, threading.Event], None] | None = None,
    cluster_of: type[RayNodes] = RayNodes,
) -> Any:
    """All jobs through a cluster: seconds of wall and of the driver's CPU, and how often each was answered."""
    from dice.cluster.verifier import ClusterVerifier

    root = Path(__file__).parent.parent
    path = {"PYTHONPATH": f"{root}:{Path(__file__).parent}"}
    with cluster_of(nodes, cpus=PLACES, environment=path) as cluster:  # noqa: SIM117
        with ClusterVerifier(cluster.address, backend="emulated", make=Sleeper()) as hosts:
            list(hosts.verify_many(jobs([0.0] * 200)))  # connections are made
            time.sleep(WARM_S)
            over, ledger = threading.Event(), Ledger(hosts, jobs(seconds))
            if disturb is not None:
                threading.Thread(target=disturb, args=(cluster, ledger, over), daemon=True).start()
            begun, cpu = time.monotonic(), time.process_time()
            answers = Counter(
                int(verdict.message) if verdict.correct else -1 for _, verdict in hosts.verify_many(ledger.pairs())
            )
            wall, used = time.monotonic() - begun, time.process_time() - cpu
            over.set()
            ledger.close()
            lost_hosts, hedged = hosts.hosts_lost, hosts.jobs_hedged
            noticed = ledger.between("killed", "lost")
            cut = {
                "until_doubted_s": ledger.between("cut", "silent"), "until_heard_s": ledger.between("cut", "heard")
            }  # fmt: skip
    return {
        "nodes": nodes, "places": PLACES * nodes, "jobs": len(seconds), "wall_s": round(wall, 2),
        "driver_cpu_s": round(used, 2), "sleep_s": round(sum(seconds), 1), "hosts_lost": lost_hosts,
        "asked_twice_in_doubt": hedged, "places_empty_s": round(ledger.empty / PLACES / nodes, 2),
        "redone_s": round(ledger.redone / PLACES / nodes, 2),
        "not_answered": sum(number not in answers for number in range(len(seconds))),
        "answered_twice": sum(count > 1 for number, count in answers.items() if number >= 0),
        "set_aside": answers[-1],
        **({"until_noticed_s": noticed} if noticed else {}),
        **(cut if cut["until_doubted_s"] else {}),
    }  # fmt: skip


def overhead(nodes: int, count: int) -> Any:
    """Fake work that takes no time: what is left is the driver, Ray, and the hosts' own processes."""
    found = [run(nodes, [0.0] * count) for _ in range(3)]
    wall = statistics.median(one["wall_s"] for one in found)
    cpu = statistics.median(one["driver_cpu_s"] for one in found)
    return {
        "runs": found, "verdicts_per_minute": round(60 * count / wall), "ms_a_verdict": round(1000 * wall / count, 3),
        "driver_cpu_ms_a_verdict": round(1000 * cpu / count, 3),
    }  # fmt: skip


def scaling(nodes: int, count: int, mean: float) -> Any:
    """The same sleeping mix for each node, on one node and on several."""
    one = run(1, mix(count, mean))
    many = run(nodes, [seconds for seconds in mix(count, mean) for _ in range(nodes)])
    return {"one": one, "many": many, "share_of_linear": round(one["wall_s"] / many["wall_s"], 4)}


def losses(nodes: int, count: int, mean: float) -> Any:
    """Actors and a node are killed at random moments while the mix runs; the same without."""
    seconds = mix(count, mean)
    calm = run(nodes, seconds)
    node_lost: list[float] = []  # seconds after the beginning

    def disturb(cluster: RayNodes, ledger: Ledger, over: threading.Event) -> None:
        draw, begun = random.Random(11), time.monotonic()
        for kill in range(4):
            if over.wait(calm["wall_s"] / 5 * draw.uniform(0.7, 1.0)):
                return
            if kill == 2:
                cluster.kill_node(-1)  # and it does not come back
                ledger.nodes -= 1
                node_lost.append(time.monotonic() - begun)
            else:
                os.kill(draw.choice(at_work(ledger.verifier)), signal.SIGKILL)
            ledger.note("killed")

    disturbed = run(nodes, seconds, disturb)
    # What the missing node would have done until the end, done by the others.
    share = (calm["wall_s"] - node_lost[0]) / (nodes - 1)
    return {
        "calm": calm, "disturbed": disturbed, "killed": "3 processes of hosts, 1 node of them",
        "node_share_s": round(share, 2), "beyond_share": round(disturbed["wall_s"] / (calm["wall_s"] + share) - 1, 4),
    }  # fmt: skip


def cuts(nodes: int, count: int, mean: float) -> Any:
    """A node's network is cut while the mix runs, and healed ten seconds later; the same without. Only for root."""
    from ray_machines import RayMachines, why_not

    if why := why_not():
        return {"not_run": why}
    seconds = mix(count, mean)
    calm = run(nodes, seconds, cluster_of=RayMachines)

    def disturb(cluster: RayNodes, ledger: Ledger, over: threading.Event) -> None:
        assert isinstance(cluster, RayMachines)
        if not over.wait(calm["wall_s"] / 4):
            cluster.cut(nodes - 1)
            ledger.note("cut")
            over.wait(CUT_S)
            cluster.heal(nodes - 1)

    disturbed = run(nodes, seconds, disturb, RayMachines)
    share = CUT_S / nodes  # the missing node's work, done by all in the end
    return {
        "calm": calm, "disturbed": disturbed, "cut_s": CUT_S, "node_share_s": round(share, 2),
        "beyond_share": round(disturbed["wall_s"] / (calm["wall_s"] + share) - 1, 4),
    }  # fmt: skip


def drive(address: str, cache: Path, count: int, mean: float) -> None:
    """The driver alone, in a process of its own: prints the number of each job as its verdict is handed out."""
    from dice.cluster.verifier import ClusterVerifier

    with ClusterVerifier(address, backend="emulated", make=Sleeper(), cache=cache) as hosts:
        for number, _ in hosts.verify_many(jobs(mix(count, mean))):
            print(number, flush=True)


def driver(nodes: int, count: int, mean: float) -> Any:
    """The driver is killed when half is done and started again; the same without."""
    root = Path(__file__).parent.parent
    path = {"PYTHONPATH": f"{root}:{Path(__file__).parent}"}
    rows: list[Any] = []
    for kills in (False, True):
        with RayNodes(nodes, cpus=PLACES, environment=path) as cluster, tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable, __file__, "--drive", cluster.address, "--cache", f"{folder}/verdicts.sqlite",
                "--jobs", str(count), "--mean", str(mean),
            ]  # fmt: skip
            begun, killed, first = time.monotonic(), 0.0, 0.0
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
                assert run.stdout is not None
                found = [int(line) for line in itertools.islice(run.stdout, count // 2 if kills else None)]
                if kills:
                    killed = time.monotonic()
                    run.kill()
            told = set(found)
            if kills:
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
                    assert run.stdout is not None
                    found = []
                    for line in run.stdout:
                        found.append(int(line))
                        if not first and found[-1] not in told:
                            first = time.monotonic()
            rows.append({
                "wall_s": round(time.monotonic() - begun, 2), "answered": len(found), "different": len(set(found)),
                "until_the_first_new_verdict_s": round(first - killed, 2) if kills else None,
            })  # fmt: skip
    return {"calm": rows[0], "killed_at_half": rows[1], "beyond_s": round(rows[1]["wall_s"] - rows[0]["wall_s"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / f"{platform.node()}.json")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--mean", type=float, default=0.5, help="seconds that a job sleeps, on average")
    parser.add_argument("--parts", nargs="*", default=["overhead", "scaling", "losses", "driver", "cuts"])
    parser.add_argument("--drive", metavar="ADDRESS", help="be the driver that the part `driver` kills")
    parser.add_argument("--cache", type=Path, help="where it keeps verdicts")
    args = parser.parse_args()
    if args.drive:
        drive(args.drive, args.cache, args.jobs, args.mean)
        return
    parts: dict[str, Callable[[], Any]] = {
        "overhead": lambda: overhead(args.nodes, args.jobs),
        "scaling": lambda: scaling(args.nodes, args.jobs // args.nodes, args.mean),
        "losses": lambda: losses(args.nodes, args.jobs, args.mean),
        "driver": lambda: driver(args.nodes, args.jobs, args.mean),
        "cuts": lambda: cuts(args.nodes, args.jobs, args.mean),
    }
    import ray

    args.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    results["machine"] = {
        "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
        "ray": ray.__version__,
    }  # fmt: skip
    for name in args.parts:
        load = os.getloadavg()[0]
        results[name] = parts[name]() | {"load_before": round(load, 1)}
        args.out.write_text(json.dumps(results, indent=1) + "\n")
        Console().print(name, results[name])


if __name__ == "__main__":
    main()
