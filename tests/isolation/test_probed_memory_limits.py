"""Memory in every form that a process can hold it in counts, and is given back."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("memory")
def test_memory(attack: Attack) -> None:
    check(attack)
