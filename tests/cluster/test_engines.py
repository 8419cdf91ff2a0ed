"""Engines of a cluster write what this process would, with weights that they were sent; losses are mended."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from ray_nodes import RayNodes

from dice.decode.generate import DecodeConfig
from dice.decode.trace import Trace
from dice.errors import MachineError, UserError
from dice.model.sdar import SDAR, SDARConfig
from dice.train.rl.config import RLConfig
from dice.train.rl.rollout import Write, write_here

pytestmark = pytest.mark.xdist_group("cluster")  # they share the nodes
SHAPE = SDARConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    block_size=4,
    mask_token_id=127,
    eos_token_id=0,
    bos_token_id=1,
    pad_token_id=2,
)
# One text at a time, so that no sum depends on which others are written beside it.
CONFIG = DecodeConfig(max_new_tokens=40, max_active=1, temperature=1.0, stop_ids=frozenset({0}))
PROMPTS = [[3 + number, 5, 7, 11][: 1 + number % 4] for number in range(9)]
SEEDS = [100 + number for number in range(9)]


def model(seed: int = 0) -> SDAR:
    torch.manual_seed(seed)
    return SDAR(SHAPE)


def written(write: Write, one: SDAR, version: int) -> dict[int, Trace]:
    found: dict[int, Trace] = {}

    def take(place: int, trace: Trace) -> None:
        assert place not in found
        found[place] = trace

    write(one, version, PROMPTS, CONFIG, SEEDS, lambda: None, take)
    return found


@pytest.mark.slow  # two processes with PyTorch start
@pytest.mark.parametrize("direct", [False, True])
def test_two_engines_write_bit_for_bit_what_this_process_does(cluster: RayNodes, direct: bool) -> None:
    from dice.cluster.engines import Engines

    with Engines(cluster.address, SHAPE, 2, "cpu", direct=direct) as engines:
        assert (engines._channel is None) and engines._weights is None
        first, other = written(engines.write, model(), 0), written(engines.write, model(seed=1), 1)
        assert (engines._channel is not None, engines._weights is None) == (direct, direct)
    assert first == written(write_here, model(), 0)
    assert other == written(write_here, model(seed=1), 1)
    assert {trace.weights for trace in first.values()} == {0} and {trace.weights for trace in other.values()} == {1}
    assert [first[place].token_ids for place in range(9)] != [other[place].token_ids for place in range(9)]


@pytest.mark.slow  # three processes with PyTorch start
@pytest.mark.parametrize("direct", [False, True])
def test_what_a_lost_engine_had_to_write_is_written_again(cluster: RayNodes, direct: bool) -> None:
    """By one that gets the weights through the object store, and those of another version as all others do."""
    from dice.cluster.engines import Engines

    found: dict[int, Trace] = {}
    one = model()
    with Engines(cluster.address, SHAPE, 2, "cpu", direct=direct) as engines:

        def take(place: int, trace: Trace) -> None:
            if len(found) == 2:
                os.kill(cluster.titled("ray::Engine")[0], signal.SIGKILL)
            assert place not in found
            found[place] = trace

        long = DecodeConfig(max_new_tokens=120, max_active=1, temperature=1.0, stop_ids=frozenset())
        engines.write(one, 3, PROMPTS, long, SEEDS, lambda: None, take)
        assert engines.lost == 1
        again: dict[int, Trace] = {}
        write_here(one, 3, PROMPTS, long, SEEDS, lambda: None, again.__setitem__)
        assert found == again
        assert written(engines.write, one, 3) == written(write_here, one, 3)  # the new one has the weights, too
        assert written(engines.write, model(seed=1), 4) == written(write_here, model(seed=1), 4)
        assert (engines._channel is not None) == direct


@pytest.mark.slow
def test_what_asks_to_stop_is_heard_and_the_engines_are_free(cluster: RayNodes) -> None:
    from dice.cluster.engines import Engines

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with Engines(cluster.address, SHAPE, 2, "cpu") as engines:
        with pytest.raises(Stop):
            engines.write(model(), 0, PROMPTS, CONFIG, SEEDS, stop, lambda place, trace: None)
        assert written(engines.write, model(), 0) == written(write_here, model(), 0)


def test_what_cannot_be_is_said(cluster: RayNodes) -> None:
    from dice.cluster.engines import Engines

    with pytest.raises(MachineError, match="2 engines need a GPU each, and the cluster has 0"):
        Engines(cluster.address, SHAPE, 2, "cuda")
    with pytest.raises(UserError, match="they go with `cluster`"):
        RLConfig(model="nano", out="out", infill_data="x", generate_data="y", engines=2).check()  # type: ignore[arg-type]
