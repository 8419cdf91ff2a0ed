"""Probes as tests: as this user and as an ordinary one, with namespaces and without them.

By default each probe that is quick runs as this user with all mechanisms, and some run in each of the other places.
`DICE_PROBES=all` runs all of them everywhere. The probes of a place that are chosen are one run, whose results their
tests share. What `make test` leaves out is `slow`: what is run for root without namespaces, and for an ordinary user
with them, is run for an ordinary user without them as well; and themes whose promises other tests hold, too.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dice.verify import BackendUnavailable, Verifier
from dice.verify.build import build
from dice.verify.emulator import guard
from dice.verify.options import default_cache_dir
from dice.verify.probes.files import Probe, all_probes
from dice.verify.probes.runner import Result, Task, run
from dice.verify.sandbox.jail import WITHOUT

NOBODY = 65534  # the user of nobody's, where root has to choose one
EVERYTHING = os.environ.get("DICE_PROBES") == "all"
SITE = str(Path(pytest.__file__).resolve().parents[1])


@dataclass(frozen=True)
class Place:
    """Who verifies, and without which mechanisms."""

    user: int
    without: str = ""

    def __str__(self) -> str:
        user = "root" if self.user == 0 else "ordinary user"
        return f"{user}, without {self.without}" if self.without else user


HERE = Place(os.geteuid())
ELSEWHERE = [Place(user, without) for without in ("", "namespaces") for user in sorted({os.geteuid(), NOBODY})]
PLACES = [HERE, *(place for place in ELSEWHERE if place != HERE and (os.geteuid() == 0 or place.user != NOBODY))]

# What may go otherwise elsewhere: whose files they are, whose descriptors count, who may do what to whom.
OF_A_USER = ("locked_leftovers", "deep_folder_locked", "descriptors_in_flight", "many_threads")
OF_A_PROCESS = ("survivors", "memory_of_orphans", "kills_all_it_can", "reads_other_jobs", "writes_elsewhere")
OF_BOTH = ("unlinked_files", "memory_files", "many_orphans", "survivors_of_the_warden")
TELLING = {
    (True, False): OF_A_USER,
    (False, True): OF_A_PROCESS,
    (True, True): (*OF_A_USER, *OF_A_PROCESS, *OF_BOTH),
}
# By `test_text_fuzz.py`, `test_message_fuzz.py` and `test_faults.py`; elsewhere, by the same probes for this user.
HELD_ELSEWHERE = {False: {"text", "messages", "infra"}, True: {"memory", "descriptors", "files", "processes"}}
NO_THEMES = {"quick", "slow", "victim"}  # among the tags of a probe
# Half a minute for one probe; and what `tests/verify/sandbox/test_limits.py` measures without a verifier around it.
# `burst_of_memory` is the case `memory_hog` as well, and `links_and_pipes` what test_faults.py leaves for outputs.
LEFT_OUT = (
    *("deep_folder", "shared_memory_of_the_dead", "memory_files", "unlinked_files", "many_threads"),
    *("burst_of_memory", "links_and_pipes", "many_empty_files"),
)
BETWEEN = [place for place in PLACES if place != HERE and not (place.user and place.without)]


@dataclass(frozen=True)
class Attack:
    place: Place
    task: Task

    def __str__(self) -> str:
        return f"{' '.join(self.task)} ({self.place})"


def attacks() -> Iterator[Any]:
    """All that there are, with the marks of each; those of a place run in one process."""
    for place in PLACES:
        for probe in all_probes():
            for ending in _endings(probe, place):
                attack = Attack(place, (probe.name, ending))
                marks = [pytest.mark.xdist_group(f"probes {place}"), pytest.mark.timeout(1800)]
                is_held = probe.tags - NO_THEMES <= HELD_ELSEWHERE[place != HERE]
                if is_held or place in BETWEEN or probe.name in LEFT_OUT:
                    marks.append(pytest.mark.slow)
                yield pytest.param(attack, id=str(attack), marks=marks)


def check(attack: Attack, chosen: Iterable[Attack]) -> None:
    """The promise of the probe is kept, or one of the guarantees that it rests on is said to be lacking."""
    result = _results(attack.place, tuple(one.task for one in chosen if one.place == attack.place))[attack.task]
    if result.state == "excused":
        pytest.skip(f"not guaranteed here, as verdicts say ({', '.join(result.excused)}): {result.broken[0][:200]}")
    assert not result.broken, f"{result.promise} {result.broken}"


def _endings(probe: Probe, place: Place) -> tuple[str, ...]:
    if EVERYTHING:
        return probe.endings
    if place == HERE:
        return probe.endings[-1:] if probe.quick else ()
    telling = TELLING.get((place.user != 0, bool(place.without)), ())
    return probe.endings[-1:] if probe.name in telling else ()


@functools.cache
def _results(place: Place, tasks: tuple[Task, ...]) -> dict[Task, Result]:
    """What is left when their verifier has ended is held against the last of them."""
    environment = {"OMP_NUM_THREADS": "1"} | ({WITHOUT: place.without} if place.without else {})
    options: dict[str, Any] = {}
    if place.user != os.geteuid():
        environment |= {"PYTHONPATH": os.pathsep.join((str(_package()), SITE)), **_home(place.user)}
        options = {"user": place.user, "python": _python(place.user)}
    try:
        Verifier(backend="emulated").close()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    found: dict[Task, Result] = {}
    for result in run(tasks, environment=environment, **options):
        if result.ending:
            found[result.name, result.ending] = result
        elif result.broken and found:
            last = list(found)[-1]
            found[last] = Result(*last, result.promise, (*found[last].broken, *result.broken))
    return found


def _package() -> Path:
    return Path(__file__).resolve().parents[2]


@functools.cache
def _python(user: int) -> str:
    """An interpreter like ours that another user can run."""
    version = f"python3.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        command = [python, "-c", "import torch, dice.verify"]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(_package()), SITE)), "HOME": "/nonexistent"}
        try:
            done = subprocess.run(
                command,
                user=user,
                group=user,
                extra_groups=[],
                env=variables,
                cwd="/",
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    pytest.skip("no interpreter here can be run by another user")


def _large(folder: str, names: list[str]) -> list[str]:
    """Of what builds share, PyTorch's own headers: most of a gigabyte, which no probe needs."""
    return [name for name in names if sum(file.stat().st_size for file in Path(folder, name).glob("*.gch")) > 300 << 20]


@functools.cache
def _home(user: int) -> dict[str, str]:
    """Folders of the user's own, with what all builds share: to make that takes a minute."""
    folder = Path(tempfile.mkdtemp(prefix="dice-tests-", dir="/var/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build.prepare("emulated", default_cache_dir())
    guard.build(default_cache_dir())
    cache = folder / "cache"
    (cache / "extensions").mkdir(parents=True)
    for path in (default_cache_dir() / "headers", *default_cache_dir().glob("emulator-*")):
        shutil.copytree(path.resolve(), cache / path.name, ignore=_large)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)
    return {"HOME": str(folder), "DICE_CACHE": str(cache)}
