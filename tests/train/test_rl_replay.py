"""Replayed rows hold what the sampler saw, once each, and rows and tiles keep responses apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rl_traces import made_up_trace, random_prompt
from test_sft_engine import listed
from torch.nn.attention.flex_attention import create_block_mask
from training_helpers import MASK_ID, tiny_model

from dice.decode.trace import GIVEN, Trace
from dice.model.mask import BlockLayout
from dice.train.attention import DenseMask, FlexMask, tiles
from dice.train.engine import Engine
from dice.train.rl.replay import PackedReplays, ReplayError, pack_replays, replay


def views(trace: Trace, shrink: int = 1) -> list[tuple[int, int, list[int], list[int]]]:
    """(view, first position, what the block shows, positions to predict) of each noisy copy."""
    one = replay(trace, trace.block_size, trace.mask_token_id, shrink)
    found = []
    for start in range(0, len(one), trace.block_size):
        part = slice(start, start + trace.block_size)
        if one.views[part].any():
            targets = one.positions[part][one.targets[part]]
            found.append(
                (int(one.views[start]), int(one.positions[start]), one.tokens[part].tolist(), targets.tolist())
            )
    return found


@pytest.mark.parametrize("shrink", [1, 2, 4])
@pytest.mark.parametrize("prompt", [4, 5, 6, 7])
def test_each_view_is_what_the_sampler_saw(prompt: int, shrink: int) -> None:
    """Against the trace's own frames: the block before the first step of the round, and what the round revealed."""
    trace = made_up_trace(random_prompt(prompt), blocks=5, seed=prompt)
    frames = [[*trace.prompt_ids, *frame] for frame in trace.frames()]
    expected = []
    for start in range(4, 4 + 20, 4):
        inside = [p for p in range(start, start + 4) if p >= prompt]
        steps = sorted({trace.steps[p - prompt] for p in inside})
        for number, first in enumerate(range(0, len(steps), shrink)):
            group = steps[first : first + shrink]
            revealed = [p for p in inside if trace.steps[p - prompt] in group]
            expected.append((number + 1, start, frames[group[0]][start : start + 4], revealed))
    assert views(trace, shrink) == expected
    assert len(set(trace.steps)) < len(trace.steps), "the trace must reveal several tokens in some steps"


def test_grid_counted_from_the_response_start() -> None:
    """A prompt of 6 tokens: the first block is positions 4 to 7, holds two prompt tokens and shows them."""
    trace = made_up_trace(random_prompt(6), blocks=3, seed=1)
    first = views(trace)[0]
    assert first[1] == 4
    assert first[2] == [*trace.prompt_ids[4:], MASK_ID, MASK_ID]
    assert {start % 4 for _, start, *_ in views(trace)} == {0}
    assert replay(trace, 4, MASK_ID).prefix == trace.prompt_ids[:4]


def test_shared_first_block_does_not_predict_the_prompt() -> None:
    trace = made_up_trace(random_prompt(7), blocks=2)
    assert min(position for *_, targets in views(trace) for position in targets) == 7


@pytest.mark.parametrize("dropped", [1, 3])
def test_tail_after_the_end_is_trained(dropped: int) -> None:
    """Tokens after the stop id are never targets; where the sampler saw them, they are seen."""
    trace = made_up_trace(random_prompt(8), blocks=3, seed=3, dropped=dropped, together=0.0)
    steps = [*trace.steps[:-4], 8, 10, 11, 9]  # the last token is revealed second, long before the one in the middle
    trace = replace(trace, steps=tuple(steps))
    last = [view for view in views(trace) if view[1] == 16]
    assert sorted(position for *_, targets in last for position in targets) == list(range(16, 20 - dropped))
    assert len(last) == 4 - dropped, "a round that revealed nothing of the answer needs no copy"
    if dropped == 1:
        assert [shown[3] for _, _, shown, _ in last] == [MASK_ID, trace.token_ids[-1], trace.token_ids[-1]]
    one = replay(trace, 4, MASK_ID)
    assert one.tokens[one.views == 0].tolist() == [*trace.prompt_ids[8:], *trace.token_ids]


def test_blocks_after_the_end_are_only_read() -> None:
    trace = made_up_trace(random_prompt(8), blocks=4, dropped=9)
    assert max(start for _, start, *_ in views(trace)) == 12


def test_every_kept_token_is_predicted_once() -> None:
    for seed in range(20):
        trace = made_up_trace(random_prompt(seed % 5), blocks=6, seed=seed, dropped=seed % 4)
        for shrink in (1, 2, 3, 4):
            one = replay(trace, 4, MASK_ID, shrink)
            position = one.positions[one.targets] - len(trace.prompt_ids)
            assert sorted(position) == list(range(trace.kept))
            assert one.labels[one.targets].tolist() == [trace.token_ids[i] for i in position]
            assert one.sampled[one.targets] == pytest.approx([trace.logprobs[i] for i in position])


@pytest.mark.parametrize("given", [range(0, 3), range(5, 15), range(4, 20)])
def test_given_tokens_are_seen_and_never_predicted(given: range) -> None:
    """A forced beginning, or what a repair left: in view from the first round of its block on, and no target."""
    trace = made_up_trace(random_prompt(6), blocks=5, seed=2)
    steps = tuple(GIVEN if i in given else step for i, step in enumerate(trace.steps))
    trace = replace(trace, steps=steps)
    frames = [[*trace.prompt_ids, *frame] for frame in trace.frames()]
    predicted = []
    for _, start, shown, targets in views(trace):
        (step,) = {steps[position - 6] for position in targets}
        assert shown == frames[step][start : start + 4]
        predicted += targets
    assert sorted(predicted) == [6 + i for i in range(trace.kept) if i not in given]


def test_text_is_encoded_anew() -> None:
    """Ids that no tokenizer would produce for their own text arrive untouched: a trace never passes through text."""
    trace = made_up_trace(random_prompt(5), blocks=2)
    ids = tuple([9] * len(trace.token_ids))  # a tokenizer would merge such a run
    one = replay(replace(trace, token_ids=ids), 4, MASK_ID)
    assert one.tokens[one.views == 0].tolist() == [*trace.prompt_ids[4:], *ids]
    assert set(one.labels[one.targets]) == {9}


def test_copies_of_a_block_are_at_most_its_steps() -> None:
    for block_size in (4, 8):
        trace = made_up_trace(random_prompt(9), blocks=8, block_size=block_size)
        for shrink in (1, 2, 3):
            starts = [start for _, start, *_ in views(trace, shrink)]
            assert max(starts.count(start) for start in starts) <= -(-block_size // shrink)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 2}, "blocks of 2"),
        ({"mask_token_id": 5}, "mask token 5"),
        ({"steps": (GIVEN, *[0] * 7), "token_ids": (MASK_ID, *[5] * 7)}, "not fully denoised"),
        ({"token_ids": (5,) * 7, "steps": (0,) * 7, "logprobs": (0.0,) * 7, "kept": 7}, "last block is cut off"),
    ],
)
def test_traces_of_another_kind_are_refused(change: dict[str, object], message: str) -> None:
    trace = replace(made_up_trace(random_prompt(8), blocks=2), **change)
    with pytest.raises(ReplayError, match=message):
        replay(trace, 4, MASK_ID)


def group_rows(row_tokens: int = 256, block_size: int = 4, seed: int = 0, rows_multiple: int = 1) -> PackedReplays:
    """Three prompts (one shorter than a block) with five responses each, packed."""
    traces = [
        made_up_trace(
            random_prompt(length, length), 2 + (seed + n) % 3, block_size, 9 * n + length, together=1 - 2 / block_size
        )
        for length in (3 * block_size + 1, 40, block_size - 1)
        for n in range(5)
    ]
    replays = [replay(trace, block_size, MASK_ID) for trace in traces]
    rows = pack_replays(replays, row_tokens=row_tokens, block_size=block_size, rows_multiple=rows_multiple)
    return rows.take(torch.arange(len(rows)))


def spec_mask(layout: BlockLayout) -> torch.Tensor:
    """The mask from its description in words, pair by pair."""
    rows, length = layout.position_ids.shape
    mask = torch.zeros(rows, length, length, dtype=torch.bool)
    columns = (layout.position_ids // layout.block_size, layout.document_ids, layout.view_ids, layout.prefix_ids)
    for row in range(rows):
        tokens = list(zip(*(column[row].tolist() for column in columns), strict=True))
        for q, (block, document, view, prefix) in enumerate(tokens):
            for k, (k_block, k_document, k_view, _) in enumerate(tokens):
                same_copy = (document, view, block) == (k_document, k_view, k_block)
                earlier = k_document in (document, prefix) and k_view == 0 and k_block < block
                mask[row, q, k] = same_copy or earlier
    return mask[:, None]


def test_dense_mask_is_the_rule_in_words() -> None:
    layout = group_rows(row_tokens=128).layout(4)
    assert torch.equal(layout.dense(), spec_mask(layout))


@pytest.mark.parametrize("block_size", [4, 8, 32, 128])
def test_tiles_are_those_of_the_mask_itself(block_size: int) -> None:
    """Against FlexAttention's own builder and against the dense mask, for rows of several prompts."""
    mask, row_tokens = FlexMask(block_size), max(256, 24 * block_size)
    for seed in (0, 1):  # the second batch goes through the in-place update
        batch = group_rows(row_tokens, block_size, seed, rows_multiple=3).take(torch.arange(3))
        layout = batch.layout(block_size)
        reference = create_block_mask(layout.mask_mod(), *(len(batch), None, row_tokens, row_tokens), device="cpu")
        ours = mask(batch)
        for kind in ("kv", "full_kv", "q", "full_q"):
            lists = [(getattr(m, f"{kind}_num_blocks"), getattr(m, f"{kind}_indices")) for m in (ours, reference)]
            assert torch.equal(listed(*lists[0]), listed(*lists[1])), kind
        dense = layout.dense()[:, 0].unflatten(2, (-1, 128)).unflatten(1, (-1, 128))
        partial, full = tiles(layout)
        assert torch.equal(dense.any(4).any(2), partial | full)
        assert torch.equal(dense.all(4).all(2), full)
        assert (partial | full).any() and not (partial | full).all()


def test_whole_tiles_are_found_across_a_prompt_and_its_response() -> None:
    """Late tokens see whole tiles of a long prompt, and the one that its end and the response's beginning fill."""
    one = replay(made_up_trace(random_prompt(300), blocks=40), 4, MASK_ID)
    rows = pack_replays([one], row_tokens=1024, block_size=4)
    full = tiles(rows.layout(4))[1][0]
    dense = rows.layout(4).dense()[0, 0].unflatten(1, (-1, 128)).unflatten(0, (-1, 128)).all(3).all(1)
    assert torch.equal(full, dense)
    assert full[:, :3].any(0).all(), "the prompt's whole blocks end at 300, within the third tile"


@pytest.mark.parametrize("captured", [False, True])
def test_flex_attention_gives_the_dense_result(captured: bool) -> None:
    """Forward only, which is all it does on a CPU. Captured: one graph of the compiler's front end for all batches."""
    torch._dynamo.reset()  # what other tests of this process made it compile is no recompilation of ours
    model, mask = tiny_model(4, torch.float32).requires_grad_(False), FlexMask(4)
    graph = torch.compile(model.hidden, backend="aot_eager", dynamic=False, fullgraph=True)
    flex = Engine(graph if captured else model.hidden, mask, "flex")
    dense = Engine(model.hidden, DenseMask(4), "dense")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (0, 1):
            batch = group_rows(256, seed=seed, rows_multiple=6)
            torch.testing.assert_close(flex(batch.tokens, batch), dense(batch.tokens, batch), rtol=1e-4, atol=1e-4)


def test_no_cross_talk_between_packed_responses() -> None:
    """Rewriting one response leaves every other token's hidden state bit for bit, those of its own prompt included."""
    model = tiny_model(4)
    batch = group_rows(512)
    engine = Engine(model.hidden, DenseMask(4), "dense")
    before = engine(batch.tokens, batch)[0]
    documents, views = batch.documents[0], batch.views[0]
    chosen = (documents == documents[views > 0][0]) & (batch.positions[0] >= 0)
    assert int((documents[views > 0].unique()).numel()) > 2, "the row must really be packed"
    batch.tokens[0, chosen] = batch.tokens[0, chosen].flip(0)
    after = engine(batch.tokens, batch)[0]
    assert torch.equal(before[~chosen], after[~chosen])
    assert not torch.allclose(before[chosen], after[chosen])


def test_prompt_of_a_group_is_read_once_per_row() -> None:
    replays = [replay(made_up_trace(random_prompt(42), 3, seed=n), 4, MASK_ID) for n in range(8)]
    rows = pack_replays(replays, row_tokens=512, block_size=4)
    assert len(rows) == 1
    assert rows.tokens_read == 40 + sum(len(one) for one in replays)
    assert int((rows.positions[rows.documents == rows.prefixes] == 0).sum() - (512 - rows.tokens_read) // 4) == 1


def test_packing_is_deterministic_and_complete() -> None:
    first, second = group_rows(192), group_rows(192)
    assert torch.equal(first.tokens, second.tokens)
    assert sorted(first.sample[first.trainable].unique().tolist()) == list(range(15))
    assert len(group_rows(192, rows_multiple=7)) % 7 == 0


def test_no_token_of_a_row_belongs_to_two_responses() -> None:
    batch = group_rows(192)
    for row in range(len(batch)):
        for document in batch.documents[row].unique():
            assert len(batch.sample[row, batch.documents[row] == document].unique()) == 1


def test_a_response_longer_than_a_row_is_refused() -> None:
    one = replay(made_up_trace(random_prompt(30), blocks=6), 4, MASK_ID)
    with pytest.raises(ReplayError, match="row_tokens is 64; raise row_tokens"):
        pack_replays([one], row_tokens=64, block_size=4)
    with pytest.raises(ReplayError, match="multiple of the block size"):
        pack_replays([one], row_tokens=66, block_size=4)


def test_rows_fill_up() -> None:
    """Best fit wastes little: rows other than the last few are nearly full."""
    rng = np.random.default_rng(0)
    replays = [
        replay(made_up_trace(random_prompt(20, n // 4), int(rng.integers(3, 20)), seed=n), 4, MASK_ID)
        for n in range(60)
    ]
    rows = pack_replays(replays, row_tokens=1024, block_size=4)
    assert rows.tokens_read / rows.tokens.numel() > 0.85
