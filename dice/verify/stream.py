"""Many pairs through a bounded number of workers: pulled when there is room, each verified once, called off at once.

This file knows nothing of processes, backends or GPUs. Its seam to whatever does the work is one callable, `Run`: it
takes a problem, a kernel and a `Cancellation`, blocks until the verdict is known, may be called from many threads, and
raises `Cancelled` soon after the cancellation was told. `Verifier` passes one that runs local processes; one that hands
the pair to a remote actor (`ray.get(actor.verify.remote(problem, kernel))`, and `ray.cancel` where a local run kills
its children) stands in for it without a change here, for pairs, verdicts and options are plain values.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled

Pair = tuple[Problem, Kernel]
Run = Callable[[Problem, Kernel, Cancellation], Verdict]
Key = tuple[str, str]

WINDOW = 4  # pairs pulled and not yet handed out, for each worker: enough for one slow job to block no other
REMEMBERED = 1 << 16  # pairs whose verdict is kept in case they come again
RATE_OVER = 256  # verdicts that the rate is taken over
FEEDER_PATIENCE_S = 1.0  # a source may block for ever in its own code; its thread is then left to it


class Places:
    """How many of a stream's jobs work at a time. One that only waits gives its place up meanwhile, and then has it
    back at once: what it waited for is its own by then, and others wait for it in their turn."""

    def __init__(self, count: int) -> None:
        self._count, self._taken = count, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._taken < self._count)
            self._taken += 1
        try:
            yield
        finally:
            self._move(-1)

    @contextlib.contextmanager
    def given_up(self) -> Iterator[None]:
        self._move(-1)
        try:
            yield
        finally:
            self._move(1)

    def _move(self, step: int) -> None:
        with self._changed:
            self._taken += step
            self._changed.notify()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream is. `total` and `eta_s` are None until the source's length is known."""

    done: int
    total: int | None
    per_minute: float
    eta_s: float | None
    elapsed_s: float
    outcomes: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Done:
    index: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Total:
    pairs: int


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


@dataclass(slots=True)
class _Waiting:
    """Indices of one pair that is being verified."""

    indices: list[int] = field(default_factory=list)


def run_stream(
    run: Run,
    pairs: Iterable[Pair],
    workers: int,
    *,
    ordered: bool = False,
    progress: Callable[[Progress], None] | None = None,
    cancellation: Cancellation | None = None,
    places: Places | None = None,
) -> Generator[tuple[int, Verdict], None, None]:
    """(index, verdict) of every pair, as they finish or, when `ordered`, in the order of `pairs`.

    `pairs` is read by a thread of its own and may be endless: never more than `WINDOW * workers` pairs are read and
    not yet handed out. Equal pairs are verified once. Closing the iterator kills the jobs under way. What `pairs` or
    `run` raise is raised here. So is `Cancelled`, once another thread has told the `cancellation`. `places`: as many as
    workers, which jobs may give up: of those that wait there are never more than are read and not yet handed out.
    """
    stream = _Stream(run, max(1, workers), places)
    feeder = threading.Thread(target=stream.feed, args=(pairs,), name="verify-feed", daemon=True)
    report = _Reporter(progress, len(pairs) if isinstance(pairs, Sized) else None)
    try:
        if cancellation is not None:
            cancellation.watch(stream)
        feeder.start()
        for done in _in_order(stream.finished(), ordered):
            report.count(done.verdict, stream.total)
            stream.room.release()
            yield done.index, done.verdict
    finally:
        if cancellation is not None:
            cancellation.forget(stream)
        stream.close()
        if feeder.ident is not None:
            feeder.join(FEEDER_PATIENCE_S)


def _in_order(finished: Iterator[_Done], ordered: bool) -> Iterator[_Done]:
    if not ordered:
        yield from finished
        return
    held: dict[int, _Done] = {}
    following = 0
    for done in finished:
        held[done.index] = done
        while following in held:
            yield held.pop(following)
            following += 1


class _Stream:
    """The state that the feeder, the workers and the consumer share."""

    def __init__(self, run: Run, workers: int, places: Places | None):
        self.room = threading.Semaphore(WINDOW * workers)
        self.total: int | None = None
        self._run = run
        self._results: queue.SimpleQueue[_Done | _Total | _Failed] = queue.SimpleQueue()
        self._known: OrderedDict[Key, Verdict | _Waiting] = OrderedDict()
        self._lock = threading.Lock()
        self._cancellation = Cancellation()
        self._places = places or Places(workers)
        self._pool = ThreadPoolExecutor(WINDOW * workers if places else workers, thread_name_prefix="verify")

    def feed(self, pairs: Iterable[Pair]) -> None:
        """Read the source whenever there is room."""
        index = 0
        try:
            iterator = iter(pairs)
            while True:
                self.room.acquire()
                if self._cancellation.cancelled:
                    return
                try:
                    problem, kernel = next(iterator)
                except StopIteration:
                    break
                self._admit(index, problem, kernel)
                index += 1
            self._results.put(_Total(index))
        except BaseException as error:  # noqa: B036 - carried to the consumer's thread
            self._results.put(_Failed(error))

    def _admit(self, index: int, problem: Problem, kernel: Kernel) -> None:
        key = (problem.id, kernel.id)
        with self._lock:
            known = self._known.get(key)
            if isinstance(known, Verdict):
                self._known.move_to_end(key)
                self._results.put(_Done(index, known))
                return
            if known is not None:
                known.indices.append(index)
                return
            self._known[key] = _Waiting([index])
        if not self._cancellation.cancelled:
            self._pool.submit(self._work, key, problem, kernel)

    def _work(self, key: Key, problem: Problem, kernel: Kernel) -> None:
        try:
            with self._places.taken():
                self._cancellation.check()
                verdict = self._run(problem, kernel, self._cancellation)
        except Cancelled:
            return
        except BaseException as error:  # noqa: B036 - carried to the consumer's thread
            self._results.put(_Failed(error))
            return
        with self._lock:
            waiting = self._known[key]
            assert isinstance(waiting, _Waiting)
            self._known[key] = verdict
            self._forget_oldest()
        for index in waiting.indices:
            self._results.put(_Done(index, verdict))

    def _forget_oldest(self) -> None:
        while len(self._known) > REMEMBERED and isinstance(next(iter(self._known.values())), Verdict):
            self._known.popitem(last=False)

    def finished(self) -> Iterator[_Done]:
        """Results as they come, until all of the source has one."""
        done = 0
        while self.total is None or done < self.total:
            result = self._results.get()
            if isinstance(result, _Failed):
                raise result.error
            if isinstance(result, _Total):
                self.total = result.pairs
                continue
            done += 1
            yield result

    def kill(self) -> None:
        """Kill what runs, and wake whoever waits for results."""
        self._cancellation.cancel()
        self._results.put(_Failed(Cancelled()))

    def close(self) -> None:
        """Kill what runs, start nothing more, and leave no worker thread behind."""
        self._cancellation.cancel()
        self.room.release()
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Reporter:
    """Counts finished verdicts, and tells of them as `Progress`."""

    def __init__(self, tell: Callable[[Progress], None] | None, total: int | None):
        self._tell, self._total = tell, total
        self._started = time.monotonic()
        self._recent: deque[float] = deque([self._started], maxlen=RATE_OVER)
        self._outcomes: Counter[str] = Counter()

    def count(self, verdict: Verdict, total: int | None) -> None:
        if self._tell is None:
            return
        now = time.monotonic()
        self._recent.append(now)
        self._outcomes[verdict.outcome] += 1
        done = self._outcomes.total()
        total = self._total if total is None else total
        rate = (len(self._recent) - 1) / max(now - self._recent[0], 1e-9)
        eta = None if total is None else (total - done) / rate
        self._tell(Progress(done, total, 60 * rate, eta, now - self._started, dict(self._outcomes)))
