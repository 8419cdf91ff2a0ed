"""Rollouts on two GPUs that are two Ray nodes, against one of them, and what handing over weights of 8B takes.

    PYTHONPATH=.:benchmarks python benchmarks/rl_hosts_gpu.py --out FOLDER [--parts on_1 on_2 weights] [--limit 300]

`on_1`, `on_2`: tokens a second. The model has random weights, and no text ends before its limit, so that every prompt
is the same work. Each node has one GPU of this machine. The aim is 1.9 times the tokens a second of one GPU.
`weights`: the model is on the first GPU, as where it trains, and a node with the second one has an engine, which gets
version after version, straight (NCCL) and through the object store. The aim is 2 seconds.

Parts go to FOLDER/rl_hosts_gpu.json as they end, and are not measured again: the same command goes on. After `--limit`
seconds none is begun. On two H100 all should take some five minutes, most of it starts. Where Ray cannot be installed,
`pack_ray.py` makes files of it that can be carried there. To try it all on a CPU: --device cpu --shape tiny
--weights-shape tiny --prompts 8 --tokens 32 --store 80 --large-store 80.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ray_nodes import RayNodes

from dice.bench.decode import random_model
from dice.decode.request import DecodeConfig
from dice.decode.trace import Trace
from dice.model.sdar import SDAR
from dice.recipes import SHAPES
from dice.train.config import ModelShape

SMALL = ModelShape(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, max_position_embeddings=32768, rope_theta=1e6,
)  # fmt: skip
ALL_SHAPES = SHAPES | {"0.6b": (SMALL, 151936)}
PARTS = ("on_1", "on_2", "weights")
Figures = dict[str, Any]


def rollouts(address: str, model: SDAR, args: argparse.Namespace, count: int) -> Figures:
    """Tokens a second of so many engines, each run with weights of another version; the time of sending those."""
    from dice.cluster.engines import Engines

    config = DecodeConfig(max_new_tokens=args.tokens, max_active=args.active, temperature=1.0, stop_ids=frozenset())
    prompts = [[3 + (7 * number + place) % 100 for place in range(args.prompt)] for number in range(args.prompts)]
    seeds = list(range(len(prompts)))
    rates = []
    with Engines(address, model.config, count, args.device, direct=False) as engines:  # one GPU is the model's, too
        for version in range(args.runs + 1):
            engines.send(model, version)
            written: dict[int, Trace] = {}
            begun = time.monotonic()
            engines.write(model, version, prompts, config, seeds, lambda: None, written.__setitem__)
            rates.append(sum(trace.kept for trace in written.values()) / (time.monotonic() - begun))
            assert len(written) == len(prompts)
    return {
        "engines": count,
        "tokens_s": round(statistics.median(rates[1:]), 1),
        "all_tokens_s": [round(one, 1) for one in rates],
    }


def weights(address: str, model: SDAR, args: argparse.Namespace, keep: Callable[[Figures], None]) -> Figures:
    """Seconds from the trainer's model to an engine that is ready to write with it, version after version; the first
    one, for which processes find each other and memory is taken, is not counted. `keep` gets them one by one."""
    import ray

    from dice.cluster.engines import Engines

    found: Figures = {"weights_gb": round(sum(one.nbytes for one in model.state_dict().values()) / 1e9, 2)}
    for way, direct, runs in (("straight", True, args.runs), ("object_store", False, 1)):
        times = []
        with Engines(address, model.config, 1, args.device, direct=direct) as engines:
            for version in range(runs + 1):
                model.lm_head.weight.add_(1)  # so that it can be told whether they came
                begun = time.monotonic()
                engines.send(model, version)
                times.append(time.monotonic() - begun)
            there = engines._engines[0].actor.__ray_call__.remote(lambda engine: digest(engine._model))
            found[way] = {
                "seconds": round(statistics.median(times[1:]), 3),
                "all_seconds": [round(one, 3) for one in times],
                "past_the_store": engines._channel is not None,
                "equal": ray.get(there) == digest(model),
            }
        keep(found)
    return found


def digest(model: SDAR) -> list[float]:
    """The same where the weights are."""
    return [float(one.double().sum()) for _, one in sorted(model.state_dict().items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", choices=sorted(ALL_SHAPES), default="0.6b")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each answer")
    parser.add_argument("--active", type=int, default=64, help="texts that an engine writes at a time")
    parser.add_argument("--runs", type=int, default=2, help="after one that is not counted")
    parser.add_argument("--weights-shape", choices=sorted(ALL_SHAPES), default="8b")
    parser.add_argument("--store", type=int, default=4000, help="megabytes of a node's object store")
    parser.add_argument("--large-store", type=int, default=20000, help="the same where weights are measured")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no part begins")
    args = parser.parse_args()
    begun, path = time.monotonic(), args.out / "rl_hosts_gpu.json"
    args.out.mkdir(parents=True, exist_ok=True)
    found: Figures = json.loads(path.read_text()) if path.exists() else {}
    found["machine"] = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__, "decoder": os.environ.get("DICE_ENGINE", "by size"),
    }  # fmt: skip
    cuda = args.device == "cuda"
    root = Path(__file__).resolve().parent.parent
    search = f"{root}:{root / 'benchmarks'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")

    def keep(name: str, figures: Figures) -> None:
        found[name] = figures
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"[{time.monotonic() - begun:.0f} s]", name, figures, flush=True)

    def model_of(shape: str, device: str) -> SDAR:
        made, vocabulary = ALL_SHAPES[shape]
        return random_model(made.for_timing(vocabulary, 4), torch.device(device), torch.bfloat16, seed=0)

    for name in args.parts:
        if name in found or time.monotonic() - begun > args.limit:
            continue
        settings = {"settings": {key: value for key, value in vars(args).items() if key not in ("out", "limit")}}
        large = name == "weights"
        count, store = (2 if name == "on_2" else 1), args.large_store if large else args.store
        with RayNodes(count, 2, {"PYTHONPATH": search}, gpus=cuda, first_gpu=int(large), store=store) as nodes:
            if large:
                figures = weights(
                    nodes.address, model_of(args.weights_shape, args.device), args, partial(keep, "so_far")
                )
            else:
                figures = rollouts(nodes.address, model_of(args.shape, "cpu"), args, count)
        found.pop("so_far", None)
        keep(name, figures | settings)
    if {"on_1", "on_2"} <= found.keys():
        keep("against_one", {"speedup": round(found["on_2"]["tokens_s"] / found["on_1"]["tokens_s"], 3), "aim": 1.9})


if __name__ == "__main__":
    main()
