"""Checkpoint folders: what is saved loads again, and every damage is named in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import TINY, lively

from dice.errors import MachineError, UserError
from dice.model import checkpoint
from dice.model.checkpoint import CheckpointError, load_model, read_config, resolve_model, save_model
from dice.model.sdar import SDAR

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
SHARD_BYTES = 40_000


@pytest.fixture
def saved(tiny: SDAR, tmp_path: Path) -> Path:
    return save_model(tiny, TINY, tmp_path / "model")


@pytest.fixture
def sharded(tiny: SDAR, tmp_path: Path) -> Path:
    return save_model(tiny, TINY, tmp_path / "model", max_shard_bytes=SHARD_BYTES)


@torch.no_grad()
def test_saved_model_computes_the_same(tiny: SDAR, saved: Path) -> None:
    loaded = load_model(saved)
    assert loaded.config == read_config(saved)
    assert torch.equal(loaded(TOKENS), tiny(TOKENS))
    assert all(weight.requires_grad for weight in loaded.parameters())


@torch.no_grad()
def test_a_fused_model_saves_its_own_separate_tensors(tiny: SDAR, tmp_path: Path) -> None:
    expected = tiny(TOKENS)
    path = save_model(tiny.fuse(), TINY, tmp_path / "fused")
    assert load_file(path / "model.safetensors").keys() == tiny.state_dict().keys()
    assert torch.equal(load_model(path)(TOKENS), expected)


@torch.no_grad()
def test_shards_respect_the_limit_and_the_index_is_complete(tiny: SDAR, sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    files = sorted(sharded.glob("model-*.safetensors"))
    assert len(files) > 2 and {file.name for file in files} == set(index["weight_map"].values())
    tensors = [load_file(file) for file in files]
    sizes = [sum(tensor.nbytes for tensor in shard.values()) for shard in tensors]
    assert all(size <= SHARD_BYTES or len(shard) == 1 for size, shard in zip(sizes, tensors, strict=True))
    assert index["metadata"]["total_size"] == sum(sizes)
    assert torch.equal(load_model(sharded)(TOKENS), tiny(TOKENS))


@torch.no_grad()
def test_bfloat16_on_disk_and_float32_in_memory(tiny: SDAR, tmp_path: Path) -> None:
    path = save_model(tiny, TINY, tmp_path / "half", dtype=torch.bfloat16)
    assert json.loads((path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in load_file(path / "model.safetensors").values()} == {torch.bfloat16}
    assert load_model(path).lm_head.weight.dtype == torch.bfloat16
    widened = load_model(path, torch.float32)
    assert {weight.dtype for weight in widened.parameters()} == {torch.float32}
    rounded = tiny.lm_head.weight.bfloat16().float()
    assert torch.equal(widened.lm_head.weight, rounded)


def test_transformers_reads_the_folder_as_qwen3(tiny: SDAR, saved: Path, tmp_path: Path) -> None:
    """Names, shapes and header are those of the field: the same file loads in another implementation."""
    transformers = pytest.importorskip("transformers")
    config = json.loads((saved / "config.json").read_text())
    config = {**config, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (saved / "config.json").write_text(json.dumps(config))
    qwen, report = transformers.Qwen3ForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(qwen.lm_head.weight, tiny.lm_head.weight)


def test_tokenizer_files_travel_along(tiny: SDAR, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "modeling_sdar.py", "secrets.txt"):
        (source / name).write_text(name)
    path = save_model(tiny, TINY, tmp_path / "with_tokenizer", source)
    assert (path / "chat_template.jinja").read_text() == "chat_template.jinja"
    assert (path / "modeling_sdar.py").exists() and not (path / "secrets.txt").exists()


@pytest.mark.parametrize("lacking", [None, "configuration_sdar.py", "modeling_sdar.py"])
def test_code_is_named_only_where_it_lies(lacking: str | None, tiny: SDAR, tmp_path: Path) -> None:
    """`trust_remote_code` follows auto_map: a folder that names a file that it lacks cannot be loaded."""
    source = tmp_path / "source"
    source.mkdir()
    for name in {"configuration_sdar.py", "modeling_sdar.py"} - {lacking}:
        (source / name).write_text("")
    settings = json.loads((save_model(tiny, TINY, tmp_path / "model", source) / "config.json").read_text())
    assert ("auto_map" in settings) == (lacking is None)
    assert read_config(tmp_path / "model").family == "sdar" and settings["architectures"] == ["SDARForCausalLM"]


def test_the_shipped_model_names_no_code_that_it_lacks() -> None:
    settings = json.loads((checkpoint.NANO_FOLDER / "config.json").read_text())
    assert "auto_map" not in settings and not list(checkpoint.NANO_FOLDER.glob("*.py"))


def test_replacing_a_checkpoint_leaves_nothing_behind(tiny: SDAR, saved: Path) -> None:
    other = lively(TINY, seed=5)
    save_model(other, TINY, saved)
    assert torch.equal(load_model(saved).lm_head.weight, other.lm_head.weight)
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_failed_save_keeps_the_old_checkpoint(tiny: SDAR, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(MachineError, match="No space left on device"):
        save_model(lively(TINY, seed=5), TINY, saved)
    assert torch.equal(load_model(saved).lm_head.weight, tiny.lm_head.weight)
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_folder_that_is_no_checkpoint_is_never_replaced(tiny: SDAR, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="not a model folder"):
        save_model(tiny, TINY, tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def drop_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.k_norm.weight"))


def add_tensors(folder: Path) -> None:
    extra = {f"model.layers.{index}.self_attn.q_proj.bias": torch.zeros(1) for index in range(5)}
    rewrite(folder, lambda tensors: tensors.update(extra))


def reshape_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(90, 48)}))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def scramble_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:12] = b"oops"
    file.write_bytes(content)


def empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


DAMAGES = {
    drop_config: r"no model configuration .*config\.json",
    drop_weights: r"neither model\.safetensors nor model\.safetensors\.index\.json",
    drop_tensor: r"lacks 1 tensor.*model\.layers\.1\.self_attn\.k_norm\.weight",
    add_tensors: r"holds 5 tensor.*q_proj\.bias.* and 2 more",
    reshape_tensor: r"lm_head\.weight with shape \[90, 48\], but config\.json asks for \[97, 48\]",
    truncate: r"model\.safetensors is damaged or incomplete",
    scramble_header: r"model\.safetensors is damaged or incomplete",
    empty_file: r"model\.safetensors is damaged or incomplete",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_told_in_one_sentence(saved: Path, damage: Callable[[Path], None]) -> None:
    damage(saved)
    with pytest.raises(CheckpointError, match=DAMAGES[damage]) as caught:
        load_model(saved)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_missing_shard_is_named(sharded: Path) -> None:
    next(sharded.glob("model-00002-*")).unlink()
    with pytest.raises(CheckpointError, match="lacks 1 weight file.*model-00002"):
        load_model(sharded)


def test_index_that_promises_a_tensor_elsewhere(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"]["lm_head.weight"] = files[0]
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks the tensor lm_head\.weight"):
        load_model(sharded)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/passwd"}}'])
def test_bad_index_is_named(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a valid weight index"):
        load_model(sharded)


def test_missing_folder_and_file_as_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no model folder"):
        load_model(tmp_path / "absent")
    (tmp_path / "weights.bin").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        load_model(tmp_path / "weights.bin")


def test_nano_is_the_packaged_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "NANO_FOLDER", tmp_path)
    with pytest.raises(CheckpointError, match="does not contain the `nano` model"):
        resolve_model("nano")
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model("nano") == tmp_path


def test_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real client, told to stay offline and given an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="hub cannot be reached"):
        resolve_model("JetLM/SDAR-1.7B-Chat")


def test_mask_id_falls_back_to_the_tokenizer(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    del config["mask_token_id"]
    (saved / "config.json").write_text(json.dumps(config))
    tokens = {"added_tokens_decoder": {"12": {"content": "<|im_end|>"}, "34": {"content": "<|MASK|>"}}}
    (saved / "tokenizer_config.json").write_text(json.dumps(tokens))
    assert read_config(saved).mask_token_id == 34


@pytest.mark.parametrize("added", [{"5": "<|MASK|>"}, {"five": {"content": "<|MASK|>"}}, [5], None])
def test_a_damaged_tokenizer_says_no_mask_id(saved: Path, added: object) -> None:
    """Reading the tokenizer itself says what is wrong with it."""
    config = json.loads((saved / "config.json").read_text())
    config.pop("mask_token_id")
    (saved / "config.json").write_text(json.dumps(config))
    (saved / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(UserError, match="mask_token_id 151669 lies outside the vocabulary"):
        read_config(saved)
