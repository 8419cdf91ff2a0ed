"""Nothing of others is read: no source, no library, no process, no secret."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("reading")
def test_reading(attack: Attack) -> None:
    check(attack)
