"""What a candidate leaves on the disk: deep, locked, oddly named, without a name, more than it may."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("files")
def test_files(attack: Attack) -> None:
    check(attack)
