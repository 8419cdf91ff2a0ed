"""Verdicts while responses are still being written; what our own faults cost is tried again, never held against them.

A verdict `infra_error` says that our machinery failed. Such pairs are verified again together with a control, a kernel
that is known to be right. Where the control gets its verdict the verifier works, and a pair that fails three times is
left without a verdict. Where the control fails too the verifier is broken, and everything waits for it to come back.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dice.errors import MachineError, UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.train.rl.config import RLConfig
from dice.train.session import Interrupted, Stop
from dice.train.world import World
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.fleet import RESIDENTS
from dice.verify.options import resolve_backend, visible_gpus
from dice.verify.process import MachineryError
from dice.verify.stream import Pair
from dice.verify.verdict_cache import FILE

AHEAD = 2  # pairs handed to the verifier for each worker
TRIES = 3
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
LISTEN_S = 0.2  # between two looks at whether the run is to end
CONTROL = -1


class VerifierDown(MachineError):
    """The verifier stayed broken; the message is one sentence."""


class Judging:
    """Pairs that are handed in one by one, and verified meanwhile by a thread of its own. Equal ones once."""

    def __init__(self, verifier: Verifier, workers: int, *, at_once: bool) -> None:
        """`at_once` False: verify nothing before the last pair is in, as something else is computed on the GPU."""
        self.pairs: dict[int, Pair] = {}
        self.verdicts: dict[int, Verdict] = {}
        self._verifier, self._workers = verifier, workers
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(
            AHEAD * workers
        )  # fewer than the stream reads ahead: calling off must not wait
        self._called_off = threading.Event()
        self._failure = ""
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)
        if at_once:
            self._thread.start()

    def put(self, key: int, problem: Problem, kernel: Kernel) -> None:
        self.pairs[key] = problem, kernel
        self._waiting.put(key)

    def close(self) -> None:
        """There are no more pairs."""
        self._waiting.put(None)
        if not self._thread.ident:
            self._thread.start()

    def call_off(self) -> None:
        """Kill what runs."""
        self._called_off.set()
        self._waiting.put(None)
        self._room.release()
        if self._thread.ident:
            self._thread.join()

    def wait(self, stopped: Stop) -> None:
        """Until all that can be known is in `verdicts`. Raises `Interrupted`, having called everything off."""
        while self._thread.is_alive():
            if stopped.is_set():
                self.call_off()
                stopped.check()
            self._thread.join(LISTEN_S)

    def faults(self) -> dict[int, Verdict]:
        """What has no verdict by our own fault, each with what says so."""
        lost = Verdict("infra_error", "infra", self._failure or "The verifier ended before its time.")
        found = {key: self.verdicts.get(key, lost) for key in self.pairs}
        return {key: verdict for key, verdict in found.items() if verdict.outcome == "infra_error"}

    def _work(self) -> None:
        order: list[int] = []

        def pairs() -> Iterator[Pair]:
            while True:
                self._room.acquire()
                key = self._waiting.get()
                if self._called_off.is_set():
                    raise Interrupted
                if key is None:
                    return
                order.append(key)
                yield self.pairs[key]

        try:
            for place, verdict in self._verifier.verify_many(pairs(), self._workers):
                self.verdicts[order[place]] = verdict
                self._room.release()
        except Interrupted:
            return
        except (MachineryError, MachineError, OSError) as error:
            self._failure = str(error)


@dataclass
class Judge:
    """The verifier, as training uses it. `faults` counts the verdicts that had to be tried again."""

    verifier: Verifier
    workers: int
    at_once: bool
    patience_s: float
    stopped: Stop
    say: Callable[[str], None]
    faults: int = 0

    @classmethod
    @contextmanager
    def open(cls, config: RLConfig, world: World, stopped: Stop, say: Callable[[str], None]) -> Iterator[Judge]:
        """A judge with a verifier of its own: each process verifies what it wrote, on its share of the machine."""
        options = Options(
            trials=config.trials, timing=config.speed_reward > 0, compile_timeout_s=config.compile_timeout_s,
            run_timeout_s=config.run_timeout_s, memory_mb=config.memory_mb,
        )  # fmt: skip
        backend = resolve_backend(config.backend)
        devices, at_once = _devices(config, world) if backend == "cuda" else ((), True)
        if config.staleness and not at_once:
            raise UserError("staleness 1 with speed_reward needs GPUs besides the policy's, to time kernels on.")
        cache = Path(config.out) / FILE if config.keep_verdicts and config.out else False
        cores = max(1, len(os.sched_getaffinity(0)) // world.local_size)
        residents = RESIDENTS if devices else cores
        with Verifier(
            backend=backend, options=options, devices=devices, residents=residents, builds=cores, cache=cache
        ) as verifier:
            workers = config.verify_workers or cores + len(devices) * residents
            yield cls(verifier, workers, at_once, config.verifier_patience_s, stopped, say)

    def begin(self) -> Judging:
        return Judging(self.verifier, self.workers, at_once=self.at_once)

    def finish(self, judging: Judging) -> dict[int, Verdict]:
        """A verdict for every pair; `infra_error` only for one that fails again and again while the control does not.

        Raises `Interrupted` when a signal comes, `VerifierDown` when the verifier stays broken beyond our patience.
        """
        judging.wait(self.stopped)
        verdicts, faulty = dict(judging.verdicts), judging.faults()
        broken_since: float | None = None
        tries, pause = 1, PAUSE_S
        while faulty and tries < TRIES:
            self.faults += len(faulty)
            again = Judging(self.verifier, self.workers, at_once=True)
            for key in faulty:
                again.put(key, *judging.pairs[key])
            again.put(CONTROL, Problem(EXAMPLE_PROBLEM, "control"), Kernel(EXAMPLE_KERNEL, "control"))
            again.close()
            again.wait(self.stopped)
            verdicts |= again.verdicts
            faulty = again.faults()
            broken = faulty.pop(CONTROL, None)
            if broken is None:
                tries, pause, broken_since = tries + 1, PAUSE_S, None
            else:
                broken_since = broken_since or time.monotonic()
                self._pause(broken.message, len(faulty), pause, time.monotonic() - broken_since)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        verdicts.pop(CONTROL, None)
        if faulty:
            why = next(iter(faulty.values())).message
            share = f"{len(faulty)} of {len(judging.pairs)} kernels"
            self.say(f"No verdict and no reward for {share}, tried {TRIES} times ({why.rstrip('.')}).")
        return verdicts | faulty

    def _pause(self, why: str, lacking: int, pause: float, broken_for: float) -> None:
        why = why.rstrip(".")
        if broken_for >= self.patience_s:
            raise VerifierDown(f"The verifier stays broken ({why}); the same command goes on once it works again.")
        self.say(f"Paused: {lacking} verdicts are lacking, the verifier is broken ({why}); next try in {pause:.0f} s.")
        self.stopped.wait(pause)
        self.stopped.check()


def _devices(config: RLConfig, world: World) -> tuple[tuple[str, ...], bool]:
    """(GPUs that this process's kernels run on, whether they do so while it decodes): its part of `verify_devices`.

    Kernels are timed on GPUs that no policy computes on; where a process has none such, on its own, and only while
    nothing else is computed there.
    """
    visible, own = visible_gpus(), world.device.index or 0
    policies: tuple[str, ...] = ()
    if config.speed_reward > 0 and world.device.type == "cuda":
        policies = visible[own - world.local_rank :][: world.local_size]
    free = [name for name in config.verify_devices or visible if name not in policies]
    mine = tuple(free[world.local_rank :: world.local_size])
    return mine or (visible[own],), bool(mine or not policies)
