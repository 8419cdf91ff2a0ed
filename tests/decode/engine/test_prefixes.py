"""Who reads which pages together."""

from __future__ import annotations

from dataclasses import replace

import torch
from decoding_helpers import CONFIG, prompt_of
from hypothesis import given
from hypothesis import strategies as st

from dice.decode.engine.engine import Engine
from dice.decode.engine.prefixes import LEAST, TEXTS, most_groups, prefix_table, table_size
from dice.decode.request import DecodeConfig
from dice.model.sdar import SDAR

PAGE = 64
ENOUGH = LEAST // PAGE


def lines_of(table: list[int], slots: int) -> tuple[list[int], list[tuple[int, list[int]]]]:
    """What each slot shares, and the groups: (positions, slots)."""
    lines = [table[first : first + 1 + TEXTS] for first in range(slots, len(table), 1 + TEXTS)]
    return table[:slots], [(line[0], [slot for slot in line[1:] if slot >= 0]) for line in lines if line[0]]


def test_samples_of_two_prompts_are_two_groups_though_both_prompts_begin_alike() -> None:
    system = list(range(ENOUGH))
    first, second = [*system, 100, 101], [*system, 200]
    pages = [(slot, [*(first if slot % 2 else second), 300 + slot]) for slot in range(6)]
    shared, groups = lines_of(prefix_table(pages, 8, PAGE), 8)
    assert sorted((count, sorted(slots)) for count, slots in groups) == [
        ((ENOUGH + 1) * PAGE, [0, 2, 4]),
        ((ENOUGH + 2) * PAGE, [1, 3, 5]),
    ]
    assert shared == [(ENOUGH + 1 + slot % 2) * PAGE for slot in range(6)] + [0, 0]


def test_different_prompts_that_begin_alike_are_a_group() -> None:
    pages = [(slot, [*range(ENOUGH), 100 + slot]) for slot in range(3)]
    assert lines_of(prefix_table(pages, 4, PAGE), 4)[1] == [(LEAST, [0, 1, 2])]


def test_little_in_common_is_read_by_each_text() -> None:
    pages = [(slot, [*range(ENOUGH - 1), 100 + slot]) for slot in range(4)]
    assert not any(prefix_table(pages, 4, PAGE))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=40))
def test_groups_are_of_texts_with_these_pages_in_common(beginnings: list[list[int]]) -> None:
    pages = [(slot, [*beginning, 1000 + slot]) for slot, beginning in enumerate(beginnings)]
    table = prefix_table(pages, 40, PAGE)
    assert len(table) == table_size(40)
    shared, groups = lines_of(table, 40)
    assert len(groups) <= most_groups(40)
    known = dict(pages)
    members = [slot for _, slots in groups for slot in slots]
    assert len(members) == len(set(members))
    assert all(shared[slot] == 0 for slot in set(range(40)) - set(members))
    for count, slots in groups:
        assert count >= LEAST and 2 <= len(slots) <= TEXTS
        assert len({tuple(known[slot][: count // PAGE]) for slot in slots}) == 1
        assert all(shared[slot] == count for slot in slots)


def test_the_device_hears_of_it_when_texts_begin_and_end() -> None:
    engine = Engine(SDAR(replace(CONFIG, max_position_embeddings=512)), slots=40, block_size=4)
    slots, config = engine._runner.slots, DecodeConfig(max_new_tokens=8, stop_ids=frozenset())
    prompt = prompt_of(300, seed=1)
    for seed in range(40):
        engine.submit(prompt if seed < 36 else prompt_of(20, seed=seed), config, seed)
    seen = set()
    while engine.step():
        shared, groups = lines_of(slots.prefixes[0].tolist(), 40)
        seen.add(sum(count > 0 for count in shared))
        writing = {handle.slot for handle in engine._residents.in_state("writing")}
        assert all(count == 256 for count, _ in groups) and slots.has_prefixes == bool(groups)
        if slots.has_prefixes:
            first = slots.pages[[slot for _, members in groups for slot in members if slot in writing], :4]
            assert (first == first[:1]).all() if len(first) else True
    assert seen >= {36}
    engine.submit(prompt_of(9, seed=0), config, 0)
    engine.run()
    assert not slots.has_prefixes
    assert torch.equal(slots.prefixes, torch.zeros_like(slots.prefixes))
