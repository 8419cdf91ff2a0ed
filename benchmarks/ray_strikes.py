"""One run of mixed jobs in which all is struck that can be, at random: hosts, a node, a node's network, the driver.

    PYTHONPATH=.:benchmarks python benchmarks/ray_strikes.py --seed 1 [--jobs 3000] [--out FILE.json]

Ray, the driver and the strikes are real; hosts only pretend to verify. What is struck, and after how many verdicts, is
the seed's. The driver is a process of its own, which is killed and started again. Networks are for root (see
`ray_machines.py`); without them nothing is cut. Every verdict says which job it is of and how that came out, and every
host notes what it has done, so that nothing can be lost, mixed up or counted twice unseen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import PROBLEM, SOURCE, Pair, Sleeper, mix
from ray_machines import RayMachines, why_not
from ray_nodes import RayNodes

from dice.kernel import Kernel

HERE = Path(__file__).parent / "cluster"
OUTCOMES = ("correct", "wrong", "compile_error", "deceptive", "timeout", "runtime_error")
STRIKES = ("host", "driver", "host", "cut", "node")
HEAL_S = 10.0  # seconds from the cut of a network until it is healed
POLL_S = 0.1
PATIENCE_S = 600.0


def outcome(number: int) -> str:
    """What comes of a job."""
    return OUTCOMES[number * 7919 % len(OUTCOMES)]


def jobs(count: int, mean: float) -> Iterator[Pair]:
    for number, seconds in enumerate(mix(count, mean)):
        first = {"number": number, "sleep": seconds, "outcome": outcome(number)}
        yield PROBLEM, Kernel(f"{json.dumps(first)}\n{SOURCE}")


def drive(address: str, folder: Path, count: int, mean: float) -> None:
    """The driver: prints each job with its verdict, as that is handed out."""
    from dice.cluster.verifier import ClusterVerifier

    make, cache = Sleeper(folder / "journal"), folder / "verdicts.sqlite"
    with ClusterVerifier(address, backend="emulated", make=make, cache=cache) as hosts:
        for number, verdict in hosts.verify_many(jobs(count, mean)):
            print(number, verdict.message.partition(" ")[0], verdict.outcome, flush=True)


@dataclass
class Run:
    """What is told of the jobs, and what is done to who does them. `nodes`: places of those that are alive."""

    cluster: RayNodes
    command: Sequence[str]
    folder: Path
    draw: random.Random
    answers: dict[int, int] = field(default_factory=Counter)  # by job, how often the driver at work told of it
    told: set[int] = field(default_factory=set)  # by any driver
    mixed_up: int = 0
    struck: list[Any] = field(default_factory=list)
    _done_before: Counter[int] = field(default_factory=Counter)  # of the jobs told of, as the last driver was killed
    _lines: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _heal: tuple[float, int] | None = None

    def run(self, plan: Sequence[tuple[int, str]]) -> int:
        """The driver's exit code. `plan`: after how many verdicts which strike."""
        self.nodes = list(range(len(self.cluster.nodes)))
        left, driver = list(plan), self._start()
        while True:
            self._heal_in_time()
            if left and len(self.told) >= left[0][0]:
                driver = self._strike(*left.pop(0), driver)
            try:
                line = self._lines.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if line is None:
                return driver.wait()
            self._take(line)

    def _take(self, line: str) -> None:
        number, answered, came = line.split()
        self.mixed_up += number != answered or came != outcome(int(number))
        self.answers[int(number)] += 1
        self.told.add(int(number))

    def _strike(self, at: int, what: str, driver: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """The driver from now on."""
        if what == "driver":
            driver.kill()
            driver.wait()
            while (line := self._lines.get()) is not None:  # what it has told of
                self._take(line)
            done = self.done()
            self.answers.clear()
            self._done_before = Counter({number: done[number] for number in self.told})
            driver = self._start()
        elif what == "host":
            os.kill(self.draw.choice(self._at_work()), signal.SIGKILL)
        else:
            place = self.draw.choice([one for one in self.nodes if self._heal is None or one != self._heal[1]])
            if what == "node":
                self.nodes.remove(place)
                self.cluster.kill_node(place)
            else:
                assert isinstance(self.cluster, RayMachines)
                self.cluster.cut(place)
                self._heal = time.monotonic() + HEAL_S, place
        self.struck.append({"after": at, "what": what})
        return driver

    def done(self) -> Counter[int]:
        """How often hosts have done each job."""
        journal = self.folder / "journal"
        return Counter(map(int, journal.read_text().split())) if journal.exists() else Counter()

    def close(self) -> None:
        if self._heal is not None:
            self._heal = 0.0, self._heal[1]
            self._heal_in_time()

    def done_again(self) -> int:
        """Jobs that were done again although a driver that was killed had told of them."""
        done = self.done()
        return sum(done[number] > count for number, count in self._done_before.items())

    def _heal_in_time(self) -> None:
        if self._heal is not None and time.monotonic() >= self._heal[0]:
            assert isinstance(self.cluster, RayMachines)
            self.cluster.heal(self._heal[1])
            self._heal = None

    def _at_work(self) -> list[int]:
        """Processes of hosts, spares among them; waited for, since they may be starting."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.cluster.actors()):
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        return sorted(found)

    def _start(self) -> subprocess.Popen[str]:
        """A driver, of whose lines the last one is followed by None."""
        driver = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)

        def hear() -> None:
            for line in driver.stdout or ():
                if line.endswith("\n"):  # else it was killed over it
                    self._lines.put(line)
            self._lines.put(None)

        threading.Thread(target=hear, daemon=True).start()
        return driver


def struck(seed: int, count: int, mean: float, nodes: int, strikes: Sequence[str] = STRIKES) -> dict[str, Any]:
    """What came of a run with these strikes, in a random order at random moments; without any it is calm."""
    root, draw = Path(__file__).parent.parent, random.Random(seed)
    if why := why_not():
        strikes = [one for one in strikes if one != "cut"]
    path = {"PYTHONPATH": f"{root}:{Path(__file__).parent}"}
    moments = sorted(draw.sample(range(count // 20, count * 9 // 10), len(strikes)))
    plan = list(zip(moments, draw.sample(list(strikes), len(strikes)), strict=True))
    kind: type[RayNodes] = RayNodes if why else RayMachines
    with kind(nodes, cpus=16, environment=path) as cluster, tempfile.TemporaryDirectory() as folder:
        arguments = ["--drive", cluster.address, folder, "--jobs", str(count), "--mean", str(mean)]
        run = Run(cluster, [sys.executable, __file__, *arguments], Path(folder), draw)
        begun = time.monotonic()
        try:
            code = run.run(plan)
        finally:
            run.close()
        wall, done = time.monotonic() - begun, run.done()
    return {
        "seed": seed, "jobs": count, "nodes": nodes, "struck": run.struck, "not_cut": why, "exit_code": code,
        "wall_s": round(wall, 1), "not_answered": sum(number not in run.answers for number in range(count)),
        "answered_twice": sum(times > 1 for times in run.answers.values()), "mixed_up": run.mixed_up,
        "never_done": sum(number not in done for number in range(count)),
        "done_twice": sum(times > 1 for times in done.values()), "done_again_after_it_was_told": run.done_again(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="*", default=[1])
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--mean", type=float, default=0.5, help="seconds that a job sleeps, on average")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--out", type=Path, default=HERE / "strikes.json")
    parser.add_argument("--drive", nargs=2, metavar=("ADDRESS", "FOLDER"), help="be the driver")
    args = parser.parse_args()
    if args.drive:
        drive(args.drive[0], Path(args.drive[1]), args.jobs, args.mean)
        return
    results: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "system": platform.platform()}, "runs": []}
    for seed in args.seed:
        load = os.getloadavg()[0]
        calm = struck(seed, args.jobs, args.mean, args.nodes, ())["wall_s"]
        results["runs"].append(
            struck(seed, args.jobs, args.mean, args.nodes)
            | {"calm_wall_s": calm, "mean_s": args.mean, "load_before": round(load, 1)}
        )
        print(results["runs"][-1], flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
