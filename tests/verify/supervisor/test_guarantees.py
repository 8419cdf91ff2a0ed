"""What the sandbox promises is tried by a jailed child, and found out where it is not held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Verifier
from dice.verify.options import default_cache_dir
from dice.verify.sandbox.jail import WITHOUT
from dice.verify.sandbox.process import Zygote
from dice.verify.sandbox.visible_paths import candidate_view
from dice.verify.supervisor.assignment import candidate_limits
from dice.verify.supervisor.guarantees import ATTEMPTS, LIMITS, PROMISES, broken, examine
from tests.conftest import CASES

FULL = ("namespaces+landlock+seccomp", "namespaces+landlock+seccomp+cgroups")


Zygotes = Callable[[], Zygote]  # one of the mechanisms that are named when it is asked for


@pytest.fixture
def cache() -> Path:
    folder = default_cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lacking(zygotes: Zygotes, cache: Path) -> tuple[str, ...]:
    return broken(zygotes(), cache, candidate_limits(1024, candidate_view(cache)))


def test_every_promise_is_tried_and_holds(zygotes: Zygotes, cache: Path) -> None:
    found = examine(zygotes(), cache, candidate_limits(1024, candidate_view(cache)))
    assert {one.name for one in found.guarantees} == set(PROMISES) == {*ATTEMPTS, *LIMITS}
    if found.tier not in FULL:
        pytest.skip(f"this host gives {found.tier} only")
    assert {one.name: one.found for one in found.guarantees if not one.held} == {}


@pytest.mark.parametrize(
    "without, lost",
    [
        ("namespaces", {"processes"}),
        pytest.param("seccomp,namespaces", {"processes", "system calls"}, marks=pytest.mark.slow),
        pytest.param("landlock,namespaces", {"processes", "files", "writes"}, marks=pytest.mark.slow),
        ("namespaces,landlock,seccomp", {"network", "files", "writes", "processes", "system calls"}),
    ],
)
def test_a_host_without_a_mechanism_is_said_to_lack_what_it_gave(
    without: str, lost: set[str], zygotes: Zygotes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITHOUT, without)
    assert lost <= set(lacking(zygotes, cache))


def test_one_mechanism_stands_in_for_another(zygotes: Zygotes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces hide files without Landlock, and keep the network away without seccomp."""
    monkeypatch.setenv(WITHOUT, "landlock")
    assert not {"files", "writes", "network"} & set(lacking(zygotes, cache))


def test_a_view_that_shows_too_much_is_noticed(zygotes: Zygotes, cache: Path) -> None:
    view = candidate_view(cache)
    assert "files" in broken(zygotes(), cache, candidate_limits(1024, (*view, str(cache))))
    assert "files" not in broken(zygotes(), cache, candidate_limits(1024, view))


@pytest.mark.usefixtures("lasting_zygote")
def test_what_is_lacking_stands_in_every_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT, "namespaces")
    with Verifier(backend="emulated") as verifier:
        verdict = verifier.verify(
            Problem.from_file(CASES / "problems" / "relu.py"), Kernel.from_file(CASES / "right_relu.py")
        )
    assert verdict.correct and "processes" in verdict.lacking and "namespaces" not in verdict.sandbox
