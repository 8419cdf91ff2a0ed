"""Many pairs: read when there is room, verified once each, handed out in order or not, called off, taken up again."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled
from dice.verify.stream import WINDOW, Pair, Places, Progress, run_stream
from dice.verify.supervisor.gpu_lock import GpuLock
from tests.conftest import PATIENCE_S

CASES = Path(__file__).parent.parent / "cases"
ROOT = CASES.parent.parent
RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT = Kernel.from_file(CASES / "right_relu.py")
Job = Callable[[Problem, Kernel, Cancellation], Verdict]


def pairs(count: int) -> list[Pair]:
    return [(RELU, Kernel(f"# {number}")) for number in range(count)]


def number_of(kernel: Kernel) -> int:
    return int(kernel.source.removeprefix("# "))


def at_once(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
    return Verdict("wrong", "compare", kernel.source)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def verify_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("verify")]


def test_every_pair_gets_its_own_verdict() -> None:
    found = dict(run_stream(at_once, pairs(200), 4))
    assert {index: verdict.message for index, verdict in found.items()} == {n: f"# {n}" for n in range(200)}


def test_an_empty_source_ends_at_once() -> None:
    assert list(run_stream(at_once, [], 3)) == []


@pytest.mark.parametrize("ordered", [False, True])
def test_order_is_that_of_finishing_or_that_of_the_source(ordered: bool) -> None:
    others = threading.Event()
    done: list[int] = []

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        if number_of(kernel) == 0:
            assert others.wait(PATIENCE_S)  # the first is the last to finish
        done.append(number_of(kernel))
        if len(done) == 5:
            others.set()
        return at_once(problem, kernel, cancellation)

    found = [index for index, _ in run_stream(run, pairs(6), 2, ordered=ordered)]
    assert found == ([0, 1, 2, 3, 4, 5] if ordered else [1, 2, 3, 4, 5, 0])


@pytest.mark.parametrize("ordered", [False, True])
def test_an_endless_source_is_read_no_further_than_there_is_room(ordered: bool) -> None:
    read = [0]

    def endless() -> Iterator[Pair]:
        for number in itertools.count():
            read[0] += 1
            yield RELU, Kernel(f"# {number}")

    workers = 2
    stream = run_stream(at_once, endless(), workers, ordered=ordered)
    for taken in range(1, 50):
        next(stream)
        assert read[0] <= taken + WINDOW * workers
    wait_until(lambda: read[0] == 49 + WINDOW * workers)  # and as far as there is
    time.sleep(0.05)
    assert read[0] == 49 + WINDOW * workers
    stream.close()
    assert not verify_threads()


def test_no_more_jobs_at_once_than_workers() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        return at_once(problem, kernel, cancellation)

    assert len(list(run_stream(run, pairs(60), 3))) == 60
    assert most == [3]


@pytest.mark.parametrize("large", [3, 2 * WINDOW - 1])
def test_jobs_that_wait_for_memory_keep_no_small_job_from_its_place(large: int) -> None:
    workers, memory, places = 2, GpuLock(memory=100), Places(2)
    running, most, lock, go = [0], [0], threading.Lock(), threading.Event()

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        is_large = number_of(kernel) < large
        with contextlib.ExitStack() as room:
            room.enter_context(memory.reserve_memory(95 if is_large else 1, places.given_up))
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            if is_large:
                assert go.wait(PATIENCE_S)
            with lock:
                running[0] -= 1
        return at_once(problem, kernel, cancellation)

    found = run_stream(run, pairs(large + 12), workers, places=places)
    small = [next(found)[0] for _ in range(12)]
    assert sorted(small) == list(range(large, large + 12))  # while the first large one has the memory
    go.set()
    assert sorted(index for index, _ in found) == list(range(large))
    assert most[0] <= workers and memory._taken == places._taken == 0


def test_who_waits_for_a_place_is_called_off_with_the_others() -> None:
    places, begun = Places(1), threading.Event()

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        begun.set()
        wait_until(lambda: cancellation.cancelled)
        raise Cancelled

    off = Cancellation()
    threading.Thread(target=lambda: (begun.wait(PATIENCE_S), off.cancel()), daemon=True).start()
    stream = run_stream(run, pairs(9), 1, places=places, cancellation=off)
    with pytest.raises(Cancelled):
        next(stream)
    stream.close()
    assert not verify_threads() and places._taken == 0


def test_equal_pairs_are_verified_once_also_while_the_first_runs() -> None:
    jobs: list[str] = []
    go = threading.Event()

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        jobs.append(kernel.source)
        assert go.wait(PATIENCE_S)
        return at_once(problem, kernel, cancellation)

    def source() -> Iterator[Pair]:
        yield from pairs(1) * 5 + pairs(2)
        go.set()

    found = dict(run_stream(run, source(), 2))
    assert sorted(jobs) == ["# 0", "# 1"]
    assert [found[index].message for index in range(7)] == ["# 0"] * 6 + ["# 1"]


@pytest.mark.parametrize("where", ["source", "job"])
def test_an_error_of_the_source_or_of_a_job_is_raised_to_the_caller(where: str) -> None:
    def source() -> Iterator[Pair]:
        yield from pairs(3)
        if where == "source":
            raise LookupError("no more")

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        if where == "job" and number_of(kernel) == 2:
            raise LookupError("no more")
        return at_once(problem, kernel, cancellation)

    with pytest.raises(LookupError, match="no more"):
        list(run_stream(run, source(), 2))
    assert not verify_threads()


def test_closing_cancels_what_runs_and_starts_nothing_more() -> None:
    started: list[int] = []
    cancelled: list[int] = []

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        started.append(number_of(kernel))
        if number_of(kernel):
            wait_until(lambda: cancellation.cancelled)
            cancelled.append(number_of(kernel))
            raise Cancelled
        return at_once(problem, kernel, cancellation)

    stream = run_stream(run, pairs(100), 2)
    assert next(stream)[0] == 0
    wait_until(lambda: len(started) == 3)
    stream.close()
    assert sorted(cancelled) == [1, 2] and len(started) == 3
    assert not verify_threads()


@pytest.mark.parametrize("before", [False, True])
def test_another_thread_calls_it_off(before: bool) -> None:
    """Whoever waits for a result is woken, what runs is told, nothing more begins; also where it was told before."""
    off, told = Cancellation(), threading.Event()

    def job(problem: Problem, kernel: Kernel, own: Cancellation) -> Verdict:
        (threading.Thread(target=off.cancel).start if not before else off.cancel)()
        wait_until(lambda: own.cancelled)
        told.set()
        raise Cancelled

    if before:
        off.cancel()
    with pytest.raises(Cancelled):
        list(run_stream(job, itertools.cycle(pairs(3)), 2, cancellation=off))
    assert told.is_set() is not before
    wait_until(lambda: not verify_threads())


def test_a_source_that_blocks_does_not_keep_the_caller() -> None:
    forever = threading.Event()

    def source() -> Iterator[Pair]:
        yield from pairs(1)
        forever.wait()

    stream = run_stream(at_once, source(), 1)
    next(stream)
    closing = threading.Thread(target=stream.close)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    forever.set()


def test_progress_counts_outcomes_and_gives_a_rate() -> None:
    told: list[Progress] = []

    def run(problem: Problem, kernel: Kernel, cancellation: Cancellation) -> Verdict:
        time.sleep(0.002)
        return replace(at_once(problem, kernel, cancellation), outcome="correct" if number_of(kernel) % 2 else "wrong")

    list(run_stream(run, pairs(20), 2, progress=told.append))
    assert [one.done for one in told] == list(range(1, 21)) and {one.total for one in told} == {20}
    assert told[-1].outcomes == {"correct": 10, "wrong": 10} and told[-1].eta_s == 0
    assert all(one.per_minute > 0 and one.elapsed_s > 0 for one in told)
    assert told[0].eta_s is not None and told[0].eta_s > 0
    expected = 60 * 20 / told[-1].elapsed_s
    assert told[-1].per_minute == pytest.approx(expected, rel=0.5)


def test_the_length_of_a_generator_is_known_when_it_has_ended() -> None:
    told: list[Progress] = []
    list(run_stream(at_once, iter(pairs(30)), 1, progress=told.append))
    assert told[0].total is None and told[0].eta_s is None and told[-1].total == 30


# ---- with real processes -------------------------------------------------------------------------------------------


def asleep(mark: str) -> list[Path]:
    """Processes that sleep for `mark` seconds."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if path.read_bytes() == f"sleep\0{mark}\0".encode() else []
    return found


def test_closing_kills_the_processes_of_the_jobs_under_way(emulated: Verifier) -> None:
    mark = f"300.{os.getpid()}"  # seconds: nobody else sleeps for so long
    lasting = f"import subprocess\nsubprocess.run(['sleep', '{mark}'])\n"
    kernels = [RIGHT, *(replace(RIGHT, source=f"# {number}\n{lasting}{RIGHT.source}") for number in range(3))]
    stream = emulated.verify_many([(RELU, kernel) for kernel in kernels], workers=2)
    assert next(iter(stream))[1].correct
    wait_until(lambda: asleep(mark))
    stream.close()
    assert not asleep(mark) and not verify_threads()
    assert emulated.verify(RELU, RIGHT).correct


STREAM = """
import sys
from pathlib import Path
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Verifier
from dice.verify.supervisor.job import Job

cases, cache, log = map(Path, sys.argv[1:])
relu = Problem.from_file(cases / "problems" / "relu.py")
right, wrong = (Kernel.from_file(cases / name).source for name in ("right_relu.py", "wrong_value.py"))
inner = Job.run

def counted(job, turns):
    verdict = inner(job, turns)
    with log.open("a") as file:
        file.write(f"{job.assignment.kernel.name}\\n")
    return verdict

Job.run = counted
pairs = [(relu, Kernel(f"# {n}\\n{wrong if n % 3 == 2 else right}", str(n))) for n in range(12)]
with Verifier(backend="emulated", cache=cache) as verifier:
    for index, verdict in verifier.verify_many(pairs, workers=2):
        print(index, verdict.outcome, flush=True)
"""


def test_a_stream_killed_under_way_goes_on_where_it_was(tmp_path: Path) -> None:
    cache, log = tmp_path / "verdicts", tmp_path / "jobs"
    command = [sys.executable, "-c", STREAM, str(CASES), str(cache), str(log)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert first.stdout is not None
    handed_out = [next(first.stdout).split() for _ in range(4)]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()
    before = log.read_text().split()
    assert 4 <= len(before) < 12
    second = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=PATIENCE_S, check=True)
    found = dict(line.split() for line in second.stdout.splitlines())
    assert found == {str(n): "wrong" if n % 3 == 2 else "correct" for n in range(12)}
    assert all(found[index] == outcome for index, outcome in handed_out)
    jobs = log.read_text().split()
    again = [name for name in jobs[len(before) :] if name in before]
    assert len(again) <= 2  # at most those whose verdict was known and not yet written when the kill came
    assert not set(again) & {index for index, _ in handed_out}  # what was handed out is never verified again
    assert len(set(jobs)) == 12
