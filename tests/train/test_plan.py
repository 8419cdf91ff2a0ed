"""The plan against real models, real files and measured peaks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from training_helpers import tiny_model

import dice.train.sft
from dice.cli import main
from dice.model.checkpoint import read_config
from dice.model.sdar import SDAR, SDARConfig
from dice.recipes import RL_RECIPES, SFT_RECIPES, SHAPES, dice_8b_sft, tiny_sft
from dice.train.blocks import Part, Recompute, set_blocks
from dice.train.config import SFTConfig
from dice.train.plan.choose import choose_recompute
from dice.train.plan.disk import DiskNeed
from dice.train.plan.flops import recomputed_flops, training_flops
from dice.train.plan.gpus import (
    DECODED_TOKENS_PER_S,
    GPUS,
    MEASURED,
    SMALL_TOKENS_PER_S,
    UPDATE_OF_SFT,
    VERDICTS_PER_S,
    utilisation,
)
from dice.train.plan.memory import Layout, activation_bytes, kept_elements, least_recompute, memory, parameters
from dice.train.plan.plan import Cluster, plan_sft
from dice.train.sft import train_sft
from dice.train.weights import Weights
from dice.train.world import World

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EIGHT = SDARConfig(vocab_size=SHAPES["8b"][1], mask_token_id=3, **asdict(SHAPES["8b"][0]))


def shape(name: str) -> SDARConfig:
    sizes, vocabulary = SHAPES[name]
    return SDARConfig(vocab_size=vocabulary, mask_token_id=vocabulary - 1, **asdict(sizes))


def measured(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARKS / "train" / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", ["1.7b", "mini"])
def test_the_predicted_peak_is_the_measured_one(name: str) -> None:
    found, asked = measured(name)["figures"]["ours"], measured(name)["asked"]
    tokens = 2 * found["micro_rows"] * asked["row_tokens"]
    layout = Layout(config=shape(name), gpus=1, tokens=tokens, moments="float32")
    assert parameters(shape(name)) == measured(name)["parameters"]
    predicted = memory(layout, Recompute("block" if found["recompute"] else "none")).total
    assert predicted == pytest.approx(found["peak_memory_bytes"], rel=0.05)


def test_the_figures_that_times_are_predicted_from_are_those_of_the_files() -> None:
    shares = {one.hidden_size: one.share for one in MEASURED}
    for name in ("1.7b", "mini"):
        assert shares[shape(name).hidden_size] == pytest.approx(measured(name)["figures"]["ours"]["mfu"], abs=5e-4)
    assert [one.hidden_size for one in MEASURED] == sorted(shares)
    steps = json.loads((BENCHMARKS / "train" / "rl_step_h100.json").read_text())["steps"][1:]
    assert sum(one["answer_tokens"] for one in steps) / sum(one["decode_s"] for one in steps) == pytest.approx(
        SMALL_TOKENS_PER_S, rel=0.01
    )
    step = json.loads((BENCHMARKS / "train" / "train8b_h200.json").read_text())["stages"]["rl_whole"]
    assert step["tokens"] / step["decode_s"] / step["gpus"] == pytest.approx(DECODED_TOKENS_PER_S, rel=0.01)
    assert step["answers"] / step["verify_s"] == pytest.approx(VERDICTS_PER_S, rel=0.01)
    tokens, model = step["update"]["tokens"], shape("8b")
    again = recomputed_flops(model, Recompute("block", 10), tokens=tokens, pairs=tokens * 2500)
    reached = (step["update"]["work"] + again) / step["update_s"] / (step["gpus"] * GPUS["h200"].flops)
    assert reached == pytest.approx(UPDATE_OF_SFT * utilisation(4096, 2)[0], rel=0.01)
    assert utilisation(2048, 1)[0] == shares[2048] < utilisation(3000, 1)[0] < utilisation(4096, 1)[0]
    assert utilisation(16384, 1) == utilisation(4096, 1) and utilisation(64, 2)[0] < utilisation(64, 1)[0]


def kept(config: SDARConfig, part: Part, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Numbers that PyTorch keeps of a block for each token: of 16 bits by the formula, and of float32 divisors."""
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile_with(f, backend="aot_eager_decomp_partition", **how))
    torch._dynamo.reset()
    model, length = SDAR(config), 128
    set_blocks(model, compiled=True, recompute=Recompute(part))
    x = torch.randn(1, length, config.hidden_size, requires_grad=True)
    given = [model.rope_cos[:length][None], model.rope_sin[:length][None], torch.ones(1, 1, length, length).bool()]
    known = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *given)}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    for _ in range(2):
        found.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.model.layers[0](x, *given)
    # The dense mask as numbers to add is not there with FlexAttention.
    tensors = [one for one in found.values() if one.numel() != length * length]
    sizes = [one.untyped_storage().nbytes() // 4 // length for one in tensors]
    heads = {1, config.num_attention_heads, config.num_key_value_heads}
    return sum(size for size in sizes if size not in heads), sum(size for size in sizes if size in heads)


@pytest.mark.parametrize("part", ["none", "ffn", "block"])
def test_a_compiled_block_keeps_what_the_plan_counts(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's own partition into forward and backward, number for number."""
    config = SDARConfig(
        vocab_size=64, hidden_size=48, intermediate_size=112, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, mask_token_id=3,
    )  # fmt: skip
    elements, divisors = kept(config, part, monkeypatch)
    assert elements == kept_elements(config, part)
    layout = Layout(config=config, gpus=1, tokens=1, moments="float32")
    outside = 2 * 2 * config.hidden_size
    assert activation_bytes(layout, Recompute(part)) == 2 * elements + 4 * divisors + outside


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_state_is_what_real_weights_take(moments: Any) -> None:
    model = tiny_model(dtype=torch.float32)
    weights = Weights(model, SFTConfig(moments=moments), torch.bfloat16, ema=0.9)
    planned = memory(Layout(config=model.config, gpus=1, tokens=8, moments=moments, average=True), Recompute())
    tensors = weights.tensors()
    real = {
        part: sum(value.nbytes for name, value in tensors.items() if name.startswith(part))
        for part in ("weight", "exp_avg", "average")
    }
    assert (planned.weights, planned.moments, planned.average) == tuple(real.values())
    gradients = sum(weight.grad.nbytes for weight in weights.params if weight.grad is not None)
    copies = sum(weight.nbytes for weight in weights.model.parameters())
    assert (planned.gradients, planned.copies) == (gradients, copies)


def test_gradients_of_the_copies_do_not_stay() -> None:
    model = tiny_model(dtype=torch.float32)
    weights = Weights(model, SFTConfig(), torch.bfloat16)
    norms = []
    for _ in range(2):
        weights.model(torch.arange(4, 12)[None]).float().square().mean().backward()
        assert all(part.grad is None for part in weights.model.parameters())
        gradients = [weight.grad for weight in weights.params if weight.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-6)


def test_work_is_what_pytorch_counts() -> None:
    model = tiny_model(dtype=torch.float32)
    ids = torch.arange(4, 36)[None]
    counter = FlopCounterMode(display=False)
    with counter:
        model(ids, attention_mask=torch.ones(1, 1, 32, 32, dtype=torch.bool)).sum().backward()
    products = sum(
        count for op, count in counter.get_flop_counts()["Global"].items() if "mm" in str(op) and "bmm" not in str(op)
    )
    assert products == training_flops(model.config, tokens=32, pairs=0, predicted=32)
    again = recomputed_flops(model.config, Recompute("block"), tokens=32, pairs=0)
    assert again == training_flops(model.config, tokens=32, pairs=0, predicted=0) / 3
    assert recomputed_flops(model.config, Recompute("block", 1), tokens=32, pairs=0) == again / 2


@pytest.mark.parametrize("available", [60e9, 90e9, 110e9, 140e9])
def test_the_least_that_fits_is_recomputed(available: float) -> None:
    layout = Layout(config=EIGHT, gpus=2, tokens=12288, moments="float32")
    recompute, needed = least_recompute(layout, available)
    if available == 60e9:
        assert recompute == Recompute("block") and needed.total > available
        return
    assert needed.total <= available
    blocks = EIGHT.num_hidden_layers if recompute.layers is None else recompute.layers
    if recompute.part == "block":
        less = Recompute("block", blocks - 1) if blocks > 1 else Recompute("none")
        assert memory(layout, less).total > available


def test_several_gpus_share_what_is_kept() -> None:
    one, eight = (
        memory(Layout(config=EIGHT, gpus=gpus, tokens=12288, moments="float32"), Recompute("block")) for gpus in (1, 8)
    )
    assert one.weights == 8 * eight.weights and one.moments == 8 * eight.moments
    assert one.activations == eight.activations and eight.copies < one.copies


def test_without_a_gpu_nothing_is_recomputed_unless_asked() -> None:
    world, said = World(torch.device("cpu")), list[str]()
    for asked, expected in (("auto", "none"), ("block", "block"), ("ffn", "ffn")):
        config = SFTConfig(activation_checkpointing=asked)  # type: ignore[arg-type]
        found = choose_recompute(
            config, EIGHT, world, tokens=8, moments="float32", dtype=torch.float32, say=said.append
        )
        assert found.part == expected
    assert said == []


def test_disk_is_planned_as_the_run_counts_it(toy: SFTConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs: list[DiskNeed] = []
    monkeypatch.setattr(dice.train.sft, "check_disk", lambda need, *_: needs.append(need))
    config = replace(toy, out=tmp_path, max_steps=1, final_checkpoint="weights", ema=0.9, export_dtype="bfloat16")
    model = read_config(train_sft(config).model)
    assert plan_sft(config, model, Cluster(GPUS["h200"], 1, 1)).disk == needs[0]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("recipe", [*SFT_RECIPES, *RL_RECIPES])
def test_every_recipe_has_a_plan(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = run(capsys, recipe, "--gpus", "4", "--json")
    plan = json.loads(shown)
    phases = {"training"} if recipe in SFT_RECIPES else {"decoding", "update"}
    assert (code, plan["fits"]) == (0, True)
    assert set(plan["memory"]) == phases | {"peak", "usable"} and plan["memory"]["peak"] <= plan["memory"]["usable"]
    assert max(sum(plan["memory"][phase].values()) for phase in phases) == plan["memory"]["peak"]
    assert plan["time"]["step_s"] > 0 and plan["sources"] and plan["disk"]["peak"] > 3 * plan["disk"]["checkpoint"]


def test_what_does_not_fit_is_said_with_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = run(capsys, "dice_8b_sft", "--gpu", "h100")
    assert code == 1 and "on 1 x H100: does not fit." in shown and "What would fit: 2 x H100, with" in shown
    assert run(capsys, "dice_8b_sft", "--gpu", "h100", "--gpus", "2")[0] == 0
    code, shown, _ = run(capsys, "dice_8b_sft")
    assert code == 0 and "--moments bfloat16 --activation-checkpointing block" in shown
    smaller = plan_sft(replace(dice_8b_sft(), moments="bfloat16"), EIGHT, Cluster(GPUS["h200"], 2, 1))
    assert smaller.setting.moments == "bfloat16"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nope",), "there is no recipe 'nope'; there are nano_sft, "),
        (("nano_sft", "--gpu", "b300"), "There are no figures for a GPU named 'b300'; there are for h200, h100, a100."),
        (("nano_sft", "--gpus", "0"), "--gpus must be at least 1, not 0."),
        (("dice_8b_sft", "--gpus", "9"), "A batch of 8 rows cannot be dealt over 9 processes."),
        (("nano_sft", "--data-tokens", "-1"), "--data-tokens must be positive, not -1."),
        (("nano_rl", "--batch-rows", "4"), "--batch-rows and --data-tokens are for recipes of SFT."),
        (("dice_8b_sft", "--model", "elsewhere"), "There is no model folder elsewhere, and its name holds none of"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, said = run(capsys, *words)
    assert (code, shown) == (2, "") and sentence in said and said.count("\n") == 1


def test_the_length_of_a_run_follows_from_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_sft(tiny_sft(), shape("tiny"), Cluster(GPUS["h200"], 1, 1)).time["steps"] == 60
    _, shown, _ = run(capsys, "dice_8b_sft", "--gpus", "2", "--data-tokens", "4915200", "--json")
    assert json.loads(shown)["time"]["steps"] == 300  # three epochs of 100 batches of 8 rows of 6,144 tokens
