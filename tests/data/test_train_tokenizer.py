"""nano's tokenizer: exact on any text, digits apart, the same on every run, readable by both loaders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dice.data.train_tokenizer import train_tokenizer
from dice.errors import UserError
from dice.model.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "dice" / "train").glob("*.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(SOURCES, tmp_path_factory.mktemp("tokenizer"), 1024)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


code = st.text(st.sampled_from(" \t\n\r_ax09(<>;=\"'\u00e9\u4e2d\U0001f600\u2028\u0301\x00"), max_size=40)


@settings(max_examples=300)
@given(text=st.one_of(code, st.text(max_size=40)))
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


@given(numbers=st.lists(st.integers(0, 10**9), min_size=1, max_size=5), glue=st.sampled_from([" ", "", "x", "_", ", "]))
def test_every_digit_is_its_own_token(tokenizer: Tokenizer, numbers: list[int], glue: str) -> None:
    text = glue.join(map(str, numbers))
    pieces = [tokenizer.decode([token], skip_special=False) for token in tokenizer.encode(text)]
    assert [piece for piece in pieces if any(c.isdigit() for c in piece)] == [c for c in text if c.isdigit()]


def test_words_indents_and_punctuation_are_pieces(tokenizer: Tokenizer) -> None:
    text = "\n        return torch.zeros(1)\n    def f(self) -> None:"
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(text)]
    for piece in ("\n        ", "return", " torch", "\n    ", "def", " None"):
        assert piece in pieces
    assert len(tokenizer.encode("self")) == 1


def test_vocabulary_and_control_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    assert tokenizer.vocab_size == 1024
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")
    assert [tokenizer.token_id(name) for name in names] == [0, 1, 2, 3]
    assert (tokenizer.mask_id, tokenizer.pad_id, tokenizer.stop_ids) == (3, 0, {0, 2})


def test_transformers_reads_the_same_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import AutoTokenizer  # here, since to import it takes longer than the other tests

    theirs = AutoTokenizer.from_pretrained(folder)
    text = SOURCES[0].read_text() + "\u4e2d 12.5e-3\n\n\t x"
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    assert theirs.decode(tokenizer.encode(text)) == text
    assert [theirs.eos_token, theirs.pad_token, theirs.mask_token] == ["<|im_end|>", "<|endoftext|>", "<|MASK|>"]
    turns = (("user", " a\n"), ("assistant", "b"), ("user", "c"))
    chat = [{"role": role, "content": content} for role, content in turns]
    rendered = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert rendered == tokenizer.render_chat(chat)
    assert rendered.endswith("<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n")
    assert theirs.encode(rendered, add_special_tokens=False) == tokenizer.encode_chat(chat)


def test_training_is_deterministic_across_processes(folder: Path, tmp_path: Path) -> None:
    files = [str(path) for path in SOURCES]
    script = (
        f"from dice.data.train_tokenizer import train_tokenizer; train_tokenizer({files!r}, {str(tmp_path)!r}, 1024)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["chat_template.jinja", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_unusable_corpora_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    for files, size, message in (
        ([], 1024, "at least one file"),
        ([tmp_path / "absent.txt"], 1024, "no data file"),
        ([tmp_path / "bytes.txt"], 1024, "not UTF-8"),
        (SOURCES, 100, "below 260"),
    ):
        with pytest.raises(UserError, match=message):
            train_tokenizer(files, tmp_path / "out", size)
