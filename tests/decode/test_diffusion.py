"""LLaDA and Dream: logits and texts against their authors' code, and what denoising a whole answer promises.

`RECORDED` is what the published modeling and sampling code of both made of these very checkpoints, with the mask token
and unused rows ruled out. `transformers` has neither model, but their arithmetic is Llama's and Qwen2's without a
causal mask, which gives a second, live reference.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusion_checkpoints import DREAM, HEAD_DIM, INNER, LAYERS, LLADA, MASK, STOP, random_ids, write_checkpoint

from dice.decode.generate import ContextLengthError, DecodeConfig, DecodeError, DiffusionConfig, StepEvent, generate
from dice.decode.trace import Trace
from dice.model.checkpoint import load_model
from dice.model.config import ConfigError, SDARConfig
from dice.model.sdar import SDAR

PROMPTS = random_ids(2, 9)
NO_STOP: frozenset[int] = frozenset()
# (family, algorithm, steps, block size, top-p) -> the answers to PROMPTS
RECORDED: dict[tuple[str, str, int, int | None, float | None], list[list[int]]] = {
    ("llada", "low_confidence", 32, 32, None): [
        [13, 23, 93, 93, 93, 60, 13, 21, 60, 93, 92, 60, 21, 21, 92, 93, 93, 60, 38, 44, 7, 92, 93, 92, 71, 44, 7, 48,
         93, 93, 21, 90],
        [48, 23, 20, 82, 84, 48, 48, 17, 24, 20, 51, 88, 70, 3, 17, 24, 51, 70, 12, 83, 22, 24, 20, 51, 22, 83, 22, 32,
         24, 51, 22, 23],
    ],
    ("llada", "low_confidence", 16, 8, None): [
        [83, 23, 93, 93, 92, 23, 83, 23, 25, 21, 26, 60, 11, 11, 78, 84, 20, 12, 12, 23, 78, 36, 20, 31, 78, 23, 44, 20,
         23, 53, 78, 94],
        [84, 23, 51, 82, 51, 39, 70, 32, 63, 63, 63, 39, 48, 43, 17, 89, 43, 48, 48, 15, 20, 63, 20, 43, 48, 15, 23, 20,
         23, 23, 48, 15],
    ],
    ("dream", "entropy", 24, None, None): [
        [26, 26, 55, 26, 50, 37, 26, 67, 26, 26, 50, 26, 26, 26, 71, 26, 26, 26, 26, 26, 26, 26, 26, 26],
        [32, 81, 91, 37, 91, 37, 67, 85, 91, 91, 38, 81, 26, 18, 91, 78, 5, 81, 67, 84, 95, 91, 50, 81],
    ],
    ("dream", "maskgit_plus", 8, None, None): [
        [26, 67, 26, 26, 26, 26, 26, 67, 26, 26, 26, 50, 21, 67, 26, 26, 26, 26, 26, 79, 71, 26, 26, 26],
        [73, 26, 91, 4, 91, 38, 85, 72, 91, 91, 91, 73, 67, 85, 91, 91, 37, 9, 67, 85, 67, 91, 60, 67],
    ],
    ("dream", "topk_margin", 24, None, 0.9): [
        [26, 26, 26, 26, 26, 26, 26, 67, 26, 26, 26, 50, 26, 26, 71, 26, 26, 26, 26, 26, 26, 26, 26, 60],
        [73, 26, 91, 5, 91, 71, 46, 30, 91, 91, 79, 18, 85, 26, 91, 26, 18, 30, 67, 91, 95, 91, 79, 26],
    ],
}  # fmt: skip
RECORDED_LOGITS = {  # of the first prompt, position 4, tokens 0 to 3
    "llada": [-1.7139347791671753, 0.2679486870765686, -1.130236268043518, 2.253702402114868],
    "dream": [0.8460334539413452, 1.1827514171600342, 0.254008024930954, 1.0100226402282715],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SDAR]:
    folder = tmp_path_factory.mktemp("models")
    write_checkpoint(folder / "llada", LLADA)
    write_checkpoint(folder / "dream", DREAM)
    return {name: load_model(folder / name) for name in ("llada", "dream")}


@torch.no_grad()
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_logits_equal_the_authors(models: dict[str, SDAR], name: str) -> None:
    logits = models[name](torch.tensor(PROMPTS[:1]))[0, 4, :4]
    torch.testing.assert_close(logits, torch.tensor(RECORDED_LOGITS[name]), atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_logits_equal_a_causal_relative_without_its_mask(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {key: DREAM[key] for key in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "max_position_embeddings",
    )}  # fmt: skip
    if name == "llada":
        state = write_checkpoint(tmp_path, LLADA)
        config = transformers.LlamaConfig(**settings, vocab_size=104, rms_norm_eps=1e-5, rope_theta=5e5)
        relative = transformers.LlamaForCausalLM(config).eval()
        relative.load_state_dict({llama_name(key): weight for key, weight in state.items()}, strict=True)
    else:
        state = write_checkpoint(tmp_path, DREAM)
        config = transformers.Qwen2Config(**settings, vocab_size=97, rms_norm_eps=1e-6, rope_theta=1e6)
        relative = transformers.Qwen2ForCausalLM(config).eval()
        relative.load_state_dict(state, strict=True)
    assert config.rope_parameters["rope_theta"] in (5e5, 1e6) and config.intermediate_size == INNER
    ids = torch.tensor(random_ids(2, 60))
    expected = relative(ids, attention_mask=torch.zeros(2, 1, 60, 60)).logits
    torch.testing.assert_close(load_model(tmp_path)(ids), expected, atol=1e-4, rtol=1e-4)


def llama_name(name: str) -> str:
    """LLaDA's name of a tensor -> Llama's, spelled out here once more so that the package's table is checked."""
    whole = {
        "model.transformer.wte.weight": "model.embed_tokens.weight",
        "model.transformer.ln_f.weight": "model.norm.weight",
        "model.transformer.ff_out.weight": "lm_head.weight",
    }
    if name in whole:
        return whole[name]
    _, _, _, layer, part, _ = name.split(".")
    parts = {
        "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
        "attn_out": "self_attn.o_proj", "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj",
        "ff_out": "mlp.down_proj", "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm",
    }  # fmt: skip
    return f"model.layers.{layer}.{parts[part]}.weight"


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_greedy_texts_equal_the_authors(models: dict[str, SDAR], case: tuple[Any, ...]) -> None:
    name, algorithm, steps, block_size, top_p = case
    expected = RECORDED[case]
    config = DiffusionConfig(
        max_new_tokens=len(expected[0]), steps=steps, block_size=block_size, algorithm=algorithm, top_p=top_p,
        stop_ids=NO_STOP, vocab_limit=97,
    )  # fmt: skip
    traces = generate(models[name], PROMPTS, config)
    assert [list(trace.token_ids) for trace in traces] == expected
    assert all(trace.forwards <= steps for trace in traces)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_every_revealed_token_has_the_probability_it_was_drawn_with(models: dict[str, SDAR], name: str) -> None:
    """Replays a trace frame by frame through the plain forward; Dream's logits are shifted, LLaDA's are not."""
    model, shift = models[name], int(name == "dream")
    config = DiffusionConfig(
        max_new_tokens=20, steps=10, algorithm="maskgit_plus", temperature=0.8, seed=4, stop_ids=NO_STOP
    )
    (trace,) = generate(model, PROMPTS[:1], config)
    for step, frame in enumerate(list(trace.frames())[:-1]):
        logits = model(torch.tensor([[*trace.prompt_ids, *frame]]))[0]
        logits[:, MASK] = float("-inf")
        logprobs = (logits / 0.8).log_softmax(-1)
        for place in (index for index, revealed in enumerate(trace.steps) if revealed == step):
            expected = logprobs[len(trace.prompt_ids) + place - shift, trace.token_ids[place]].item()
            assert trace.logprobs[place] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("algorithm", ["low_confidence", "random", "origin", "maskgit_plus", "topk_margin", "entropy"])
def test_a_text_depends_on_its_seed_and_not_on_its_batch(models: dict[str, SDAR], algorithm: Any) -> None:
    prompts = [PROMPTS[0], PROMPTS[1][:4], PROMPTS[1]]
    config = DiffusionConfig(
        max_new_tokens=18, steps=12, block_size=6, algorithm=algorithm, temperature=1.0, algorithm_temperature=0.5,
        stop_ids=NO_STOP,
    )  # fmt: skip
    together = generate(models["dream"], prompts, config, seeds=[5, 6, 7])
    for prompt, seed, trace in zip(prompts, (5, 6, 7), together, strict=True):
        (alone,) = generate(models["dream"], [prompt], config, seeds=[seed])
        assert (alone.token_ids, alone.steps, alone.stop_reason) == (trace.token_ids, trace.steps, "length")
        assert MASK not in alone.token_ids and min(alone.steps) == 0
    (other,) = generate(models["dream"], prompts[:1], config, seeds=[8])
    assert other.token_ids != together[0].token_ids


def test_blocks_are_finished_from_the_left_at_an_even_pace(models: dict[str, SDAR]) -> None:
    config = DiffusionConfig(max_new_tokens=20, steps=10, block_size=8, stop_ids=NO_STOP)
    (trace,) = generate(models["llada"], PROMPTS[:1], config)
    first, second, last = trace.steps[:8], trace.steps[8:16], trace.steps[16:]
    assert max(first) < min(second) and max(second) < min(last)
    assert Counter(first) == {0: 3, 1: 3, 2: 2} and sorted(Counter(last).values()) == [1, 1, 2]
    assert trace.denoising_steps == trace.forwards == 9


def test_lladas_confidence_ignores_temperature_and_truncation(models: dict[str, SDAR]) -> None:
    """With top-k 1 every drawn token has probability 1, which would leave nothing to choose positions by."""
    greedy = DiffusionConfig(max_new_tokens=24, steps=24, stop_ids=NO_STOP)
    only_best = DiffusionConfig(max_new_tokens=24, steps=24, stop_ids=NO_STOP, temperature=0.5, top_k=1)
    (expected,) = generate(models["llada"], PROMPTS[:1], greedy)
    (trace,) = generate(models["llada"], PROMPTS[:1], only_best)
    assert (trace.token_ids, trace.steps) == (expected.token_ids, expected.steps)
    assert trace.steps != tuple(range(24))


def test_dream_reveals_by_its_time_grid(models: dict[str, SDAR]) -> None:
    config = DiffusionConfig(max_new_tokens=24, steps=4, algorithm="entropy", stop_ids=NO_STOP)
    (trace,) = generate(models["dream"], PROMPTS[:1], config)
    left, counts = 24, []
    times = [1 + (1e-3 - 1) * step / 4 for step in range(5)]
    for step in range(4):
        counts.append(left if step == 3 else math.floor(left * (1 - times[step + 1] / times[step])))
        left -= counts[-1]
    assert [Counter(trace.steps)[step] for step in range(4)] == counts


def test_origin_reveals_each_position_with_the_schedules_probability(models: dict[str, SDAR]) -> None:
    config = DiffusionConfig(max_new_tokens=100, steps=2, algorithm="origin", stop_ids=NO_STOP, seed=0)
    traces = generate(models["dream"], [PROMPTS[0]] * 4, config)
    early = sum(trace.steps.count(0) for trace in traces) / 400
    assert early == pytest.approx(0.5, abs=0.1)


def test_denoising_ends_after_the_block_that_holds_a_stop_id(models: dict[str, SDAR]) -> None:
    whole = DiffusionConfig(max_new_tokens=32, block_size=8, stop_ids=NO_STOP)
    (full,) = generate(models["llada"], PROMPTS[:1], whole)
    place = next(place for place in range(8, 16) if full.token_ids[place] not in full.token_ids[:place])
    stop = full.token_ids[place]
    config = DiffusionConfig(max_new_tokens=32, block_size=8, stop_ids=frozenset({stop}))
    events: list[StepEvent] = []
    (trace,) = generate(models["llada"], PROMPTS[:1], config, events.append)
    assert trace.token_ids == full.token_ids[:16] and trace.response_ids == full.token_ids[: place + 1]
    assert trace.stop_reason == "stop" and trace.forwards == 16
    assert [event.stop_reason for event in events] == [None] * 15 + ["stop"]
    assert {place: token for event in events for place, token in zip(event.positions, event.tokens, strict=True)} == {
        place: token for place, token in enumerate(trace.token_ids)
    }
    assert Trace.from_json(trace.to_json()) == trace


def test_a_decode_config_becomes_the_authors_sampler(models: dict[str, SDAR]) -> None:
    request = DecodeConfig(max_new_tokens=40, temperature=0.0, stop_ids=NO_STOP)
    (llada,) = generate(models["llada"], PROMPTS[:1], request)
    (dream,) = generate(models["dream"], PROMPTS[:1], request)
    assert (llada.strategy, llada.block_size, len(llada.token_ids)) == ("low_confidence", 32, 40)
    assert (dream.strategy, dream.block_size, dream.mode) == ("entropy", 40, "greedy")


def test_impossible_requests_are_refused(models: dict[str, SDAR], model: SDAR) -> None:
    with pytest.raises(ContextLengthError, match="needs 129 positions"):
        generate(models["llada"], [PROMPTS[0]], DiffusionConfig(max_new_tokens=120))
    with pytest.raises(DecodeError, match="outside the model's vocabulary"):
        generate(models["llada"], [[104]], DiffusionConfig(max_new_tokens=4))
    with pytest.raises(DecodeError, match="prompt is empty"):
        generate(models["dream"], [[]], DiffusionConfig(max_new_tokens=4))
    with pytest.raises(DecodeError, match="algorithm must be one of"):
        DiffusionConfig(algorithm="best")  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="whole-answer diffusion"):
        generate(model, [PROMPTS[0]], DiffusionConfig(max_new_tokens=4))


def test_settings_are_read_under_lladas_names() -> None:
    config = SDARConfig.from_json(LLADA)
    assert (config.vocab_size, config.max_position_embeddings, config.head_dim) == (104, 128, HEAD_DIM)
    assert (config.num_hidden_layers, config.mask_token_id, config.eos_token_id) == (LAYERS, MASK, STOP)
    large = {**LLADA, "embedding_size": 126464, "n_kv_heads": None}
    del large["mask_token_id"]
    assert SDARConfig.from_json(large).mask_token_id == 126336
    assert SDARConfig.from_json(large).num_key_value_heads == 6
    assert SDARConfig.from_json({**DREAM, "vocab_size": 152064, "mask_token_id": None}).mask_token_id == 151666


@pytest.mark.parametrize(
    "change",
    [
        {"block_type": "sequential"},
        {"layer_norm_type": "low_precision"},
        {"rope": False},
        {"alibi": True},
        {"include_qkv_bias": True},
        {"attention_layer_norm": True},
        {"scale_logits": True},
        {"multi_query_attention": True},
        {"activation_type": "swiglu"},
    ],
)
def test_what_llada_does_not_use_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(change))} = .* works here\."):
        SDARConfig.from_json({**LLADA, **change})
    left_out = {key: value for key, value in LLADA.items() if key not in change}
    if {"block_type", "layer_norm_type", "rope", "activation_type"} & change.keys():
        with pytest.raises(ConfigError, match=next(iter(change))):  # its own default is another computation
            SDARConfig.from_json(left_out)


def test_a_missing_size_is_named_as_the_file_would() -> None:
    with pytest.raises(ConfigError, match="lacks mlp_hidden_size, n_layers"):
        SDARConfig.from_json({key: value for key, value in LLADA.items() if key not in ("mlp_hidden_size", "n_layers")})


@torch.no_grad()
def test_tied_llada_shares_its_embedding(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = write_checkpoint(tmp_path, LLADA, weight_tying=True)
    del state["model.transformer.ff_out.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_model(tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
