"""LLaDA's further sampling options against its own code, and Stable-DiffCoder against a plain loop over Llama.

`RECORDED` is what LLaDA's published `generate` made of this very checkpoint, with the mask token and unused rows ruled
out, token 60 for its end of text and 48 for its end of turn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusion_checkpoints import LLADA, random_ids, write_checkpoint

from dice.decode.generate import DecodeConfig, DecodeError, DiffusionConfig, generate
from dice.model.checkpoint import load_model
from dice.model.config import SDARConfig
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

END_OF_TEXT, END_OF_TURN = 60, 48
PROMPTS = random_ids(2, 9)
LAST, NEVER = {"confidence_eos_eot_inf": True}, {"logits_eos_inf": True}
# (options, steps, block size) -> the answers to PROMPTS
RECORDED: list[tuple[dict[str, Any], int, int, list[list[int]]]] = [
    (LAST, 32, 32, [
        [13, 45, 92, 93, 93, 93, 23, 23, 92, 93, 92, 75, 21, 23, 21, 93, 93, 75, 75, 7, 21, 90, 93, 92, 38, 78, 21, 67,
         93, 93, 21, 24],
        [84, 38, 87, 82, 84, 64, 64, 18, 17, 37, 39, 64, 64, 72, 17, 17, 51, 64, 12, 83, 51, 17, 17, 51, 32, 83, 18, 17,
         16, 16, 20, 15],
    ]),
    (LAST, 16, 8, [
        [83, 23, 93, 93, 92, 23, 83, 23, 83, 21, 26, 60, 40, 78, 78, 2, 79, 78, 75, 75, 78, 53, 51, 79, 65, 20, 60, 11,
         38, 17, 65, 65],
        [70, 23, 51, 82, 39, 23, 39, 39, 20, 70, 63, 8, 70, 63, 78, 70, 23, 20, 48, 20, 23, 23, 23, 23, 48, 23, 23, 23,
         22, 23, 23, 54],
    ]),
    (NEVER, 32, 32, [
        [13, 83, 72, 93, 93, 93, 23, 23, 92, 93, 92, 93, 23, 23, 21, 93, 93, 93, 23, 48, 21, 27, 93, 92, 54, 78, 48, 11,
         93, 93, 21, 78],
        [48, 23, 20, 82, 84, 88, 48, 17, 24, 20, 51, 88, 70, 3, 17, 24, 51, 70, 12, 83, 22, 24, 20, 51, 22, 83, 22, 32,
         24, 51, 22, 23],
    ]),
    ({"cfg_scale": 1.5}, 16, 8, [
        [36, 41, 70, 82, 8, 6, 83, 16, 31, 44, 62, 53, 95, 89, 66, 68, 21, 60, 63, 20, 55, 21, 23, 60, 20, 20, 54, 83,
         32, 21, 6, 20],
        [67, 23, 65, 65, 67, 67, 67, 44, 65, 76, 51, 69, 69, 44, 11, 76, 17, 3, 48, 48, 50, 26, 17, 84, 69, 13, 90, 51,
         26, 84, 32, 32],
    ]),
    ({"cfg_scale": 0.5, **LAST, **NEVER}, 32, 32, [
        [17, 83, 49, 49, 17, 25, 17, 79, 21, 49, 49, 83, 17, 44, 21, 11, 92, 49, 21, 89, 21, 21, 49, 21, 21, 23, 22, 21,
         25, 49, 21, 23],
        [43, 3, 17, 65, 6, 8, 43, 24, 89, 66, 92, 20, 70, 70, 24, 38, 22, 3, 70, 67, 26, 51, 7, 51, 33, 67, 26, 75, 46,
         24, 15, 15],
    ]),
]  # fmt: skip


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> SDAR:
    folder = tmp_path_factory.mktemp("llada")
    write_checkpoint(folder, LLADA, eos_token_id=END_OF_TEXT)
    return load_model(folder)


@pytest.mark.parametrize(("options", "steps", "block_size", "expected"), RECORDED)
def test_answers_equal_the_authors(
    llada: SDAR, options: dict[str, Any], steps: int, block_size: int, expected: list[list[int]]
) -> None:
    stops = frozenset({END_OF_TEXT, END_OF_TURN})
    config = DiffusionConfig(
        max_new_tokens=32, steps=steps, block_size=block_size, stop_ids=stops, vocab_limit=97, **options
    )
    for trace, whole in zip(generate(llada, PROMPTS, config), expected, strict=True):
        ids = list(trace.token_ids)
        assert ids == whole[: len(ids)]
        assert len(ids) == 32 or stops & set(ids[-block_size:]), "only a finished block that holds a stop ends it"


def test_guidance_does_not_depend_on_the_batch(llada: SDAR) -> None:
    prompts = [PROMPTS[0], PROMPTS[1][:4]]
    config = DiffusionConfig(max_new_tokens=16, block_size=8, cfg_scale=1.0, stop_ids=frozenset(), vocab_limit=97)
    together = [trace.token_ids for trace in generate(llada, prompts, config)]
    assert together == [generate(llada, [prompt], config)[0].token_ids for prompt in prompts]


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(DecodeError, match="option of the algorithm low_confidence"):
        DiffusionConfig(algorithm="entropy", confidence_eos_eot_inf=True)
    with pytest.raises(DecodeError, match="cfg_scale must not be negative"):
        DiffusionConfig(cfg_scale=-1.0)


MASK = 5
STABLE_DIFFCODER: dict[str, Any] = {
    "architectures": ["StableDiffcoderForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_stable_diffcoder.StableDiffcoderForCausalLM"},
    "attention_bias": False, "attention_dropout": 0.1, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.009882118, "intermediate_size": 14336, "layer_norm_eps": None,
    "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "resid_pdrop": 0.1, "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 155136,
}  # fmt: skip
EARLIER = {
    "architectures": ["LlamaForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_seed_diffcoder.SeedDiffcoderForCausalLM"},
}


@pytest.mark.parametrize("release", [{}, EARLIER])
def test_stable_diffcoder_is_told_from_llama(release: dict[str, Any]) -> None:
    config = SDARConfig.from_json({**STABLE_DIFFCODER, **release})
    assert (config.family, config.mask_token_id, config.block_size) == ("stable-diffcoder", MASK, 4)
    assert config.traits.kind == "block_diffusion" and not config.traits.shift and config.head_dim == 128
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in SDAR(config).parameters())
    assert parameters == 8_250_462_208
    plain = {key: value for key, value in STABLE_DIFFCODER.items() if key != "auto_map"}
    assert SDARConfig.from_json({**plain, "architectures": ["LlamaForCausalLM"]}).family == "llama"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, SDAR]:
    """A small model by `transformers`' Llama, which the published class only derives from, and by ours."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("stable_diffcoder")
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6}
    small = {**STABLE_DIFFCODER, **sizes, "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 256}
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)).eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            weight.uniform_(0.5, 1.5) if name.endswith("norm.weight") else weight.normal_(0, 0.25)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(small))
    return theirs, load_model(folder)


@torch.no_grad()
def blockwise(theirs: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of `ids` [1, L]; a token sees its own block of four, counted from the text's start, and those before."""
    blocks = torch.arange(ids.shape[1]) // 4
    mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1]).masked_fill(blocks[:, None] < blocks, -torch.inf)
    logits: torch.Tensor = theirs(ids, attention_mask=mask).logits
    return logits


def test_logits_equal_llamas_under_the_block_mask(pair: tuple[Any, SDAR]) -> None:
    theirs, ours = pair
    ids = torch.tensor(random_ids(1, 62))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), blockwise(theirs, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [3, 8, 13])
def test_answers_equal_the_plain_loop(pair: tuple[Any, SDAR], length: int) -> None:
    """Its published decoding: in each block the surest masked position, one a step, until all are known."""
    theirs, ours = pair
    prompt = random_ids(1, length)[0]
    whole = -(-(length + 24) // 4) * 4  # the last block is finished, and cut to 24 tokens then
    ids = torch.tensor([[*prompt, *[MASK] * (whole - length)]])
    for start in range(length // 4 * 4, whole, 4):
        stop = start + 4
        while MASK in ids[0, start:stop].tolist():
            logits = blockwise(theirs, ids[:, :stop])[0, start:]
            logits[:, MASK] = -torch.inf
            best = logits.softmax(-1).max(-1)
            sure = best.values.masked_fill(ids[0, start:stop] != MASK, -1.0)
            place = int(sure.argmax())
            ids[0, start + place] = best.indices[place]
    config = DecodeConfig(
        max_new_tokens=24, block_size=4, remasking="low_confidence_static", temperature=0.0, stop_ids=frozenset()
    )
    (trace,) = generate(ours, [prompt], config)
    assert list(trace.token_ids) == ids[0, length:].tolist()


def test_its_mask_token_is_known_by_name(tmp_path: Path) -> None:
    from dice.model.checkpoint import NANO_FOLDER

    settings = json.loads((NANO_FOLDER / "tokenizer_config.json").read_text())
    text = (NANO_FOLDER / "tokenizer.json").read_text()
    for name in ("<|MASK|>", "<MASK>"):
        text = text.replace(name, "<[MASK_TOKEN]>")
        settings = json.loads(json.dumps(settings).replace(name, "<[MASK_TOKEN]>"))
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.mask_id == Tokenizer.from_folder(NANO_FOLDER).mask_id
