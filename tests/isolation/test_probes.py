"""Every promise of the sandbox is kept under the probe that goes for it."""

from __future__ import annotations

import pytest
from attack import Attack, attacks, check


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> tuple[Attack, ...]:
    """The attacks that this run of the tests is to make; with one verifier for all of a place, which takes a while to
    start, it has to know them beforehand."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    return tuple(call.params["attack"] for call in calls if isinstance(call.params.get("attack"), Attack))


@pytest.mark.parametrize("attack", list(attacks()))
def test_promises_are_kept(attack: Attack, chosen: tuple[Attack, ...]) -> None:
    check(attack, chosen)
