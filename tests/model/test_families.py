"""Other families in our one module: against `transformers` where it has them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from dice.decode.generate import DecodeConfig, generate
from dice.model.checkpoint import CheckpointError, load_model, save_model
from dice.model.config import ConfigError, SDARConfig
from dice.model.family import FAMILIES, NO_MASK
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from tests.conftest import skip_without

skip_without("transformers", "the reference for these numbers is transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "qwen3 tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False, "rms_norm_eps": 1e-5}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "llama": ("Llama", {"tie_word_embeddings": False, "num_key_value_heads": 6}),
    "llama 3": ("Llama", {"tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE}),
    "llama 3 tied": ("Llama", {"tie_word_embeddings": True, "head_dim": 16, "rope_parameters": LLAMA3_ROPE}),
}


def published(kind: str, settings: dict[str, Any], folder: Path) -> Any:
    """A small lively model of `transformers`, saved by it into `folder`."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.25)
    model.save_pretrained(folder)
    return model


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, SDAR]:
    return published(*CASES[request.param], tmp_path), load_model(tmp_path)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(2, 97, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_equal_those_of_transformers(pair: tuple[Any, SDAR]) -> None:
    theirs, ours = pair
    ids = tokens(2, 90)
    torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("fused", [False, True])
def test_cached_steps_equal_the_full_pass(pair: tuple[Any, SDAR], fused: bool) -> None:
    _, ours = pair
    if fused:
        ours.fuse()
    ids, starts = tokens(2, 40), [11, 30]
    cache = ours.new_cache(2, 40)
    ours.prefill(ids[:, :30], cache, 1)
    last = torch.stack([ids[row, start : start + 1] for row, start in enumerate(starts)])
    logits = ours.logits(ours.step(last, starts, cache, 1))[:, 0]
    expected = torch.stack([ours(ids)[row, start] for row, start in enumerate(starts)])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_greedy_text_equals_that_of_transformers(pair: tuple[Any, SDAR]) -> None:
    """Prompts of several lengths at once, more than there are rows; each ends where transformers ends it."""
    theirs, ours = pair
    prompts = [tokens(1, length)[0].tolist() for length in (7, 1, 23, 12)]
    config = DecodeConfig(max_new_tokens=24, temperature=0.0, max_active=3)
    traces = generate(ours, prompts, config)
    for prompt, trace in zip(prompts, traces, strict=True):
        whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)
        assert list(trace.response_ids) == whole[0, len(prompt) :].tolist()
        assert trace.prompt_ids == tuple(prompt)


@torch.no_grad()
def test_tied_weights_stay_one_parameter(tmp_path: Path) -> None:
    published(*CASES["qwen2 tied"], tmp_path)
    model = load_model(tmp_path, torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in {name for name, _ in model.named_parameters()}
    model.to(torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@torch.no_grad()
def test_a_tied_file_may_repeat_the_head(tmp_path: Path) -> None:
    published(*CASES["llama 3 tied"], tmp_path)
    expected = load_model(tmp_path)(tokens(1, 9))
    state = load_file(tmp_path / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(tokens(1, 9)), expected)


def test_a_missing_bias_is_named(tmp_path: Path) -> None:
    published(*CASES["qwen2"], tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.1.self_attn.k_proj.bias"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor.*layers\.1\.self_attn\.k_proj\.bias"):
        load_model(tmp_path)


def described(kind: str, **changes: Any) -> dict[str, Any]:
    """A config.json as older releases of transformers wrote them: flat."""
    architecture = FAMILIES[kind].architecture
    return {**SIZES, "model_type": kind, "architectures": [architecture], "hidden_act": "silu", **changes}


def test_flat_llama3_settings_are_read() -> None:
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    flat = SDARConfig.from_json(described("llama", rope_scaling=scaling, rope_theta=500.0))
    nested = SDARConfig.from_json(described("llama", rope_parameters=LLAMA3_ROPE))
    assert flat == nested and flat.llama3_rope is not None and flat.rope_theta == 500.0


def test_an_autoregressive_model_has_no_mask_and_blocks_of_one() -> None:
    config = SDARConfig.from_json(described("qwen2"), name="Qwen-b8", mask_token_id=3)
    assert (config.block_size, config.mask_token_id, config.head_dim) == (1, NO_MASK, 8)
    assert config.traits.shift and config.traits.kind == "autoregressive"


@pytest.mark.parametrize(
    ("kind", "change", "word"),
    [
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ("qwen2", {"num_attention_heads": 5, "num_key_value_heads": 5}, "multiple of num_attention_heads"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("qwen3", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ("qwen3", {"model_type": "qwen3_moe"}, "qwen3_moe"),
        ("dream", {"vocab_size": 90, "mask_token_id": 96}, "mask_token_id"),
    ],
)
def test_what_would_change_the_computation_is_refused(kind: str, change: dict[str, Any], word: str) -> None:
    SDARConfig.from_json(described(kind, mask_token_id=1))
    with pytest.raises(ConfigError, match=word) as caught:
        SDARConfig.from_json(described(kind, **change))
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen3", "qwen3 tied"])
def test_qwen3_is_written_as_transformers_writes_it(kind: str, tmp_path: Path) -> None:
    """A head that is the embedding (Qwen3-1.7B and 4B) is stored once, and is one parameter again when read."""
    import transformers

    theirs = published(*CASES[kind], tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    folder = save_model(ours, ours.config, tmp_path / "ours")
    assert load_file(folder / "model.safetensors").keys() == load_file(tmp_path / "theirs/model.safetensors").keys()
    again = load_model(folder)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == (kind == "qwen3 tied")
    back, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids = tokens(2, 30)
    assert torch.equal(back.eval()(ids).logits, theirs(ids).logits)


def test_other_models_are_not_written(tmp_path: Path) -> None:
    published(*CASES["llama"], tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="can be written, and this one is of llama"):
        save_model(model, model.config, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        (  # LLaDA-8B-Instruct and LLaDA-1.5
            {
                "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32,
                "mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464, "weight_tying": False,
                "block_type": "llama", "layer_norm_type": "rms", "rope": True, "activation_type": "silu",
                "max_sequence_length": 4096,
            },
            8_015_581_184,
        ),
        (  # Dream-v0-Instruct-7B, Dream-Coder, DiffuCoder: the layout of Qwen2.5-7B
            {
                "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
            },
            7_615_616_512,
        ),
        (  # Qwen3-8B
            {
                "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 151936,
            },
            8_190_735_360,
        ),
        (  # Llama-3.1-8B-Instruct
            {
                "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
            },
            8_030_261_248,
        ),
        (  # Llama-3.2-1B-Instruct, whose head is its embedding
            {
                "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
            },
            1_235_814_400,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_published_sizes_give_the_published_numbers_of_parameters(settings: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        model = SDAR(SDARConfig.from_json(settings))
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_config_files_of_transformers_name_known_families(tmp_path: Path) -> None:
    for kind, settings in CASES.values():
        published(kind, settings, tmp_path / kind)
        written = json.loads((tmp_path / kind / "config.json").read_text())
        assert SDARConfig.from_json(written).family == written["model_type"]


def test_templates_may_name_the_special_tokens(tmp_path: Path) -> None:
    """Llama 3's and LLaDA's templates begin with `bos_token`; without it the model would read another prompt."""
    names = ["<|begin|>", "<|eot_id|>", "<|end|>"]
    tokenizer = FastTokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=300, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["hello world"] * 4, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}<|eot_id|>{% endfor %}"
    settings = {"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = Tokenizer.from_folder(tmp_path)
    begin, turn, end = (ours.token_id(name) for name in names)
    ids = ours.encode_chat([{"role": "user", "content": "hello <|begin|>"}])
    assert ids == [begin, *ours.encode("hello <|begin|>"), turn] and ids.count(begin) == 1
    assert ours.stop_ids == {turn, end}
