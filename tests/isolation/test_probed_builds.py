"""Builds that a candidate asks for: unread, odd, without end, of files that are none of its business."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("builds")
def test_builds(attack: Attack) -> None:
    check(attack)
