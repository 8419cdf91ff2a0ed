"""Processes and threads are counted, ended, and reach nobody else."""

from __future__ import annotations

from attack import Attack, attacks, check


@attacks("processes")
def test_processes(attack: Attack) -> None:
    check(attack)


@attacks("descriptors")
def test_descriptors(attack: Attack) -> None:
    check(attack)
