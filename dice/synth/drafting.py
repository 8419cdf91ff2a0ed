"""Draw candidates of the synthetic corpus, in as many processes as there are workers: the same ones for any number."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from dice import prompts, synth
from dice.data.decontaminate import Index
from dice.files import JsonObject
from dice.kernel import Kernel, SplitError
from dice.launch import PACKAGE
from dice.problem import Problem
from dice.synth import PLAIN, Pair, Styles
from dice.synth.blank_lines import relaid
from dice.synth.prose import without_prose
from dice.synth.syntax import fault

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>: the signal that a process gets when its parent ends


@dataclass(frozen=True, slots=True)
class Batch:
    """What one shard is drawn from. `kind`: train pairs by index; or the first `stop` held-out or control pairs."""

    kind: str
    seed: int
    start: int
    stop: int
    benchmarks: tuple[Path, ...] = ()
    prose_free: bool = False
    infill_share: float = 0.0
    known: int = 0  # of control pairs: how many training pairs there are
    train_seed: int = 0  # of held-out and control pairs: the seed of the training pairs
    styles: Styles = PLAIN


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair and its rows, before verification."""

    pair: Pair
    rows: tuple[JsonObject, ...]
    text_ids: tuple[str, ...]  # of each row's problem
    fault: str  # why it is dropped unseen, or ""
    match: JsonObject | None  # the benchmark problem that it repeats


def draft(batch: Batch) -> list[Candidate]:
    """The candidates of a batch, in order."""
    return [_candidate(batch, index, pair) for index, pair in _pairs(batch)]


def draft_all(batches: Sequence[Batch], workers: int) -> Generator[list[Candidate], None, None]:
    """The candidates of each batch, in order of the batches. A few batches are drawn before they are asked for."""
    if workers < 2 or len(batches) < 2:
        yield from map(draft, batches)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the verifier's threads
    count = min(workers, len(batches))
    with _package_alone(), ProcessPoolExecutor(count, context, _die_with_parent, (os.getpid(),)) as pool:
        ahead = deque(pool.submit(draft, batch) for batch in batches[: workers + 2])
        for number in range(len(batches)):
            yield ahead.popleft().result()
            following = number + workers + 2
            if following < len(batches):
                ahead.append(pool.submit(draft, batches[following]))


@contextlib.contextmanager
def _package_alone() -> Iterator[None]:
    """A fresh interpreter of a pool looks where `sys.path` says: this package must be there, and nothing beside it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "dice").symlink_to(PACKAGE)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def text_id(source: str) -> str:
    """The same for every layout of a text."""
    source = "\n".join(line for line in source.split("\n") if line.strip())
    return sha256(source.encode()).hexdigest()[:16]


def _pairs(batch: Batch) -> Iterator[tuple[int, Pair]]:
    makers: dict[str, Callable[[], Iterator[tuple[int, Pair]]]] = {
        "train": lambda: (
            (index, synth.generate(batch.seed, index, styles=batch.styles)) for index in range(batch.start, batch.stop)
        ),
        "heldout": lambda: enumerate(synth.heldout(batch.stop, batch.seed, batch.styles)),
        "control": lambda: enumerate(
            synth.in_distribution(batch.stop, batch.seed, batch.train_seed, batch.known, batch.styles)
            if batch.known
            else ()
        ),
    }
    return makers[batch.kind]()


def _candidate(batch: Batch, index: int, pair: Pair) -> Candidate:
    reason = fault(pair)
    known = _index(batch.benchmarks)
    match = known.find(pair.problem) if known and not reason else None
    seed = batch.train_seed or batch.seed
    row = _row(seed, index, pair) | ({} if batch.styles == PLAIN else {"written": list(pair.written)})
    # What is asked in canonical form has no prose, and one layout.
    rows = (row, _without_prose(row)) if batch.prose_free and not pair.is_canonical else (row,)
    rows = (*rows, *_infilling(batch, rows))
    ids = tuple(text_id(each["problem"]) for each in rows)
    return Candidate(pair, rows, ids, reason, asdict(match) if match else None)


@cache
def _index(folders: tuple[Path, ...]) -> Index | None:
    return Index.from_folders(folders) if folders else None


def _row(seed: int, index: int, pair: Pair) -> JsonObject:
    layout = random.Random(f"{seed}:{index}:layout")
    source = pair.problem.source if pair.is_canonical else relaid(pair.problem.source, layout)
    return {
        "problem": source,
        "kernel": pair.kernel.source,
        "prompt": prompts.compact(Problem(source, pair.problem.name)),
        "response": prompts.reply(pair.kernel),
        "name": pair.problem.name,
        "family": pair.family,
        "style": pair.style,
        "operators": list(pair.operators),
        "composition": pair.composition,
        "split": pair.split,
        "heldout_by": pair.heldout_by,
        "seed": seed,
        "index": index,
    }


def _without_prose(row: JsonObject) -> JsonObject:
    rng = random.Random(f"{row['seed']}:{row['index']}:prose")
    source = relaid(without_prose(row["problem"], rng), rng)
    return row | {"problem": source, "prompt": prompts.compact(Problem(source, row["name"]))}


def _infilling(batch: Batch, rows: Sequence[JsonObject]) -> list[JsonObject]:
    """One of the rows again, its kernel's beginning and end given (paper section 4.2), for a share of the pairs."""
    rng = random.Random(f"{rows[0]['seed']}:{rows[0]['index']}:infill")
    if rng.random() >= batch.infill_share:
        return []
    row = rng.choice(rows)
    try:
        parts = Kernel(row["kernel"]).split()
    except SplitError:
        return []
    return [row | {"prompt": prompts.infill_compact(Problem(row["problem"], row["name"]), parts)}]


def _die_with_parent(parent: int) -> None:
    """Have this process of a pool end with its parent: it holds both ends of their pipe, so that it would never learn
    that the parent was killed, and wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
