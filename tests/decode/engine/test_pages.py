"""Pages: nobody's are handed out twice, nobody's are lost, and a shared page holds what its sharers think it holds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dice.decode.engine.pages import Pages

SIZE, COUNT = 3, 8
TEXT = st.lists(st.integers(0, 1), max_size=SIZE * COUNT)  # two tokens, so that beginnings are often the same


class TextsInPages(RuleBasedStateMachine):
    """Texts come and go; `contents` is what the storage would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(COUNT, SIZE)
        self.texts: list[tuple[list[int], list[int]]] = []
        self.contents: dict[int, tuple[int, ...]] = {}
        self.outdated: set[int] = set()  # pages written before the weights changed

    @rule(tokens=TEXT)
    def enter(self, tokens: list[int]) -> None:
        shared = self.pages.share(tokens)
        assert len(shared) * SIZE <= len(tokens)  # whole pages only
        for place, page in enumerate(shared):
            assert self.contents[page] == tuple(tokens[: (place + 1) * SIZE]) and page not in self.outdated
        own = self.pages.take(self.pages.needed(len(tokens)) - len(shared))
        if own is None:
            self.pages.release(shared)
            return
        held = {page for _, others in self.texts for page in others}
        assert not held & set(own) and not set(shared) & set(own)
        table = [*shared, *own]
        for place in range(len(shared), len(table)):
            self.contents[table[place]] = tuple(tokens[: (place + 1) * SIZE])
            self.outdated.discard(table[place])
        self.pages.publish(tokens, table)
        self.texts.append((tokens, table))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        _, table = self.texts.pop(data.draw(st.integers(0, len(self.texts) - 1)))
        self.pages.release(table)

    @rule()
    def change_weights(self) -> None:
        self.pages.forget()
        self.outdated = set(self.contents)

    @invariant()
    def every_page_is_free_or_held(self) -> None:
        held = {page for _, table in self.texts for page in table}
        assert self.pages.free == COUNT - len(held)

    @invariant()
    def held_pages_keep_their_contents(self) -> None:
        for tokens, table in self.texts:
            assert all(self.contents[page] == tuple(tokens[: (place + 1) * SIZE]) for place, page in enumerate(table))


TestTextsInPages = TextsInPages.TestCase
TestTextsInPages.settings = settings(max_examples=60, stateful_step_count=25)


def test_a_beginning_is_found_again_after_its_text_has_left() -> None:
    pages = Pages(4, 2)
    table = pages.take(3)
    assert table is not None
    pages.publish([1, 2, 3, 4, 5], table)
    pages.release(table)
    assert pages.free == 4
    assert pages.share([1, 2, 3, 4, 9, 9]) == table[:2]
    assert pages.free == 2


def test_the_end_of_a_text_is_handed_out_before_its_beginning() -> None:
    pages = Pages(3, 2)
    table = pages.take(3)
    assert table is not None
    pages.publish([1, 2, 3, 4, 5, 6], table)
    pages.release(table)
    assert pages.take(1) == [table[2]]
    assert pages.share([1, 2, 3, 4, 5, 6]) == table[:2]


def test_too_many_pages_are_not_given_in_part() -> None:
    pages = Pages(2, 4)
    assert pages.take(3) is None and pages.free == 2


@pytest.mark.parametrize(("positions", "needed"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_pages_needed(positions: int, needed: int) -> None:
    assert Pages(9, 4).needed(positions) == needed
