"""Texts that are hard to read end no verifier, and hold up none."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("text")
def test_text(attack: Attack) -> None:
    check(attack)
