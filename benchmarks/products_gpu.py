"""Large products by rule, plainly and on tensor cores, beside PyTorch's in the same run.

    python benchmarks/products_gpu.py --out products.json [--only square linear]

A row for each product: TFLOP/s of both kernels and of eager PyTorch as it comes (float32 for products; convolutions by
cuDNN may use TF32), medians of rounds in turns, and how far each result is from float64, in units of its rms.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

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

ROUNDS, CALLS = 7, 5
Function = Callable[..., torch.Tensor]
PRODUCTS: dict[str, tuple[Function, tuple[tuple[int, ...], ...], int]] = {  # function, shapes, multiply-adds
    "square": (lambda a, b: a @ b, ((4096, 4096), (4096, 4096)), 4096**3),
    "square, turned": (lambda a, b: a.T @ b.T, ((4096, 4096), (4096, 4096)), 4096**3),
    "odd": (lambda a, b: a @ b, ((2049, 3001), (3001, 1999)), 2049 * 3001 * 1999),
    "deep": (lambda a, b: a @ b, ((256, 262144), (262144, 256)), 256 * 256 * 262144),
    "deeper": (lambda a, b: a @ b, ((256, 524288), (524288, 256)), 256 * 256 * 524288),
    "tall and skinny": (lambda a, b: a @ b, ((16384, 32), (32, 16384)), 16384 * 16384 * 32),
    "shallow": (lambda a, b: a @ b, ((16384, 64), (64, 16384)), 16384 * 16384 * 64),
    "batched": (lambda a, b: a @ b, ((64, 512, 1024), (64, 1024, 512)), 64 * 512 * 1024 * 512),
    "linear, GELU": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((1024, 8192), (8192, 8192), (8192,)), 1024 * 8192**2),
    "few rows": (lambda x, w: F.linear(x, w), ((128, 4096), (4096, 4096)), 128 * 4096**2),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1),
        ((16, 64, 112, 112), (128, 64, 3, 3)),
        16 * 112 * 112 * 128 * 64 * 9,
    ),
    "convolution, large": (
        lambda x, w: F.conv2d(x, w, padding=1),
        ((16, 64, 224, 224), (128, 64, 3, 3)),
        16 * 224 * 224 * 128 * 64 * 9,
    ),
    "convolution, 1 x 1": (
        lambda x, w: F.conv2d(x, w),
        ((16, 256, 56, 56), (512, 256, 1, 1)),
        16 * 56 * 56 * 512 * 256,
    ),
    "convolution, few pixels": (
        lambda x, w: F.conv2d(x, w, padding=1),
        ((8, 512, 7, 7), (512, 512, 3, 3)),
        8 * 7 * 7 * 512 * 512 * 9,
    ),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        ((16, 64, 112, 112), (64, 128, 3, 3)),
        16 * 112 * 112 * 128 * 64 * 9,
    ),
    "transposed, 3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2, padding=1, output_padding=1),
        ((8, 32, 16, 32, 32), (32, 64, 3, 3, 3)),
        8 * 16 * 32 * 32 * 64 * 32 * 27,
    ),
}


class Module(torch.nn.Module):
    def __init__(self, function: Function):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PRODUCTS), default=list(PRODUCTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.only:
        rows.append(row := {"product": name, **measured(*PRODUCTS[name])})
        print(row, flush=True)
        if args.out:
            machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
            write_json(args.out, {"command": "python benchmarks/products_gpu.py", "machine": machine, "rows": rows})


def measured(function: Function, shapes: tuple[tuple[int, ...], ...], work: int) -> dict[str, object]:
    graph = Graph.from_json(
        export_graph(
            Module(function), tuple(map(torch.randn, shapes)), {}, Device("emulated"), own_file=__name__
        ).graph.to_json()
    )
    (region,) = cut(graph)
    inputs = [torch.randn(shape, device="cuda") for shape in shapes]
    calls: dict[str, Function] = {"pytorch": function}
    for way in (False, True):
        kernel = kernel_of(region, problem_of(region), tensor_cores=way)
        path = Path(tempfile.mkdtemp()) / "kernel.py"
        path.write_text(kernel.source)
        calls["tensor cores" if way else "plain"] = load(path, backend="cuda").ModelNew()
    order = [int(node.arguments[0][7:-1]) for node in graph.nodes if node.operator == "input"]
    arguments = {name: inputs if name == "pytorch" else [inputs[one] for one in order] for name in calls}
    exact = function(*(one.double() for one in inputs))
    size = float(exact.square().mean().sqrt())
    found: dict[str, object] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        error = float((call(*arguments[name]).double() - exact).square().mean().sqrt())
        found[f"{name}, error"] = error / size
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(milliseconds(call, arguments[name]))
    for name, own in times.items():
        found[f"{name}, TFLOP/s"] = round(2 * work / statistics.median(own) / 1e9, 1)
        found[f"{name}, ms"] = [round(min(own), 4), round(statistics.median(own), 4), round(max(own), 4)]
    return found


def milliseconds(call: Function, inputs: list[torch.Tensor], calls: int = CALLS) -> float:
    """Of one call on the GPU: the mean of so many, behind one that is not counted."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call(*inputs)
    begin.record()
    for _ in range(calls):
        call(*inputs)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


if __name__ == "__main__":
    main()
