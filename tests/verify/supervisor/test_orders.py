"""In which order the emulator runs the threads of each trial: one that shows races, whatever the plan's order is."""

from __future__ import annotations

import itertools

from dice.verify.execution import inputs
from dice.verify.supervisor.attempt import IN_STEP, ISOLATED, Orders


def orders(*trials: tuple[str, bool]) -> list[int]:
    asked = Orders()
    return [asked.next(family, crowded) for family, crowded in trials]


def test_some_trial_that_can_show_a_race_is_isolated_in_every_order_of_the_plan() -> None:
    for families in itertools.permutations(("given", "centred", "zeros", "ties")):
        found = orders(*((family, False) for family in families))
        isolated = [family for family, order in zip(families, found, strict=True) if order == ISOLATED]
        assert len(isolated) == 1 and isolated[0] != "zeros" and found[0] == 0
        stepping = [family for family, order in zip(families, found, strict=True) if order == IN_STEP]
        told = set(families[1:]) - {"zeros"}
        assert len(told) < 2 or any(family != "zeros" for family in stepping)


def test_plans_of_every_seed_have_two_trials_that_can_show_a_race() -> None:
    for seed in range(200):
        plan = inputs.plan(3, seed, cheap=bool(seed % 2))
        assert ISOLATED in orders(*((step.family, step.crowded) for step in plan))


def test_trials_of_crowded_indices_are_isolated_too() -> None:
    assert orders(("given", False), ("centred", False), ("crowded", True), ("zeros", True))[1:3] == [ISOLATED, ISOLATED]


def test_no_two_of_the_first_trials_run_in_the_same_order() -> None:
    found = orders(*(("given", False) for _ in range(8)))
    assert len(set(found)) == 8
