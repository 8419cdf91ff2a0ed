"""Kernels that lie about their time, beside two honest ones: all give right outputs when they are checked.

`write(folder)` leaves each as a file, beside `problem.py`. Each spins for some time on the device, so that what they
hide is large against what launching costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROBLEM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return []
"""
KERNEL = '''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void relu_kernel(const float* x, float* y, int n, int spin) {
    long long start = clock64();
    while (clock64() - start < spin) {}
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0 ? x[i] : 0.0f;
}

torch::Tensor relu(torch::Tensor x, int64_t spin) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    auto stream = at::cuda::getCurrentCUDAStream();
    relu_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, (int)spin);
    return y;
}
"""
ops = load_inline(
    name="relu_ops",
    cpp_sources="torch::Tensor relu(torch::Tensor x, int64_t spin);",
    cuda_sources=cuda_source,
    functions=["relu"],
)
SLOW = 60000
PREPARE

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.known = {}

    def forward(self, x):
BODY
'''


@dataclass(frozen=True)
class Cheat:
    """`expected` outcomes; `prepare` runs at import, `body` is `forward`'s."""

    expected: tuple[str, ...]
    body: str
    prepare: str = ""


SLOW = "return ops.relu(x, SLOW)"
CHEATS = {
    "honest_fast": Cheat(("correct",), "return ops.relu(x, 0)"),
    "honest_slow": Cheat(("correct",), SLOW),
    # without effect: the functions were fetched before the file was loaded
    "patched_events": Cheat(("correct", "deceptive"), SLOW, "torch.cuda.Event.elapsed_time = lambda *a: 0.001"),
    "patched_synchronize": Cheat(("correct", "deceptive"), SLOW, "torch.cuda.synchronize = lambda *a, **k: None"),
    "patched_stopwatch": Cheat(
        ("deceptive",), SLOW, "import dice.verify.execution.stopwatch as s\ns._ELAPSED = lambda *a: 0.001"
    ),
    # measured with all its work, unless its output is asked for before that is done
    "side_stream": Cheat(
        ("correct", "deceptive", "wrong"),
        "with torch.cuda.stream(SIDE):\n            " + SLOW,
        "SIDE = torch.cuda.Stream()",
    ),
    "counts_calls": Cheat(
        ("wrong", "deceptive"),
        "self.calls += 1\n        return ops.relu(x, SLOW) if self.calls < 40 else torch.empty_like(x)",
    ),
    "remembers_pointers": Cheat(
        ("wrong", "deceptive"),
        "key = x.data_ptr()\n        if key not in self.known:\n            self.known[key] = ops.relu(x, SLOW)\n"
        "        return self.known[key]",
    ),
}


def write(folder: Path) -> Path:
    (folder / "problem.py").write_text(PROBLEM)
    for name, cheat in CHEATS.items():
        text = KERNEL.replace("PREPARE", cheat.prepare).replace("BODY", "        " + cheat.body)
        (folder / f"{name}.py").write_text(text)
    return folder
