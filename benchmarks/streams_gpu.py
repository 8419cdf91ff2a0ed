"""Kernels by rule that memory bounds, beside eager PyTorch in the same run.

    python benchmarks/streams_gpu.py --out streams.json [--only relu softmax] [--tiny]

A row for each case: GB/s of what has to be read and written once, milliseconds (least, median, most of rounds in
turns), how many times as fast as PyTorch, and the largest error of both against float64, in units of the largest result
or 1.
`--tiny`: no extent above 64, emulated on the CPU, to see that the cases work; its times mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import products_gpu
import torch
import torch.nn.functional as F

from dice.files.atomic import write_json
from dice.loading import load
from dice.optimize.graph import Graph
from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.templates.answer import kernel_of
from dice.optimize.trace.capture_graph import export_graph
from dice.verify.execution.running import Device

ROUNDS, CALLS, MOST_TINY = 7, 4, 64
Function = Callable[..., Any]
Case = tuple[Function, tuple[tuple[int, ...], ...]]
HALF = {"gelu, half": torch.float16, "SwiGLU, bfloat16": torch.bfloat16}


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


def _in_training(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


IMAGES, MATRIX = (32, 64, 256, 256), (16384, 16384)
CASES: dict[str, Case] = {
    "relu": (F.relu, (MATRIX,)),
    "gelu": (F.gelu, (MATRIX,)),
    "relu, odd": (F.relu, ((16383, 16385),)),
    "gelu, half": (F.gelu, ((16384, 32768),)),
    "sum of two": (lambda x, y: x + y, (MATRIX, MATRIX)),
    "SwiGLU, bfloat16": (lambda x, y: F.silu(x) * y, (MATRIX, MATRIX)),
    "bias of channels": (lambda x, b: F.relu(x + b), (IMAGES, (64, 1, 1))),
    "bias of features": (lambda x, b: F.relu(x + b), (MATRIX, (16384,))),
    "scale of rows": (lambda x, s: x * s, (MATRIX, (16384, 1))),
    "channels of 7 by 7": (lambda x, s: torch.tanh(x * s), ((1024, 2048, 7, 7), (2048, 1, 1))),
    "turned": (lambda x, y: x.T + y, (MATRIX, MATRIX)),
    "softmax": (lambda x: F.softmax(x, -1), ((2048, 131072),)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), ((16384, 16384),)),
    "softmax, few rows": (lambda x: F.softmax(x, -1), ((128, 16384),)),
    "softmax, short rows": (lambda x: F.softmax(x, -1), ((1048576, 196),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), ((32768, 4096), (4096,), (4096,))),
    "layer norm, long": (lambda x: F.layer_norm(x, x.shape[1:]), ((64, 64, 128, 256),)),
    "RMS norm of channels": (_normed, (IMAGES,)),
    "L2 norm of rows": (lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True), ((4096, 65536),)),
    "Frobenius norm": (lambda x: x / torch.norm(x), (IMAGES,)),
    "instance norm": (F.instance_norm, (IMAGES,)),
    "group norm": (lambda x, w, b: F.group_norm(x, 8, w, b), (IMAGES, (64,), (64,))),
    "SiLU, group norm": (
        lambda x, b, w, c: F.group_norm(F.silu(x) + b, 64, w, c),
        ((32768, 4096), (4096,), (4096,), (4096,)),
    ),
    "batch norm, GELU": (lambda x: F.gelu(_in_training(x)), ((16384, 4096),)),
    "batch norm, wide": (_in_training, ((1024, 8192),)),
    "batch norm, images": (_in_training, (IMAGES,)),
    "sum over the middle": (lambda x: x.sum(1), ((80, 2048, 2047),)),
    "argmax over the middle": (lambda x: x.argmax(1), ((80, 2048, 2047),)),
    "sum of columns": (lambda x: x.sum(0), ((1048576, 256),)),
    "mean of images": (lambda x: x.mean((2, 3)), ((128, 512, 56, 56),)),
    "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGES,)),
    "mean squared error": (F.mse_loss, (MATRIX, MATRIX)),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = "cpu" if args.tiny else "cuda"
    name = "the CPU, emulated" if args.tiny else torch.cuda.get_device_name()
    sources = {one: source(one, device) for one in args.only}
    with ThreadPoolExecutor(1 if args.tiny else 8) as pool:  # builds wait for compilers
        kernels = dict(zip(sources, pool.map(lambda one: built(*sources[one], device), sources), strict=True))
    rows = []
    for one in args.only:
        rows.append(row := {"case": one, **measured(one, kernels[one], device)})
        print(row, flush=True)
        if args.out:
            machine = {"device": name, "torch": torch.__version__}
            write_json(args.out, {"command": "python benchmarks/streams_gpu.py", "machine": machine, "rows": rows})


def shapes_of(name: str, device: str) -> tuple[tuple[int, ...], ...]:
    shapes = CASES[name][1]
    if device == "cpu":
        return tuple(tuple(min(extent, MOST_TINY - extent % 2) for extent in shape) for shape in shapes)
    return shapes


def measured(name: str, kernel: Function, device: str) -> dict[str, object]:
    function, dtype = CASES[name][0], HALF.get(name, torch.float32)
    inputs = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes_of(name, device)]
    calls: dict[str, Function] = {"pytorch": function, "rule": kernel}
    exact = function(*(one.double() for one in inputs)).double()
    found: dict[str, object] = {}
    for way, call in calls.items():
        result = call(*inputs)
        found[f"{way}, error"] = float((result.double() - exact).abs().max() / exact.abs().max().clamp(min=1))
        size = sum(one.nbytes for one in inputs) + result.nbytes
    del exact, result
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(1 if device == "cpu" else ROUNDS):
        for way, call in calls.items():
            times[way].append(milliseconds(call, inputs))
    for way, own in times.items():
        found[f"{way}, GB/s"] = round(size / statistics.median(own) / 1e6)
        found[f"{way}, ms"] = [round(min(own), 4), round(statistics.median(own), 4), round(max(own), 4)]
    found["times as fast"] = round(statistics.median(times["pytorch"]) / statistics.median(times["rule"]), 2)
    return found


def source(name: str, device: str) -> tuple[str, Sequence[int]]:
    """The kernel file, and the inputs that its module takes."""
    dtype = HALF.get(name, torch.float32)
    empty = tuple(torch.empty(shape, dtype=dtype) for shape in shapes_of(name, device))
    unit = export_graph(products_gpu.Module(CASES[name][0]), empty, {}, Device("emulated"), own_file=__name__)
    graph = Graph.from_json(unit.graph.to_json())
    (region,) = cut(graph)
    order = [int(node.arguments[0][7:-1]) for node in graph.nodes if node.operator == "input"]
    return kernel_of(region, problem_of(region)).source, order


def built(text: str, order: Sequence[int], device: str) -> Function:
    """The kernel, as a function of the inputs as they come."""
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(text)
    module = load(path, backend="emulated" if device == "cpu" else "cuda").ModelNew()
    return lambda *inputs: module(*(inputs[one] for one in order))


def milliseconds(call: Function, inputs: list[torch.Tensor]) -> float:
    if inputs[0].device.type == "cpu":
        begun = time.perf_counter()
        call(*inputs)
        return (time.perf_counter() - begun) * 1000
    return products_gpu.milliseconds(call, inputs, CALLS)


if __name__ == "__main__":
    main()
