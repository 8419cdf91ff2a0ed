"""`dice train adapt`: from an autoregressive checkpoint to a model that writes by block diffusion and trains on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import PAD_ID

from dice.cli import main
from dice.data.pairs import Pair
from dice.decode.generate import DecodeConfig, generate
from dice.errors import UserError
from dice.model.checkpoint import load_model
from dice.model.tokenizer import Tokenizer
from dice.recipes import adapt
from dice.train.config import SFTConfig
from dice.train.packing import pack, tokenize
from dice.train.sft import train_adapted, train_sft


def next_token_model(toy: SFTConfig, out: Path, steps: int) -> Path:
    """A model that predicts the next token of the toy task, after so many steps."""
    assert toy.shape is not None
    shape = replace(toy.shape, family="qwen3")
    return train_sft(replace(toy, shape=shape, out=out, eval_data=None, max_steps=steps)).model


@pytest.fixture(scope="module")
def qwen3(toy: SFTConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next_token_model(toy, tmp_path_factory.mktemp("qwen3"), 1)


def test_an_adapted_model_is_a_model_like_any_other(toy: SFTConfig, qwen3: Path, tmp_path: Path) -> None:
    """The command goes on after a stop with what it has made; the result loads, writes in blocks and trains on."""
    out = tmp_path / "run"
    flags = ["--model", str(qwen3), "--data", str(toy.data), "--out", str(out)]
    flags += ["--device", "cpu", "--epochs", "None", "--max-steps", "2", "--log-every", "1"]
    flags += ["--row-tokens", "256", "--batch-rows", "4", "--micro-rows", "4"]
    assert main(["train", "adapt", *flags, "--stop-after-seconds", "1e-9"]) == 0
    written = (out / "initial" / "model.safetensors").stat().st_mtime_ns
    assert main(["train", "adapt", *flags]) == 0
    assert (out / "initial" / "model.safetensors").stat().st_mtime_ns == written
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
    model, tokenizer = load_model(out / "model"), Tokenizer.from_folder(out / "model")
    assert (model.config.family, model.config.block_size) == ("sdar", 4)
    assert model.config.mask_token_id == tokenizer.mask_id
    (trace,) = generate(model, [tokenizer.encode("relu")], DecodeConfig(max_new_tokens=8, temperature=0.0))
    assert trace.block_size == 4
    more = replace(toy, shape=None, model=str(out / "model"), out=tmp_path / "sft", max_steps=1)
    assert load_model(train_sft(more).model).config.family == "sdar"


@pytest.mark.slow  # that it is the same loop as SFT's, which learns, holds in small above
def test_what_the_source_knew_is_worth_something(toy: SFTConfig, tmp_path: Path) -> None:
    """The same steps from the weights of a model of the next token, and from random ones: the former ends lower."""
    source = next_token_model(toy, tmp_path / "source", 60)
    settings = {"learn": "all", "max_steps": 30, "log_every": 1, "device": "cpu"}
    adapted = replace(toy, model=str(source), shape=None, tokenizer=None, out=tmp_path / "adapted", **settings)
    train_adapted(adapted)
    train_sft(replace(toy, out=tmp_path / "scratch", **settings))
    losses = []
    for run in ("adapted", "scratch"):
        lines = [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["val_loss"] for line in lines if "val_loss" in line][-1])
    assert losses[0] < 0.8 * losses[1]


def test_what_cannot_be_adapted_is_said(toy: SFTConfig, qwen3: Path, tmp_path: Path) -> None:
    sizes = {"row_tokens": 256, "batch_rows": 4, "micro_rows": 4, "epochs": None, "max_steps": 1}
    config = replace(adapt(), data=toy.data, out=tmp_path / "run", device="cpu", **sizes)
    with pytest.raises(UserError, match="Give .*model"):
        train_adapted(config)
    with pytest.raises(UserError, match="nothing to adapt"):
        train_adapted(replace(config, model="nano"))
    train_adapted(replace(config, model=str(qwen3)))
    with pytest.raises(UserError, match="adapts model, not .*other; give another"):
        train_adapted(replace(config, model=str(tmp_path / "other")))


def test_whole_documents_are_learned_where_that_is_asked(toy: SFTConfig) -> None:
    tokenizer = Tokenizer.from_folder(str(toy.tokenizer))
    pair = Pair(({"role": "user", "content": "apply relu"},), "float x;")
    (taught,), (whole,) = tokenize([pair], tokenizer), tokenize([pair], tokenizer, whole=True)
    assert list(taught.ids) == list(whole.ids) and taught.prompt_length > 0 == whole.prompt_length
    rows = pack([whole], row_tokens=128, block_size=4, pad_id=PAD_ID)
    assert int(rows.trainable.sum()) == -(-len(whole.ids) // 4) * 4


@pytest.mark.parametrize("family", ["sdar", "qwen3"])
def test_plain_texts_are_learned_from_their_first_token(family: str, toy: SFTConfig, tmp_path: Path) -> None:
    """By a model that predicts the next token, from their second: before the first there is none to predict it from."""
    from dice.train.initial_model import initial_model
    from dice.train.sft_data import load_data
    from dice.train.world import World

    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"float y{index} = {index};"}) + "\n" for index in range(9)))
    assert toy.shape is not None and toy.tokenizer is not None
    config = replace(toy, data=texts, eval_data=None, shape=replace(toy.shape, family=family), out=tmp_path / "run")
    tokenizer = Tokenizer.from_folder(toy.tokenizer)
    world = World(torch.device("cpu"))
    rows = load_data(config, tokenizer, initial_model(config, tokenizer, world.device).config, world).rows
    first = rows.tokens[0][rows.documents[0] == 0]
    text = tokenizer.decode(first.tolist())
    assert text.startswith("float y") and rows.used == 9
    assert bool(rows.trainable[0, 0]) == (family == "sdar") and bool(rows.trainable[0, 1])


def test_an_empty_text_is_named(tmp_path: Path) -> None:
    from dice.data.pairs import read_pairs

    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n{"text": ""}\n')
    with pytest.raises(UserError, match="line 2.*`text`"):
        read_pairs(tmp_path / "texts.jsonl")


def test_texts_begin_as_the_tokenizer_says(toy: SFTConfig, tmp_path: Path) -> None:
    """Llama 3's texts begin with a token of their own; it is learned from in plain texts, and templates name it."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import processors

    assert toy.tokenizer is not None
    plain = Tokenizer.from_folder(toy.tokenizer)
    fast = FastTokenizer.from_file(str(toy.tokenizer / "tokenizer.json"))
    begin = fast.token_to_id("<|im_start|>")
    fast.post_processor = processors.TemplateProcessing(
        single=["<|im_start|>", "$A"], special_tokens=[("<|im_start|>", begin)]
    )
    for file in toy.tokenizer.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    fast.save(str(tmp_path / "tokenizer.json"))
    begun = Tokenizer.from_folder(tmp_path)
    (one,), (other,) = (tokenize([Pair((), "float x;")], tokenizer) for tokenizer in (plain, begun))
    assert list(other.ids) == [begin, *one.ids] and one.ids[-1] == plain.turn_end
    assert begun.encode("float x;") == plain.encode("float x;")
