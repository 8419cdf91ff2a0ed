"""Ranks that are processes of this host, on its CPUs: what they write is what one process writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from decoding_helpers import CONFIG, lively_model, prompt_of
from engine_helpers import assert_same, plain, requests, submit

from dice.cli import main
from dice.decode.autoregressive import generate_autoregressive
from dice.decode.engine import batch
from dice.decode.engine.engine import Engine
from dice.decode.engine.ranks import Leader, Ranks
from dice.decode.engine.runner import Runner
from dice.decode.generate import generate
from dice.decode.request import DecodeConfig, DecodeError
from dice.errors import MachineError
from dice.model.sdar import SDAR

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("ranks")]  # they share their processes


@pytest.fixture(scope="module")
def model() -> SDAR:
    return lively_model().fuse()  # as the plain decoder does, which moves the weights


@pytest.fixture(scope="module")
def ranks(model: SDAR) -> Iterator[Ranks]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ranks = Ranks(model, 2, "cpu")
    yield ranks
    ranks.close()
    torch.set_num_threads(threads)


def engine_for(model: SDAR, ranks: Ranks, block_size: int = 4, **changes: object) -> Engine:
    settings = {"slots": 5, "context": 128, "block_size": block_size, "page_size": 16, **changes}
    return Engine(model, make_runner=partial(Leader, ranks, Runner), **settings)  # type: ignore[arg-type]


def lively(**changes: object) -> SDAR:
    torch.manual_seed(3)
    model = SDAR(replace(CONFIG, **changes))  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0, 0.3)
    return model


def test_two_ranks_write_what_one_process_writes(model: SDAR, ranks: Ranks) -> None:
    """All strategies and samplers, with an abort, texts that leave for want of pages, and a prompt's shared pages."""
    wanted = [replace(one, config=replace(one.config, max_new_tokens=16)) for one in requests(10, 4, seed=4)]
    engine = engine_for(model, ranks, cache_tokens=80, prefill_tokens=16)
    events: list[int] = []
    gone = engine.submit(prompt_of(9), DecodeConfig(max_new_tokens=60), 1, on_step=lambda step: events.append(1))
    handles = submit(engine, wanted)
    while gone.state != "writing":
        engine.step()
    engine.abort(gone)
    seen = len(events)
    engine.run()
    assert engine.preempted and len(events) == seen
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))
    assert engine.pages.free == engine.pages.count


def test_ranks_take_over_new_weights_in_place(model: SDAR, ranks: Ranks) -> None:
    (request,) = requests(1, 4, seed=8)
    old = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    engine = engine_for(model, ranks)
    assert not engine.stale()
    engine.load_weights(list(lively_model(seed=5).named_parameters()))
    (handle,) = submit(engine, [request])
    engine.run()
    assert_same(handle.trace, plain(lively_model(seed=5), request))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(old[name])
    assert engine.stale()
    engine.refresh()
    (handle,) = submit(engine, [request])
    engine.run()
    assert_same(handle.trace, plain(model, request))


def test_one_engine_at_a_time_has_the_ranks(model: SDAR, ranks: Ranks) -> None:
    first = engine_for(model, ranks)
    engine_for(model, ranks)
    first.submit(prompt_of(5), DecodeConfig(max_new_tokens=4), 1)
    with pytest.raises(DecodeError, match="Another engine"):
        first.run()
    assert not first.holds(1, 8, 4)


@pytest.mark.slow  # a process to start for each model
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"tied": True}, {"family": "stable-diffcoder"},
        {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 67},
    ],
)  # fmt: skip
def test_models_of_all_shapes(changes: dict[str, object], size: int) -> None:
    model = lively(**changes)
    ranks = Ranks(model, size, "cpu")
    for block_size in (4, 8):
        wanted = requests(40, block_size, seed=block_size)
        engine = engine_for(model, ranks, block_size, cache_tokens=400)
        handles = submit(engine, wanted)
        engine.run()
        for handle, request in zip(handles, wanted, strict=True):
            assert_same(handle.trace, plain(model, request))
    ranks.close()


@pytest.mark.slow  # a process to start
def test_autoregressive_models() -> None:
    model = lively(family="qwen3", block_size=1, mask_token_id=-1)
    model.tensor_parallel = 2
    prompts = [prompt_of(length, seed=length) for length in (1, 2, 9, 33)]
    for changes in ({"top_k": 20}, {"temperature": 0.0}, {}, {"temperature": 0.6}):
        config = DecodeConfig(max_new_tokens=20, vocab_limit=60, **changes)  # type: ignore[arg-type]
        expected = generate_autoregressive(model, prompts, config, seeds=range(4))
        found = generate(model, prompts, config, seeds=range(4))
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs)
    batch._ranks[model].close()
    batch._kept.clear()


@pytest.mark.slow  # a process to start
@pytest.mark.parametrize("when", ["idle", "writing"])
def test_a_rank_that_dies_ends_the_engine_with_a_sentence(when: str) -> None:
    model = lively_model()
    model.tensor_parallel = 2
    engine = batch.new_engine(model, 4, 128)
    ranks = batch._ranks[model]
    (process,) = ranks._processes
    engine.submit(prompt_of(9), DecodeConfig(max_new_tokens=60, stop_ids=frozenset()), 1)
    if when == "writing":
        for _ in range(3):
            engine.step()
    os.kill(process.pid, signal.SIGKILL)
    if when == "idle":
        process.wait()
    with pytest.raises(MachineError, match=r"Rank 1 of the engine's 2 has ended \(killed by SIGKILL\)"):
        engine.run()
    with pytest.raises(MachineError, match="Rank 1"):
        engine.run()
    again = batch.new_engine(model, 4, 128)  # other processes
    (request,) = requests(1, 4)
    (handle,) = submit(again, [request])
    again.run()
    assert_same(handle.trace, plain(model, request))
    batch._ranks[model].close()


@pytest.mark.slow  # loads models, and starts the verifier and a process
def test_the_flag(tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(str(tmp_path))
    bench = ["bench", "decode", "--device", "cpu", "--shape", "tiny", "--batch", "2", "--context", "32", "--steps", "4"]
    assert main([*bench, "--contenders", "engine", "--revealed", "2", "--tensor-parallel", "2", "--json"]) == 0
    assert '"tensor_parallel": 2' in capsys.readouterr().out
    assert main([*bench, "--tensor-parallel", "7"]) == 2
    said = capsys.readouterr().err
    assert "cannot be cut into 7 equal parts" in said and "Traceback" not in said
    assert main([*bench, "--tensor-parallel", "0"]) == 2
