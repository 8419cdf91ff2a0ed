"""What only GPUs show: the compiled sparse mask under recomputation, memory of the loss, FSDP2 over two of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launching import finish, torchrun
from test_sft_world import job, metrics
from training_helpers import MASK_ID, PAD_ID, random_documents, tiny_model

from dice.model.sdar import SDAR
from dice.train.blocks import KEEP_ALL, RECOMPUTE_BLOCKS, Recompute
from dice.train.config import SFTConfig
from dice.train.engine import pick_engine
from dice.train.loss import masked_cross_entropy
from dice.train.packing import pack
from dice.train.sft import train_sft

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("recompute", [KEEP_ALL, Recompute("ffn"), RECOMPUTE_BLOCKS, Recompute("block", 5)], ids=str)
def test_blocks_share_one_compiled_graph(recompute: Recompute) -> None:
    torch._dynamo.reset()
    model = SDAR(replace(tiny_model(4).config, num_hidden_layers=12)).to(device="cuda", dtype=torch.bfloat16)
    batch = pack(random_documents(30, longest=300), row_tokens=384, block_size=4, pad_id=PAD_ID).to("cuda")
    batch = batch.take(torch.arange(4, device="cuda"))
    engine = pick_engine(
        model, batch, 4, MASK_ID, attention="flex", compiled=True, say=pytest.fail, recompute=recompute
    )  # fmt: skip
    assert engine.name == "flex, compiled"
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            engine(batch.tokens, batch).square().mean().backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if name != "lm_head.weight")


def test_the_loss_over_a_full_vocabulary_fits_beside_the_model() -> None:
    """4,096 hidden tokens of the 1.7B: all logits would be 2.3 GiB in float32, several times over."""
    vocabulary, tokens, size = 151_936, 4096, 2048
    hidden = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(vocabulary, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels, weights = torch.randint(vocabulary, (tokens,), device="cuda"), torch.ones(tokens, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    masked_cross_entropy(hidden, head, labels, weights).total.backward()
    held = torch.cuda.max_memory_allocated() - before
    gradient = vocabulary * size * (4 + 2 + 2)  # in float32, what a chunk adds to it, and in bfloat16 at the end
    assert held < gradient + 1.5 * 2**30, f"{held / 2**30:.2f} GiB"


def test_two_gpus_follow_one(toy: SFTConfig, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    config = replace(
        toy, device="cuda", max_steps=12, log_every=1, eval_every=6, micro_rows=2, ema=0.9, warmup=0.2,
        activation_checkpointing="block", checkpoint_every=5,
    )  # fmt: skip
    train_sft(replace(config, out=tmp_path / "one"))
    halfway = replace(config, out=tmp_path / "resumed")
    train_sft(replace(halfway, stop_after_seconds=1e-9))
    output = finish(
        torchrun(tmp_path / "launch", job(replace(config, out=tmp_path / "two")), job(halfway), device="cuda")
    )
    assert "2 x cuda" in output and "bfloat16, flex, compiled" in output and "Resuming after step 1." in output
    for name in ("two", "resumed"):
        for metric in ("loss", "val_loss"):
            assert metrics(tmp_path / name, metric) == pytest.approx(metrics(tmp_path / "one", metric), rel=5e-3)


def test_ours_and_stock_agree_on_the_gpu(tmp_path: Path) -> None:
    from dice.cli import main

    out = tmp_path / "result.json"
    flags = ["--row-tokens", "1024", "--documents", "100", "1024", "--rounds", "3", "--out", str(out)]
    assert main(["bench", "train", "--shape", "nano", *flags]) == 0
    figures = json.loads(out.read_text())["figures"]
    assert figures["ours"]["how"] == "flex, compiled"
    assert figures["ours"]["loss"] == pytest.approx(figures["stock"]["loss"], rel=1e-2)
    assert figures["ours"]["peak_memory_bytes"] > 0
