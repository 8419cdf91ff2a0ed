"""No candidate passes for a fault of ours."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("infra")
def test_infra(attack: Attack) -> None:
    check(attack)
