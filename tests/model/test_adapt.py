"""Autoregressive checkpoints, in folders and in GGUF files, become block-diffusion models with the same transformer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import LLAMA3_ROPE, add_tokenizer, published, tokens, write_gguf

from dice.decode.generate import DecodeConfig, generate
from dice.errors import UserError
from dice.model.adapt import adapt
from dice.model.checkpoint import CheckpointError, load_model, read_config
from dice.model.gguf import GGUFFile
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer, TokenizerError

gguf = pytest.importorskip("gguf")
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TEXT = "int i = blockIdx.x; // it's 12345 \u00e9\n\n  x[i] += 1;"


@pytest.fixture(scope="module", params=["llama tied", "llama 3", "qwen2", "qwen3 tied"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    """Its name, a small model of `transformers`, and the folder where it lies with a tokenizer."""
    folder = tmp_path_factory.mktemp("source")
    model = published(request.param, folder)
    add_tokenizer(folder)
    return request.param, model, folder


@torch.no_grad()
def causal_logits(model: SDAR, ids: torch.Tensor) -> torch.Tensor:
    """In blocks of one, block-causal attention is causal."""
    positions = torch.arange(ids.shape[1])[None]
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, None]
    return model(ids, positions, mask)


def test_under_a_causal_mask_an_adapted_model_computes_what_its_source_does(
    source: tuple[str, Any, Path], tmp_path: Path
) -> None:
    _, theirs, folder = source
    ours = load_model(adapt(folder, tmp_path / "adapted", dtype=torch.float32))
    ids = tokens(2, 60)
    with torch.no_grad():
        expected = theirs(ids).logits[..., :320]  # one row for each token that it knows
    torch.testing.assert_close(causal_logits(ours, ids)[..., :320], expected, **CLOSE)
    config = ours.config
    assert (config.traits.kind, config.traits.shift, config.block_size) == ("block_diffusion", False, 4)
    assert config.mask_token_id == Tokenizer.from_folder(tmp_path / "adapted").token_id("<|MASK|>")


def test_a_gguf_file_is_the_folder_it_was_made_from(source: tuple[str, Any, Path], tmp_path: Path) -> None:
    """Its weights, its settings and its tokenizer; rows of queries and keys as llama.cpp orders them."""
    name, theirs, folder = source
    file = write_gguf(name, theirs, folder, tmp_path / "model.gguf")
    read = GGUFFile(file)
    ids = tokens(2, 60)
    with torch.no_grad():
        torch.testing.assert_close(read.model(torch.float32)(ids), theirs(ids).logits, **CLOSE)
    from_folder, from_file = (adapt(one, tmp_path / one.name[:3], dtype=torch.float32) for one in (folder, file))
    one, other = load_model(from_folder), load_model(from_file)
    for (key, mine), (_, its) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(mine, its, atol=0, rtol=0, msg=key)
    same = ("family", "tied", "llama3_rope", "mask_token_id", "rope_theta", "rms_norm_eps", "head_dim", "vocab_size")
    assert [getattr(one.config, key) for key in same] == [getattr(other.config, key) for key in same]
    texts = [Tokenizer.from_folder(one) for one in (from_folder, from_file)]
    assert texts[0].encode(TEXT) == texts[1].encode(TEXT) and texts[1].decode(texts[1].encode(TEXT)) == TEXT
    chats = [text.encode_chat([{"role": "user", "content": TEXT}]) for text in texts]
    assert chats[0] == chats[1] and texts[0].stop_ids == texts[1].stop_ids


def test_the_other_reader_of_gguf_agrees(tmp_path: Path) -> None:
    """That of `transformers`, on weights of four bits, whose values only the library knows."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "source"
    model = published("llama", folder, hidden_size=96, intermediate_size=96)
    add_tokenizer(folder)
    write_gguf("llama", model, folder, tmp_path / "model.gguf", quantised=gguf.GGMLQuantizationType.Q4_1)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    ids = tokens(1, 40)
    with torch.no_grad():
        ours = GGUFFile(tmp_path / "model.gguf").model(torch.float32)(ids)
        torch.testing.assert_close(ours, theirs.eval()(ids).logits, **CLOSE)
        assert not torch.allclose(ours, model(ids).logits, atol=1e-3), "the file must really be quantised"


def test_new_rows_are_the_mean_of_the_known_ones(tmp_path: Path) -> None:
    """Known: rows with a token. Rows beyond, which some vocabularies are padded with, were never trained."""
    folder = tmp_path / "source"
    model = published("llama", folder, vocab_size=330)  # 320 tokens and ten spare rows
    add_tokenizer(folder)
    adapted = load_model(adapt(folder, tmp_path / "adapted", dtype=torch.float32))
    for ours, theirs in (
        (adapted.model.embed_tokens.weight, model.model.embed_tokens.weight),
        (adapted.lm_head.weight, model.lm_head.weight),
    ):
        assert adapted.config.mask_token_id == 320 and len(ours) == 330
        torch.testing.assert_close(ours[320], theirs[:320].mean(0))
        assert torch.equal(ours[:320], theirs[:320]) and torch.equal(ours[321:], theirs[321:])


def test_a_vocabulary_without_room_grows_by_whole_units(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    published("llama tied", folder, vocab_size=320)
    add_tokenizer(folder)
    adapted = load_model(adapt(folder, tmp_path / "adapted"))
    assert (adapted.config.vocab_size, adapted.config.mask_token_id) == (384, 320)
    assert adapted.lm_head.weight is adapted.model.embed_tokens.weight


def test_a_mask_token_that_is_there_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    model = published("qwen2", folder)
    add_tokenizer(folder, extra=["<|mask|>"], mask_token="<|mask|>")
    out = adapt(folder, tmp_path / "adapted", dtype=torch.float32)
    adapted, tokenizer = load_model(out), Tokenizer.from_folder(out)
    mask = tokenizer.token_id("<|mask|>")
    assert mask is not None and adapted.config.mask_token_id == tokenizer.mask_id == mask
    assert tokenizer.token_id("<|MASK|>") is None
    assert torch.equal(adapted.model.embed_tokens.weight[mask], model.model.embed_tokens.weight[mask])


def test_a_tokenizer_without_a_template_speaks_chatml(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    published("llama", folder)
    add_tokenizer(folder, template=None)
    tokenizer = Tokenizer.from_folder(adapt(folder, tmp_path / "adapted"))
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.turn_end == tokenizer.token_id("<|im_end|>") in tokenizer.stop_ids


@pytest.mark.parametrize("name", ["llama 3", "qwen2 tied"])
def test_an_adapted_model_decodes_in_blocks(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    published(name, folder)
    add_tokenizer(folder)
    out = adapt(folder, tmp_path / "adapted", block_size=8)
    model = load_model(out)
    (trace,) = generate(model, [tokens(1, 9)[0].tolist()], DecodeConfig(max_new_tokens=16, temperature=0.0))
    assert trace.block_size == 8 and model.config.mask_token_id not in trace.response_ids
    assert read_config(out) == model.config


def test_a_qwen3_becomes_an_sdar(tmp_path: Path) -> None:
    """A model that SDAR's own code loads: its head is no longer the embedding, as in SDAR's releases."""
    folder = tmp_path / "source"
    published("qwen3 tied", folder)
    add_tokenizer(folder)
    settings = json.loads((adapt(folder, tmp_path / "adapted") / "config.json").read_text())
    assert settings["architectures"] == ["SDARForCausalLM"] and settings["tie_word_embeddings"] is False


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model, and the folder where it lies with a tokenizer; tests leave both as they are."""
    folder = tmp_path_factory.mktemp("llama")
    model = published("llama", folder)
    add_tokenizer(folder)
    return model, folder


Make = Callable[[tuple[Any, Path], Path], Path]


def changed(write: Callable[[Any], None]) -> Make:
    """A GGUF file with other settings than its model's."""

    def make(llama: tuple[Any, Path], folder: Path) -> Path:
        return write_gguf("llama", *llama, folder / "model.gguf", change=write)

    return make


def cut_short(llama: tuple[Any, Path], folder: Path) -> Path:
    file = changed(lambda writer: None)(llama, folder)
    file.write_bytes(file.read_bytes()[:30_000])
    return file


def noise(llama: tuple[Any, Path], folder: Path) -> Path:
    (folder / "model.gguf").write_bytes(np.random.default_rng(0).bytes(4096))
    return folder / "model.gguf"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (changed(lambda writer: writer.add_string("general.architecture", "gemma3")), "architecture 'gemma3'"),
        (changed(lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)), "'yarn' is not supported"),
        (changed(lambda writer: writer.add_rope_dimension_count(4)), "only a part of each head"),
        (changed(lambda writer: writer.add_tokenizer_model("llama")), "with --tokenizer"),
        (changed(lambda writer: writer.add_tokenizer_pre("viking")), "'viking'"),
        (changed(lambda writer: writer.add_uint16("split.count", 3)), "llama-gguf-split"),
        (changed(lambda writer: writer.add_feed_forward_length(81)), r"shape \[80, 48\].*ask for \[81, 48\]"),
        (changed(lambda writer: writer.add_block_count(3)), "lacks 9 tensor"),
        (changed(lambda writer: writer.add_block_count(1)), "does not have"),
        (changed(lambda writer: writer.add_tensor("rope_freqs.weight", np.full(4, 3.0, np.float32))), "not Llama 3's"),
        (cut_short, "damaged"),
        (noise, "damaged"),
        (lambda llama, folder: folder / "none.gguf", "no file"),
    ],
)
def test_an_unusable_file_is_one_sentence(make: Make, message: str, llama: tuple[Any, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        adapt(make(llama, tmp_path), tmp_path / "adapted")
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert not (tmp_path / "adapted").exists()


def test_another_tokenizer_can_stand_in(llama: tuple[Any, Path], tmp_path: Path) -> None:
    file = changed(lambda writer: writer.add_tokenizer_model("llama"))(llama, tmp_path)
    with pytest.raises(TokenizerError):
        GGUFFile(file).tokenizer()
    tokenizer = Tokenizer.from_folder(adapt(file, tmp_path / "adapted", tokenizer=llama[1]))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_what_writes_in_blocks_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="family sdar .*nothing to adapt"):
        adapt("nano", tmp_path / "adapted")


def test_llama_3s_stretch_is_found_again(tmp_path: Path) -> None:
    """From the divisors alone, for the published factors: of Llama 3.1 (8) and of Llama 3.2 (32)."""
    folder = tmp_path / "source"
    for factor in (8.0, 32.0):
        rope = LLAMA3_ROPE | {"factor": factor, "rope_theta": 5e5}
        model = published("llama 3", folder, rope_parameters=rope, head_dim=64)
        add_tokenizer(folder)
        found = GGUFFile(write_gguf("llama 3", model, folder, tmp_path / "model.gguf")).config.llama3_rope
        assert found is not None and found.factor == factor and found.original_max_position_embeddings == 8192


@pytest.mark.parametrize("words", ["llama-bpe", "qwen2", "smollm", "gpt-2"])
def test_texts_are_cut_into_words_as_the_published_tokenizers_do(
    words: str, llama: tuple[Any, Path], tmp_path: Path
) -> None:
    """Digits one, three or all at a time; contractions in capitals by some alone."""
    file = changed(lambda writer: writer.add_tokenizer_pre(words))(llama, tmp_path)
    encoder, _, _ = GGUFFile(file).tokenizer()
    pieces = [piece for piece, _ in encoder.pre_tokenizer.pre_tokenize_str("123456 we'll WE'LL")]
    upper = {"llama-bpe": ["\u0120WE", "'LL"], "qwen2": ["\u0120WE", "'LL"]}.get(words, ["\u0120WE", "'", "LL"])
    digits = {"llama-bpe": ["123", "456"], "gpt-2": ["123456"]}.get(words, list("123456"))
    assert pieces == [*digits, "\u0120we", "'ll", *upper]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from dice.errors import MachineError

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MachineError, match="install the extra `gguf`"):
        GGUFFile(tmp_path / "model.gguf")


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    model = published("llama", folder)
    add_tokenizer(folder)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
    file = write_gguf("llama", model, folder, tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"not a number, in blk\.1\.ffn_up\.weight"):
        adapt(file, tmp_path / "adapted")
