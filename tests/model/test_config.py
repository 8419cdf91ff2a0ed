"""config.json: what is read, what is refused, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_model import TINY

from dice.model.config import ConfigError, SDARConfig


def data(**changes: object) -> dict[str, object]:
    return {**TINY.to_json(), **changes}


def test_published_config_survives_a_round_trip(sdar_files: Path) -> None:
    original = json.loads((sdar_files / "config.json").read_text())
    written = SDARConfig.from_file(sdar_files).to_json()
    assert original.items() <= written.items()


def test_written_config_names_sdars_classes() -> None:
    written = TINY.to_json()
    assert written["architectures"] == ["SDARForCausalLM"]
    assert written["model_type"] == "sdar"
    assert written["auto_map"]["AutoModelForCausalLM"] == "modeling_sdar.SDARForCausalLM"
    assert written["tie_word_embeddings"] is False
    assert SDARConfig.from_json(written) == TINY


def test_unknown_keys_are_kept() -> None:
    assert SDARConfig.from_json(data(use_deepep=False, later="x")).to_json()["later"] == "x"


@pytest.mark.parametrize(
    ("name", "in_config", "expected"),
    [
        ("SDAR-4B-Chat", None, 4),
        ("SDAR-4B-Chat-b16", None, 16),
        ("SDAR-4B-Chat-b16", 8, 8),
        ("SDAR-1.7B-Chat-b64/", None, 64),
        ("b8", None, 4),
    ],
)
def test_block_size_comes_from_config_then_name_then_four(name: str, in_config: int | None, expected: int) -> None:
    assert SDARConfig.from_json(data(block_size=in_config), name=name).block_size == expected


def test_folder_name_tells_the_block_size(tmp_path: Path) -> None:
    folder = tmp_path / "mine-b8"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(data(block_size=None)))
    assert SDARConfig.from_file(folder).block_size == 8


def test_mask_id_comes_from_config_then_tokenizer_then_default() -> None:
    large = data(vocab_size=151936)
    assert SDARConfig.from_json(large, mask_token_id=7).mask_token_id == TINY.mask_token_id
    absent = {**large, "mask_token_id": None}
    assert SDARConfig.from_json(absent, mask_token_id=7).mask_token_id == 7
    assert SDARConfig.from_json(absent).mask_token_id == 151669


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
        {"use_sliding_window": True},
        {"tie_word_embeddings": True},
        {"model_type": "llama"},
        {"num_key_value_heads": 4},
        {"hidden_size": 0},
        {"num_hidden_layers": "three"},
        {"num_hidden_layers": 10**11},
        {"max_position_embeddings": 10**15},
        {"mask_token_id": 97},
        {"block_size": -4},
    ],
)
def test_what_would_change_the_computation_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"\.$"):
        SDARConfig.from_json(data(**change))


def test_newer_nested_rope_settings_are_read() -> None:
    nested = data(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    del nested["rope_theta"]
    assert SDARConfig.from_json(nested).rope_theta == 5e5


def test_missing_sizes_are_named() -> None:
    partial = data()
    del partial["hidden_size"], partial["num_hidden_layers"]
    with pytest.raises(ConfigError, match="hidden_size, num_hidden_layers"):
        SDARConfig.from_json(partial)


@pytest.mark.parametrize("text", ["{not json", "[1, 2]"])
def test_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        SDARConfig.from_file(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", 5),
        ("auto_map", "x"),
        ("rope_scaling", "x"),
        ("rope_theta", None),
        ("rms_norm_eps", "x"),
        ("mask_token_id", "x"),
    ],
)
def test_a_value_of_another_type_is_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} = {value!r}, which is no"):
        SDARConfig.from_json(data(**{key: value}))


def test_a_file_nested_too_deeply_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="not valid JSON"):
        SDARConfig.from_file(tmp_path)
