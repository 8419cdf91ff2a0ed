"""What else can be trained: an autoregressive model, by predicting the next token. What cannot is refused at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.attention.flex_attention import create_block_mask
from training_helpers import PAD_ID, VOCAB, random_documents

from dice.decode.generate import DecodeConfig, generate
from dice.errors import UserError
from dice.model.checkpoint import load_model
from dice.model.config import SDARConfig
from dice.model.family import NO_MASK
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.train.attention import DenseMask, FlexMask
from dice.train.config import SFTConfig
from dice.train.engine import Engine
from dice.train.noise import all_of
from dice.train.packing import PackedRows, pack
from dice.train.sft import train_sft
from dice.train.sft_objective import weighted_loss


def causal_model() -> SDAR:
    torch.manual_seed(0)
    config = SDARConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512, block_size=1, mask_token_id=NO_MASK,
        initializer_range=0.3, family="qwen3",
    )  # fmt: skip
    return SDAR(config).double()


def causal_rows(count: int, row_tokens: int, seed: int = 0) -> PackedRows:
    rows = pack(random_documents(count, seed), row_tokens=row_tokens, block_size=1, pad_id=PAD_ID)
    return replace(rows, causal=True).take(torch.arange(len(rows)))


def test_next_token_loss_equals_a_slow_reference() -> None:
    """Each document alone, token after token: the loss and its gradient by every weight."""
    model, batch = causal_model(), causal_rows(7, 64)
    assert int(batch.documents.max()) >= 1, "the batch must really be packed"
    engine = Engine(model.hidden, DenseMask(1), "dense")
    ours, found = weighted_loss(engine, model, batch, all_of(batch.trainable), NO_MASK)
    slow = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        for number in batch.documents[row].unique():
            here = batch.documents[row] == number
            ids, trained = batch.tokens[row, here], batch.trainable[row, here].nonzero().flatten()
            if len(trained):
                log_p = model(ids[None])[0].log_softmax(-1)
                slow = slow - log_p[trained - 1, ids[trained]].sum()
    assert ours.item() == pytest.approx(slow.item(), rel=1e-9)
    assert found[0].item() == pytest.approx(found[1].item(), rel=1e-6)
    weights = list(model.parameters())
    for one, other in zip(torch.autograd.grad(ours, weights), torch.autograd.grad(slow, weights), strict=True):
        assert float((one - other).norm()) <= 1e-6 * float(other.norm()) > 0


def test_causal_tiles_are_those_of_the_mask_itself() -> None:
    batch = causal_rows(24, 256)
    layout = batch.layout(1)
    reference = create_block_mask(layout.mask_mod(), len(batch), None, 256, 256, device="cpu")
    ours = FlexMask(1)(batch)
    assert torch.equal(ours.to_dense(), reference.to_dense())
    assert int(ours.full_kv_num_blocks.sum()) == int(reference.full_kv_num_blocks.sum())


@pytest.mark.slow  # a whole run
def test_an_autoregressive_model_learns_from_nothing(toy: SFTConfig, tmp_path: Path) -> None:
    """The same recipe and shape, but of family qwen3: it learns, goes on after a stop, and writes as taught."""
    assert toy.shape is not None
    config = replace(toy, shape=replace(toy.shape, family="qwen3"), out=tmp_path)
    first = train_sft(replace(config, stop_after_seconds=1e-9))
    assert not first.finished
    result = train_sft(config)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "val_loss" in line]
    assert result.finished and held_out[-1]["val_accuracy"] > 0.7
    model, tokenizer = load_model(result.model), Tokenizer.from_folder(result.model)
    assert (model.config.family, model.config.block_size, model.config.mask_token_id) == ("qwen3", 1, NO_MASK)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "apply relu to 123 values"}])
    decoding = DecodeConfig(max_new_tokens=120, temperature=0.0, stop_ids=tokenizer.stop_ids)
    (trace,) = generate(model, [prompt], decoding)
    assert trace.stop_reason == "stop" and "__global__ void" in tokenizer.decode(trace.response_ids)


def test_what_is_written_loads_in_transformers(toy: SFTConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert toy.shape is not None
    result = train_sft(replace(toy, shape=replace(toy.shape, family="qwen3"), out=tmp_path, max_steps=3))
    settings = json.loads((result.model / "config.json").read_text())
    assert "auto_map" not in settings and "mask_token_id" not in settings and "block_size" not in settings
    theirs = transformers.AutoModelForCausalLM.from_pretrained(result.model, dtype=torch.float32)
    ids = torch.arange(4, 40)[None]
    assert torch.allclose(load_model(result.model)(ids), theirs(ids).logits, atol=1e-4)
    again = train_sft(replace(toy, shape=None, model=str(result.model), out=tmp_path / "more", max_steps=2))
    assert load_model(again.model).config.family == "qwen3"


def published(kind: str, tied: bool, folder: Path) -> Path:
    """A tiny model as transformers writes it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=tied,
    )  # fmt: skip
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("changes", [{"ema": 0.5}, {"precision": "bf16"}], ids=str)
def test_a_tied_model_stays_tied(changes: dict[str, Any], toy: SFTConfig, tmp_path: Path) -> None:
    """Qwen3-1.7B and 4B: one parameter reads and writes, resumes, and is stored once."""
    base = published("Qwen3", True, tmp_path / "theirs")
    config = replace(toy, shape=None, model=str(base), out=tmp_path / "run", max_steps=4, **changes)
    assert not train_sft(replace(config, stop_after_seconds=1e-9)).finished
    result = train_sft(config)
    stored, before = load_file(result.model / "model.safetensors"), load_file(base / "model.safetensors")
    assert stored.keys() == before.keys() and "lm_head.weight" not in stored
    model, tokenizer = load_model(result.model), Tokenizer.from_folder(result.model)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.config.tied
    moved = (stored["model.embed_tokens.weight"] - before["model.embed_tokens.weight"]).abs().amax(1)
    read = set(tokenizer.encode_chat([{"role": "user", "content": "apply relu to 1 values"}]))
    assert int((moved > 0).sum()) > len(read), "the head's gradient reaches rows that no prompt reads"
    import transformers

    again = transformers.AutoModelForCausalLM.from_pretrained(result.model, dtype=torch.float32)
    ids = torch.arange(4, 40)[None]
    assert torch.allclose(model(ids), again(ids).logits, atol=1e-4)


def test_what_cannot_be_written_is_refused_before_training(toy: SFTConfig, tmp_path: Path) -> None:
    base = published("Llama", False, tmp_path / "theirs")
    with pytest.raises(UserError, match="this one is of llama; `dice train adapt`"):
        train_sft(replace(toy, shape=None, model=str(base), out=tmp_path / "run"))
    assert not (tmp_path / "run" / "model").exists()
