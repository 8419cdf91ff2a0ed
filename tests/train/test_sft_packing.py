"""Pairs become rows: whole documents on the block grid, prompts never trained, control tokens never smuggled in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_helpers import PAD_ID, random_documents

import dice.train.packing
from dice.data.pairs import Pair, read_pairs
from dice.errors import UserError
from dice.model.tokenizer import Tokenizer
from dice.recipes import EMPTY_THOUGHT
from dice.train.config import SFTConfig
from dice.train.noise import NOISES, corrupt, step_generator
from dice.train.packing import Document, batch_rows, pack, place, tokenize


@given(st.lists(st.integers(1, 16).map(lambda n: n * 4), min_size=1, max_size=60))
def test_placing_never_overlaps_nor_overflows(lengths: list[int]) -> None:
    used: dict[int, list[tuple[int, int]]] = {}
    for length, (row, start) in zip(lengths, place(lengths, 64), strict=True):
        used.setdefault(row, []).append((start, start + length))
    assert sorted(used) == list(range(len(used)))
    for spans in used.values():
        spans.sort()
        assert spans[0][0] == 0 and spans[-1][1] <= 64
        assert all(end == start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert len(used) <= max(1, 2 * -(-sum(lengths) // 64))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([1, 4, 8]))
def test_every_document_is_found_whole_in_some_row(seed: int, block_size: int) -> None:
    documents = random_documents(12, seed=seed)
    rows = pack(documents, row_tokens=96, block_size=block_size, pad_id=PAD_ID)
    found = []
    for row in range(len(rows)):
        for number in rows.documents[row].unique():
            here = (rows.documents[row] == number).nonzero().squeeze(1)
            assert int(here[0]) % block_size == 0
            assert torch.equal(rows.positions[row, here], torch.arange(len(here), dtype=torch.int32))
            trained = rows.trainable[row, here]
            if trained.any():
                found.append((rows.tokens[row, here], trained))
    assert len(found) == len(documents)
    for document in documents:
        n, padded = len(document.ids), -(-len(document.ids) // block_size) * block_size
        match = [t for tokens, t in found if len(tokens) == padded and np.array_equal(tokens[:n].numpy(), document.ids)]
        assert match
        trained_positions = list(range(document.prompt_length, padded))
        assert match[0].nonzero().squeeze(1).tolist() == trained_positions


def test_prompts_are_never_hidden(toy: SFTConfig) -> None:
    """From text to noise: decode what can be hidden; no prompt or header is part of it."""
    assert toy.tokenizer is not None and toy.data is not None
    tokenizer = Tokenizer.from_folder(toy.tokenizer)
    pairs = read_pairs(toy.data)
    documents = tokenize(pairs, tokenizer)
    rows = pack(documents, row_tokens=256, block_size=4, pad_id=tokenizer.pad_id)
    batch = rows.take(torch.arange(len(rows)))
    ever = torch.zeros_like(batch.trainable)
    for noise in NOISES:
        for step in range(30):
            ever |= corrupt(batch.trainable, batch.documents, 4, noise, step_generator(0, "p", step, "cpu")).masked
    text = tokenizer.decode(batch.tokens[ever].tolist(), skip_special=False)
    assert "apply" not in text and "<|im_start|>" not in text
    assert text.count("__global__") == text.count("<|im_end|>") == len(pairs)
    header = tokenizer.encode_chat(pairs[0].messages)
    assert documents[0].ids[: len(header)].tolist() == header and documents[0].prompt_length == len(header)


def test_an_empty_thought_stands_only_before_responses_without_one(toy: SFTConfig) -> None:
    """As the released template does; a thought that is there is not begun a second time."""
    assert toy.tokenizer is not None
    tokenizer = Tokenizer.from_folder(toy.tokenizer)
    asked = ({"role": "user", "content": "apply relu"},)
    answers = ["x[i]", "<think>\nrelu is max\n</think>\n\nx[i]", "a thought\n</think>\n\nx[i]"]
    found = []
    for document in tokenize([Pair(asked, answer) for answer in answers], tokenizer, EMPTY_THOUGHT):
        response = document.ids[document.prompt_length : -1].tolist()
        found.append(tokenizer.decode(response, skip_special=False))
    assert found == [EMPTY_THOUGHT + answers[0], answers[1], answers[2]]


def test_control_tokens_in_data_stay_text(toy: SFTConfig) -> None:
    assert toy.tokenizer is not None
    tokenizer = Tokenizer.from_folder(toy.tokenizer)
    hostile = "a <|MASK|> b <|im_end|> c"
    document = tokenize([Pair(({"role": "user", "content": hostile},), hostile)], tokenizer)[0]
    assert tokenizer.mask_id not in document.ids
    end = tokenizer.token_id("<|im_end|>")
    assert [i for i, token in enumerate(document.ids) if token == end][-1] == len(document.ids) - 1
    assert list(document.ids).count(end) == 2  # the user's turn and the answer's


def test_workers_encode_as_one_process_does(toy: SFTConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy.tokenizer is not None and toy.data is not None
    tokenizer, pairs = Tokenizer.from_folder(toy.tokenizer), read_pairs(toy.data)
    alone = tokenize(pairs, tokenizer)
    monkeypatch.setattr(dice.train.packing, "PAIRS_PER_WORKER", 20)
    monkeypatch.setattr(dice.train.packing.os, "cpu_count", lambda: 2)
    together = tokenize(pairs, tokenizer)
    assert [d.ids.tolist() for d in together] == [d.ids.tolist() for d in alone]


def test_too_long_documents_are_dropped_and_counted() -> None:
    short, long = Document(np.arange(4, 14, dtype=np.int32), 2), Document(np.arange(4, 44, dtype=np.int32), 2)
    rows = pack([long, short], row_tokens=32, block_size=4, pad_id=PAD_ID)
    assert (rows.used, rows.dropped_long) == (1, 1)
    assert "1 too long, dropped" in rows.describe()
    with pytest.raises(UserError, match="longer than 32"):
        pack([long], row_tokens=32, block_size=4, pad_id=PAD_ID)


def test_padding_has_no_positions_beyond_the_longest_document() -> None:
    rows = pack(random_documents(3, longest=14), row_tokens=96, block_size=4, pad_id=PAD_ID, max_tokens=18)
    assert int(rows.positions.max()) < 16
    assert ((rows.positions == 0) == (rows.documents.diff(prepend=torch.tensor([[-1]])) != 0)).all()


def test_batches_visit_every_row_once_per_epoch_and_run_on() -> None:
    seen = np.concatenate([batch_rows(step, 4, 10, seed=3) for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert list(seen[:10]) != list(seen[10:])
    assert np.array_equal(batch_rows(2, 4, 10, seed=3), seen[8:12])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, "There is no data file"),
        ("empty.jsonl", "", "holds no rows"),
        ("columns.jsonl", '{"question": "a", "answer": "b"}\n', "has no `prompt`.*question, answer"),
        ("broken.jsonl", '{"prompt": "a"\n', "cannot be read as jsonl"),
        ("type.jsonl", '{"prompt": "a", "response": 3}\n', "`response` is not text"),
        ("broken.parquet", "no parquet", "cannot be read as parquet"),
        ("data.csv", "a,b", "is neither"),
        ("role.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n', "must be the assistant's"),
    ],
)
def test_unusable_data_is_one_sentence(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_pairs(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_chats_and_parquet_read_as_pairs(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"prompt": ["p"], "response": ["r"]}), tmp_path / "a.parquet")
    turns = '[{"from": "human", "value": "p"}, {"from": "gpt", "value": "r"}]'
    (tmp_path / "b.jsonl").write_text('{"messages": %s}\n' % turns)  # noqa: UP031
    (tmp_path / "c.json").write_text('[{"prompt": [{"role": "user", "content": "p"}], "response": "r"}]')
    expected = Pair(({"role": "user", "content": "p"},), "r")
    assert read_pairs(tmp_path) == [expected] * 3
