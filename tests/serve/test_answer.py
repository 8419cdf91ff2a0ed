"""What a client may see of a text while it is written: in order, whole characters, nothing past a stop."""

from __future__ import annotations

import codecs
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from dice.decode.request import StepEvent
from dice.serve.answer import Answer

STOP = 999
PIECES = ["a", "b", "ab", "ba", "abc", "\n", " "]
DATA = [piece.encode() for piece in PIECES] + ["é".encode()[:1], "é".encode()[1:], "😀".encode()[:2], "😀".encode()[2:]]


def token_bytes(token: int) -> bytes:
    return DATA[token] if token < len(DATA) else b""


def written(tokens: list[int], stops: list[str], order: random.Random, block: int) -> tuple[Answer, list[str]]:
    """The answer after all tokens were revealed, block by block in any order, and the deltas."""
    answer, deltas = Answer(token_bytes, {STOP}, stops, len(tokens)), []
    for start in range(0, len(tokens), block):
        places = list(range(start, min(start + block, len(tokens))))
        order.shuffle(places)
        for place in places:
            event = StepEvent(0, 0, 0, (place,), (tokens[place],), (-0.5,), None)
            deltas.append(answer.take(event).text)
    return answer, deltas


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, len(DATA) - 1), min_size=1, max_size=24),
    st.lists(st.sampled_from(["ab", "abc", "bca", "é", "\n\n", "cab"]), max_size=3),
    st.integers(0, 10**6),
    st.integers(1, 6),
)
def test_the_deltas_are_the_text_up_to_the_first_stop(
    tokens: list[int], stops: list[str], seed: int, block: int
) -> None:
    answer, deltas = written(tokens, stops, random.Random(seed), block)
    # The text after each token, until one of them completes a stop string: that is where it is cut.
    expected = b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")
    for count in range(1, len(tokens) + 1):
        data = b"".join(map(token_bytes, tokens[:count]))
        so_far = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=count == len(tokens))
        starts = [so_far.find(stop) for stop in stops if stop in so_far]
        if starts:
            expected = so_far[: min(starts)]
            assert answer.kept == count
            break
    assert answer.text == "".join(deltas) == expected


def test_nothing_follows_a_stop_token() -> None:
    answer, deltas = written([0, STOP, 1, 1], [], random.Random(0), 4)
    assert (answer.ended, answer.kept, "".join(deltas)) == ("stop", 2, "a")


def test_a_possible_stop_is_held_back_and_given_when_it_is_none() -> None:
    answer = Answer(token_bytes, {STOP}, ["abc"], 3)
    shown = [
        answer.take(StepEvent(0, 0, 0, (place,), (token,), (0.0,), None)).text for place, token in enumerate([0, 1, 0])
    ]
    assert shown == ["", "", "aba"]


def test_tokens_come_with_their_text() -> None:
    answer = Answer(token_bytes, {STOP}, [], 3)
    deltas = [
        answer.take(StepEvent(0, 0, 0, (place,), (token,), (-1.0,), None)) for place, token in enumerate([7, 8, 0])
    ]
    assert [delta.text for delta in deltas] == ["", "é", "a"]
    assert [[token.data for token in delta.tokens] for delta in deltas] == [[], [DATA[7], DATA[8]], [b"a"]]


def test_given_tokens_are_shown_at_once() -> None:
    answer = Answer(token_bytes, {STOP}, [], 4, {0: 0, 1: 1, 3: 4})
    assert answer.take().text == "ab"
    assert answer.take(StepEvent(0, 0, 0, (2,), (5,), (0.0,), None)).text == "\nabc"
    assert answer.ended == "length"
