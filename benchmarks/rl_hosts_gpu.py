"""Rollouts on two GPUs that are two Ray nodes, against one of them, and what handing over weights takes.

    PYTHONPATH=.:benchmarks python benchmarks/rl_hosts_gpu.py --out FOLDER [--device cpu --shape tiny ...]

The model has random weights, and no text ends before its limit, so that every prompt is the same work and tokens a
second can be compared. Each node has one GPU of this machine. Weights are handed over as training does it, through the
object store, and for comparison from one process's GPU to another's by torch.distributed (NCCL; gloo on a CPU).
Writes FOLDER/rl_hosts_gpu.json after each part. The aim is 1.9 times the tokens a second of one GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ray_nodes import LOOPBACK, RayNodes

from dice.bench.decode import random_model
from dice.decode.request import DecodeConfig
from dice.decode.trace import Trace
from dice.model.sdar import SDAR, SDARConfig
from dice.recipes import SHAPES
from dice.train.config import ModelShape

SMALL = ModelShape(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, max_position_embeddings=32768, rope_theta=1e6,
)  # fmt: skip
ALL_SHAPES = SHAPES | {"0.6b": (SMALL, 151936)}
PORT = 29531
JOIN_S = 120
Figures = dict[str, Any]


class Peer:
    """One of two processes that hand weights from the one's device to the other's."""

    def __init__(self, config: SDARConfig, device: str, rank: int) -> None:
        self._rank, self._device = rank, torch.device(device)
        self._tensors = list(random_model(config, self._device, torch.bfloat16, seed=rank).state_dict().values())

    def join(self, size: int) -> str:
        """The name of what carries the weights."""
        name = "nccl" if self._device.type == "cuda" else "gloo"
        where = f"tcp://{LOOPBACK}:{PORT}"
        dist.init_process_group(name, where, timedelta(seconds=JOIN_S), size, self._rank)
        return name

    def hand_over(self) -> float:
        """Seconds until all of the first one's weights are here."""
        dist.barrier()
        begun = time.monotonic()
        for tensor in self._tensors:
            dist.broadcast(tensor, 0)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - begun

    def digest(self) -> float:
        """The same where the weights are."""
        return float(sum(tensor.double().sum() for tensor in self._tensors))


def rollouts(address: str, model: SDAR, args: argparse.Namespace, count: int) -> Figures:
    """Tokens a second of so many engines, each run with weights of another version; the time of sending those."""
    from dice.cluster.engines import Engines

    config = DecodeConfig(max_new_tokens=args.tokens, max_active=args.active, temperature=1.0, stop_ids=frozenset())
    prompts = [[3 + (7 * number + place) % 100 for place in range(args.prompt)] for number in range(args.prompts)]
    seeds = list(range(len(prompts)))
    rates, sent = [], []
    with Engines(address, model.config, count, args.device) as engines:
        for version in range(args.runs + 1):
            begun = time.monotonic()
            engines.send(model, version)
            sent.append(time.monotonic() - begun)
            written: dict[int, Trace] = {}
            begun = time.monotonic()
            engines.write(model, version, prompts, config, seeds, lambda: None, written.__setitem__)
            rates.append(sum(trace.kept for trace in written.values()) / (time.monotonic() - begun))
            assert len(written) == len(prompts)
    return {
        "engines": count,
        "tokens_s": round(statistics.median(rates[1:]), 1),
        "all_tokens_s": [round(one, 1) for one in rates],
        "weights_by_object_store_s": round(statistics.median(sent[1:]), 4),
        "all_sent_s": [round(one, 4) for one in sent],
    }


def handed_over(config: SDARConfig, device: str, runs: int) -> Figures:
    """From one process to the other, past Ray. What it cannot be is said."""
    import ray

    actor_class: Any = ray.remote
    there = actor_class(num_cpus=0, num_gpus=1 if device == "cuda" else 0, scheduling_strategy="SPREAD")(Peer)
    peers = [there.remote(config, device, rank) for rank in range(2)]
    try:
        names = ray.get([peer.join.remote(2) for peer in peers], timeout=2 * JOIN_S)
        times = [max(ray.get([peer.hand_over.remote() for peer in peers])) for _ in range(runs + 1)]
        one, other = ray.get([peer.digest.remote() for peer in peers])
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        return {"trouble": str(error)[-500:]}
    finally:
        for peer in peers:
            ray.kill(peer)
    return {
        "by": names[0],
        "seconds": round(statistics.median(times[1:]), 4),
        "all_seconds": [round(one, 4) for one in times],
        "equal": one == other,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", choices=sorted(ALL_SHAPES), default="0.6b")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each answer")
    parser.add_argument("--active", type=int, default=64, help="texts that an engine writes at a time")
    parser.add_argument("--runs", type=int, default=3, help="after one that is not counted")
    parser.add_argument("--store", type=int, default=6000, help="megabytes of a node's object store")
    args = parser.parse_args()
    shape, vocabulary = ALL_SHAPES[args.shape]
    device = torch.device(args.device)
    model = random_model(shape.for_timing(vocabulary, 4), device, torch.bfloat16, seed=0)
    found: Figures = {
        "machine": {
            "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "cpu",
            "torch": torch.__version__, "decoder": "engine" if os.environ.get("DICE_ENGINE") == "1" else "plain",
        },
        "settings": {name: value for name, value in vars(args).items() if name != "out"},
        "weights_mb": round(sum(one.nbytes for one in model.state_dict().values()) / 1e6, 1),
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)

    def keep(name: str, figures: Figures) -> None:
        found[name] = figures
        (args.out / "rl_hosts_gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        print(name, figures, flush=True)

    root = Path(__file__).resolve().parent.parent
    environment = {"PYTHONPATH": f"{root}:{root / 'benchmarks'}"}
    for count in (1, 2):
        with RayNodes(count, 2, environment, gpus=args.device == "cuda", store=args.store) as nodes:
            keep(f"on_{count}", rollouts(nodes.address, model, args, count))
            if count == 2:
                keep("device_to_device", handed_over(model.config, args.device, args.runs))
    keep("against_one", {"speedup": round(found["on_2"]["tokens_s"] / found["on_1"]["tokens_s"], 3), "aim": 1.9})


if __name__ == "__main__":
    main()
