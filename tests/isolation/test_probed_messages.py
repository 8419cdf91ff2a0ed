"""What a candidate says and hands back, in any form."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("messages")
def test_messages(attack: Attack) -> None:
    check(attack)
