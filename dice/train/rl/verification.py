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
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dice.errors import MachineError, UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.train.rl.config import RLConfig
from dice.train.session import Interrupted, StopSignal
from dice.train.world import World
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.emulated_first import EmulatedFirst
from dice.verify.options import resolve_backend, visible_gpus
from dice.verify.sandbox.process import MachineryError
from dice.verify.stream import Pair
from dice.verify.supervisor.devices import MAX_CONCURRENT
from dice.verify.verdict_cache import FILE

# Pairs handed to the verifier for each worker: one under way and one waiting.
PAIRS_PER_WORKER = 2
# How often a pair is verified, in all, before it is left without a verdict.
TRIES = 3
# Seconds between two tries of a broken verifier: the first pause, doubled with each further one up to the longest.
PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# Seconds between two looks at whether a signal asked the run to end, while verdicts are waited for.
POLL_S = 0.2
# Cores of each process whose GPU decodes and trains, which verification keeps off: one is busy launching, the other
# copies and compiles. Where it did not, decoding took almost twice as long. Only of so many cores for each process.
OWN_CORES, FROM_CORES = 2, 8
# The key of the control among the pairs that are verified again; responses have keys from 0.
CONTROL = -1


class VerifierDown(MachineError):
    """The verifier stayed broken; the message is one sentence."""


class PendingVerdicts:
    """Pairs that are handed in one by one and verified meanwhile by a thread; `verdicts` holds what is known so far."""

    def __init__(self, verifier: Verifier, workers: int, *, at_once: bool, cores: Collection[int] = ()) -> None:
        """`at_once` False: verify nothing before the last pair is in, because the GPU decodes until then. `cores`: the
        processor's that are used for it (default: all)."""
        self.pairs: dict[int, Pair] = {}
        self.verdicts: dict[int, Verdict] = {}
        self._verifier, self._workers, self._cores = verifier, workers, cores
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        # Fewer pairs than the verifier's stream reads ahead, so that calling off need not wait for one to end.
        self._room = threading.Semaphore(PAIRS_PER_WORKER * workers)
        self._called_off = threading.Event()
        self._news = threading.Condition()
        self._began: float | None = None
        self._ended = 0.0
        self._failure = ""
        self._thread = threading.Thread(target=self._work, name="verification", daemon=True)
        if at_once:
            self._thread.start()

    def put(self, key: int, problem: Problem, kernel: Kernel) -> None:
        self.pairs[key] = problem, kernel
        self._waiting.put(key)
        if self._began is None and self._thread.ident:
            self._began = time.monotonic()

    def close(self) -> None:
        """There are no more pairs."""
        self._waiting.put(None)
        if not self._thread.ident:
            self._began = time.monotonic()
            self._thread.start()

    @property
    def under_way(self) -> bool:
        """Whether verdicts are still to come."""
        return self._thread.is_alive()

    @property
    def seconds(self) -> float:
        """From the first pair to the last verdict so far."""
        return max(0.0, self._ended - self._began) if self._began is not None else 0.0

    def call_off(self) -> None:
        """Verify nothing more, and kill what is being verified."""
        self._called_off.set()
        self._waiting.put(None)
        self._room.release()
        if self._thread.ident:
            self._thread.join()

    def wait(self, stopped: StopSignal, keys: Collection[int] | None = None) -> None:
        """Until these pairs' verdicts are there (default: those of all), or no further one will come. Raises
        `Interrupted` on a signal, having called everything off."""
        keys = self.pairs.keys() if keys is None else keys
        while self._thread.is_alive() and any(key not in self.verdicts for key in keys):
            if stopped.is_set():
                self.call_off()
                stopped.check()
            with self._news:
                self._news.wait(POLL_S)

    def faults(self, keys: Collection[int]) -> dict[int, Verdict]:
        """Those of these pairs that our machinery failed on, each with an `infra_error` that says how."""
        lost = Verdict("infra_error", "infra", self._failure or "The verifier ended before its time.")
        found = {key: self.verdicts.get(key, lost) for key in keys}
        return {key: verdict for key, verdict in found.items() if verdict.outcome == "infra_error"}

    def _work(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # this thread, and what it starts
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
                self._ended = time.monotonic()
                with self._news:
                    self.verdicts[order[place]] = verdict
                    self._news.notify_all()
                self._room.release()
        except Interrupted:
            return
        except (MachineryError, MachineError, OSError) as error:
            self._failure = str(error)


@dataclass
class VerifierPool:
    """The verifier and its workers, as training uses them. `faults` counts the verdicts that had to be tried again."""

    verifier: Verifier
    workers: int
    at_once: bool
    patience_s: float
    stopped: StopSignal
    say: Callable[[str], None]
    faults: int = 0
    cores: Collection[int] = ()

    @classmethod
    @contextmanager
    def open(
        cls,
        config: RLConfig,
        world: World,
        stopped: StopSignal,
        say: Callable[[str], None],
        make_verifier: Callable[..., Verifier] | None = None,
    ) -> Iterator[VerifierPool]:
        """A pool with a verifier of its own: each process verifies what it wrote, on its share of the machine.

        `make_verifier` makes the verifier of other machines, of which `part` (rank, size) is this process's.
        """
        options = Options(
            trials=config.trials, timing=config.speed_reward > 0, compile_timeout_s=config.compile_timeout_s,
            run_timeout_s=config.run_timeout_s, memory_mb=config.memory_mb, protocol=config.protocol,
        )  # fmt: skip
        cache = Path(config.out) / FILE if config.keep_verdicts and config.out else False
        if make_verifier is not None:
            part = world.rank, world.size
            with make_verifier(backend=config.backend, options=options, cache=cache, part=part) as verifier:
                workers = config.verify_workers or verifier.default_workers
                yield cls(verifier, workers, True, config.verifier_patience_s, stopped, say)
            return
        emulates_first = config.backend == "emulated_first"
        backend = resolve_backend("cuda" if emulates_first else config.backend)
        devices, at_once = _devices(config, world) if backend == "cuda" else ((), True)
        if config.staleness and not at_once:
            raise UserError("staleness 1 with speed_reward needs GPUs besides the policy's, to time kernels on.")
        before = os.sched_getaffinity(0)
        cores = _cores(before, world)
        count = max(1, len(cores) // world.local_size)
        max_concurrent = MAX_CONCURRENT if devices else count
        make = EmulatedFirst if emulates_first else Verifier
        os.sched_setaffinity(0, cores)  # which the verifier's processes inherit
        with make(
            backend=backend, options=options, devices=devices, max_concurrent=max_concurrent, builds=count, cache=cache
        ) as verifier:
            os.sched_setaffinity(0, before)
            workers = config.verify_workers or count + len(devices) * max_concurrent
            yield cls(verifier, workers, at_once, config.verifier_patience_s, stopped, say, cores=cores)

    def begin(self, at_once: bool | None = None) -> PendingVerdicts:
        at_once = self.at_once if at_once is None else at_once
        return PendingVerdicts(self.verifier, self.workers, at_once=at_once, cores=self.cores)

    def finish(
        self, pending: PendingVerdicts, keys: Collection[int] | None = None, stopped: StopSignal | None = None
    ) -> dict[int, Verdict]:
        """A verdict for every pair, or for those of these `keys` alone; `infra_error` only for one that fails again and
        again while the control does not.

        Raises `Interrupted` on a signal (`stopped`: another one than the pool's), `VerifierDown` when the verifier is
        broken for longer than `patience_s`.
        """
        stopped = stopped or self.stopped
        pending.wait(stopped, keys)
        keys = pending.pairs.keys() if keys is None else keys
        verdicts, faulty = {key: pending.verdicts[key] for key in keys if key in pending.verdicts}, pending.faults(keys)
        broken_since: float | None = None
        tries, pause = 1, PAUSE_S
        while faulty and tries < TRIES:
            self.faults += len(faulty)
            again = self.begin(at_once=True)
            for key in faulty:
                again.put(key, *pending.pairs[key])
            again.put(CONTROL, Problem(EXAMPLE_PROBLEM, "control"), Kernel(EXAMPLE_KERNEL, "control"))
            again.close()
            again.wait(stopped)
            verdicts |= again.verdicts
            faulty = again.faults(again.pairs.keys())
            broken = faulty.pop(CONTROL, None)
            if broken is None:
                tries, pause, broken_since = tries + 1, PAUSE_S, None
            else:
                broken_since = broken_since or time.monotonic()
                self._pause(broken.message, len(faulty), pause, time.monotonic() - broken_since, stopped)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        verdicts.pop(CONTROL, None)
        if faulty:
            why = next(iter(faulty.values())).message
            share = f"{len(faulty)} of {len(keys)} kernels"
            self.say(f"No verdict and no reward for {share}, tried {TRIES} times ({why.rstrip('.')}).")
        return verdicts | faulty

    def _pause(self, why: str, lacking: int, pause: float, broken_for: float, stopped: StopSignal) -> None:
        why = why.rstrip(".")
        if broken_for >= self.patience_s:
            raise VerifierDown(f"The verifier stays broken ({why}); the same command goes on once it works again.")
        self.say(f"Paused: {lacking} verdicts are lacking, the verifier is broken ({why}); next try in {pause:.0f} s.")
        stopped.wait(pause)
        stopped.check()


def _cores(available: set[int], world: World) -> set[int]:
    """Those that verification runs on: all but what the processes that decode on GPUs need for that."""
    if world.device.type != "cuda" or len(available) < FROM_CORES * world.local_size:
        return available
    return set(sorted(available)[OWN_CORES * world.local_size :])


def _devices(config: RLConfig, world: World) -> tuple[tuple[str, ...], bool]:
    """(GPUs that this process's kernels run on, whether they may run while it decodes): its part of `verify_devices`.

    Kernels are timed on GPUs that no policy computes on. A process for which there is none such times its kernels on
    its own GPU, while it does not decode.
    """
    visible, own = visible_gpus(), world.device.index or 0
    policies: tuple[str, ...] = ()
    if config.speed_reward > 0 and world.device.type == "cuda":
        policies = visible[own - world.local_rank :][: world.local_size]
    free = [name for name in config.verify_devices or visible if name not in policies]
    mine = tuple(free[world.local_rank :: world.local_size])
    return mine or (visible[own],), bool(mine or not policies)
