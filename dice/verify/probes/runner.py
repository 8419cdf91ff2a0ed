"""Runs probes among other people's kernels, and looks for what they leave: is every promise kept on this machine?

Two processes. One verifies: each probe in one stream with kernels that are right and kernels that are wrong, beside it
for as long as it takes, and after it. Those must get their own verdicts, the probe one that its file allows,
in time, and nothing may be left of it. The other process (`run`) watches: it outlives a verifier that a probe ends,
adopts whatever escapes from it, and may have it run as another user.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from dice.files import JsonObject
from dice.kernel import Kernel
from dice.launch import python_command, safe_environment
from dice.verdict import Verdict
from dice.verify.options import Options
from dice.verify.probes import files
from dice.verify.probes.files import ESCAPED, Probe
from dice.verify.probes.leftovers import Footprint, adopt, discard, late_descendants, named, stored
from dice.verify.stream import Pair
from dice.verify.verifier import Verifier

WORKERS = 3
RUN_S, COMPILE_S = 10.0, 60.0
MEMORY_MB = {"emulated": 512, "cuda": 4096}
LATE_S = 25.0  # beyond its limit, until a job has a verdict
BESIDE_S = 0.3  # until a probe gets its first neighbour; to each further one it is longer by half
TRIALS = 2  # of each kernel: what is tried here is the sandbox, not the comparison
PATIENCE_S = 2 * (RUN_S + COMPILE_S) + LATE_S  # the verifier says nothing for so long: it hangs
START_S = 900.0  # what builds share may have to be made
SETTLE_S = 8.0  # until what was ended is gone
END_S = 60.0  # for the verifier to close
SHOWN = 300  # characters of a message

Task = tuple[str, str]  # a probe's name, and how it ends


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one probe. `broken`: how its promise was not kept; `excused`: guarantees that are said to be
    lacking here, without which it is not made."""

    name: str
    ending: str
    promise: str
    broken: tuple[str, ...]
    excused: tuple[str, ...] = ()
    outcome: str = ""
    message: str = ""
    seconds: float = 0.0
    sandbox: str = ""

    @property
    def state(self) -> Literal["held", "excused", "broken"]:
        return "held" if not self.broken else "excused" if self.excused else "broken"


def tasks(quick: bool) -> list[Task]:
    """All that there is to try, or a quick part of it: some probes, with one ending each."""
    if not quick:
        return [(probe.name, ending) for probe in files.all_probes() for ending in probe.outcomes]
    return [(probe.name, probe.endings[-1]) for probe in files.all_probes() if probe.quick]


# ---- the process that watches --------------------------------------------------------------------------------------


def run(
    wanted: Sequence[Task],
    backend: str = "emulated",
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
    folder: Path = files.FOLDER,
) -> Iterator[Result]:
    """The result of each task, in order, and after each verifier's end one of what is left, named `afterwards`.

    `environment` is put over this process's; `user` is the user (and group) to run as, for root to choose. The probes
    are those of `folder`.
    """
    probes = {probe.name: probe for probe in files.all_probes(folder)}
    left = list(wanted)
    while left:
        spec = {"tasks": list(left), "backend": backend, "folder": str(folder)}
        with _Watched(spec, python, environment or {}, user) as watched:
            for name, ending in tuple(left):
                said = watched.result()
                probe = probes[name]
                yield _judge(probe, ending, said)
                left.pop(0)
                if "lost" in said:
                    break
            yield watched.afterwards()


def _judge(probe: Probe, ending: str, said: JsonObject) -> Result:
    result = Result(probe.name, ending, probe.promise, tuple(said.get("broken", ())))
    if "lost" in said:
        return replace(result, broken=(said["lost"],))
    verdict = Verdict.from_json(said["verdict"]) if said["verdict"] else None
    if verdict is None:
        return result
    broken = list(result.broken)
    if ESCAPED in verdict.message:
        broken.append(verdict.message)
    elif verdict.outcome not in probe.outcomes[ending]:
        broken.append(f"its verdict is {verdict.outcome}: {verdict.message[:SHOWN]}")
    seconds = said["seconds"] - sum(verdict.seconds.get(stage, 0.0) for stage in ("compile", "wait"))
    if seconds > RUN_S + LATE_S:
        broken.append(f"it took {seconds:.0f} s where it had {RUN_S:.0f} s to run")
    return replace(
        result,
        broken=tuple(broken),
        excused=tuple(sorted(set(probe.lacking) & set(verdict.lacking))),
        outcome=verdict.outcome,
        message=verdict.message[:SHOWN],
        seconds=said["seconds"],
        sandbox=verdict.sandbox,
    )


class _Watched:
    """A verifying process, its lines, and what is left when it has ended."""

    def __init__(self, spec: JsonObject, python: str, environment: Mapping[str, str], user: int | None):
        adopt()
        self._late = late_descendants(os.getpid())
        self._folder = Path(tempfile.mkdtemp(prefix="dice-probes-"))
        if user is not None:
            os.chown(self._folder, user, user)
        variables = safe_environment({**os.environ, "TMPDIR": str(self._folder), **environment})
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        self._process = subprocess.Popen(
            [python, *python_command("dice.verify.probes.runner")[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=variables | {"PYTHONSAFEPATH": "1"},
            cwd=self._folder,
            user=user,
            group=user,
            extra_groups=None if user is None else (),
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which shows
            self._process.stdin.write(json.dumps(spec).encode())
            self._process.stdin.close()
        self._lines: queue.SimpleQueue[JsonObject | None] = queue.SimpleQueue()
        self._hangs = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def result(self) -> JsonObject:
        """What is said of the next probe; `{"lost": how}` where the process ended, or hangs."""
        patience = START_S
        while True:
            try:
                line = self._lines.get(timeout=patience)
            except queue.Empty:
                self._hangs = True
                return {"lost": f"the verifier said nothing for {patience:.0f} s"}
            if line is None:
                return {"lost": f"the verifier ended (status {self._process.wait()}): {self._last_words()}"}
            if "verdict" in line:
                return line
            patience = PATIENCE_S  # it has begun

    def _last_words(self) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:SHOWN] if lines else "it said nothing"

    def afterwards(self) -> Result:
        """End it, and say what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0 if self._hangs else END_S)
        ended = self._process.poll()
        self._process.kill()
        self._process.wait()
        self._reader.join(SETTLE_S)
        pid, broken = self._process.pid, []
        if ended is None:
            broken.append("the verifier did not end by itself")
        elif ended:
            broken.append(f"the verifier ended with status {ended}: {self._last_words()}")

        def remains() -> list[str]:
            processes = [f"process {one}" for one in {*self._late(), *named(_mark(pid))}]
            return processes + [f"{path}" for path in stored(pid, self._folder)]

        left = _settled(remains)
        if left:
            broken.append(f"left behind: {', '.join(left)[:SHOWN]}")
        for one in {*self._late(), *named(_mark(pid))}:
            with contextlib.suppress(OSError):
                os.kill(one, signal.SIGKILL)
        for path in stored(pid, self._folder):
            discard(path)
        return Result("afterwards", "", "Nothing is left when the verifier has ended.", tuple(broken))

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._complaints.close()
        discard(self._folder)


def _settled(remains: Callable[[], list[str]]) -> list[str]:
    """What remains even after a while."""
    deadline = time.monotonic() + SETTLE_S
    while (left := remains()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _mark(pid: int) -> str:
    """What the names of all processes of the probes of one verifier begin with."""
    return f"dp{pid:x}."


# ---- the process that verifies -------------------------------------------------------------------------------------


def main() -> None:
    spec = json.loads(sys.stdin.read())
    adopt()  # so that what escapes shows as a child of this process
    backend, probes = spec["backend"], {probe.name: probe for probe in files.all_probes(Path(spec["folder"]))}
    options = Options(
        trials=TRIALS, timing=False, run_timeout_s=RUN_S, compile_timeout_s=COMPILE_S, memory_mb=MEMORY_MB[backend]
    )
    verifier: Verifier | None = None
    for number, (name, ending) in enumerate(spec["tasks"]):
        if verifier is None:
            verifier, before = _start(backend, options)
        _say({"begun": name})
        mark = f"{_mark(os.getpid())}{number:x}"
        kernel = probes[name].kernel(ending, options.memory_mb, mark)
        here = _Round(verifier, kernel, f"{name} {ending}", "victim" in probes[name].tags)
        broken = here.run()
        zygote = verifier._get_zygote().pid
        if left := _settled(partial(before.grown, mark, zygote)):
            broken += left
            before.forget(mark)
        _say({"verdict": asdict(here.verdict) if here.verdict else None, "seconds": here.seconds, "broken": broken})
        if here.failed:
            with contextlib.suppress(Exception):
                verifier.close()
            verifier = None
    if verifier is not None:
        verifier.close()


def _start(backend: str, options: Options) -> tuple[Verifier, Footprint]:
    """A verifier with everything made that lasts: reference processes, builds."""
    verifier = Verifier(backend=backend, options=options)
    warm = [files.right("warm"), files.wrong("warm"), files.right("warm too")]
    for _ in verifier.verify_many([(files.problem(), kernel) for kernel in warm], WORKERS):
        pass
    return verifier, Footprint.now(options.cache_dir)


def _say(line: JsonObject) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


@dataclass
class _Round:
    """One probe among its neighbours."""

    verifier: Verifier
    kernel: Kernel
    name: str
    victims: bool
    verdict: Verdict | None = None
    seconds: float = 0.0
    failed: bool = False  # whether an exception came out of the verifier
    _expected: list[str] = field(default_factory=list)
    _judged: threading.Event = field(default_factory=threading.Event)

    def run(self) -> list[str]:
        """What went wrong with the others."""
        broken, started = [], time.monotonic()
        try:
            for index, verdict in self.verifier.verify_many(self._pairs(), WORKERS):
                expected = self._expected[index]
                if not expected:
                    self.verdict, self.seconds = verdict, verdict.seconds.get("total", time.monotonic() - started)
                    self._judged.set()
                elif verdict.outcome != expected:
                    found = f"{verdict.outcome}: {verdict.message[:SHOWN]}"
                    broken.append(f"a kernel beside it that is {expected} was {found}")
        except Exception as error:
            self.failed = True
            broken.append(f"the verifier raised {type(error).__name__}: {str(error)[:SHOWN]}")
        finally:
            self._judged.set()
        return broken[:5]

    def _pairs(self) -> Iterator[Pair]:
        problem = files.problem()
        for kernel, expected in self._kernels():
            self._expected.append(expected)
            yield problem, kernel

    def _kernels(self) -> Iterator[tuple[Kernel, str]]:
        """Each with the outcome that it must have; "" for the probe."""
        others, pause = self._others(), BESIDE_S
        yield self.kernel, ""
        while not self._judged.wait(pause):
            yield next(others)
            pause *= 1.5
        yield from itertools.islice(others, 2)

    def _others(self) -> Iterator[tuple[Kernel, str]]:
        for number in itertools.count():
            distinct = f"{self.name} {number}"
            if self.victims and number < 4:
                yield files.victim(distinct, "-".join(("DICE", "SECRET", secrets.token_hex(8)))), "correct"
            else:
                yield files.right(distinct), "correct"
            yield files.wrong(distinct), "wrong"


def broken(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.state == "broken"]


if __name__ == "__main__":
    main()
