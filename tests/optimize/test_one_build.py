"""Many kernels in one build: files that use the same names for different things, and what cannot share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.kernel import Kernel
from dice.loading import load
from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.whole.builds import Builds
from dice.optimize.whole.compose import compose
from dice.optimize.whole.extension import extension_of
from dice.optimize.whole.namespaces import NotShared
from dice.optimize.whole.plan import Part, Plan
from dice.optimize.whole.streams import on_current_stream
from dice.problem import Problem
from dice.verify.execution.running import Device

FILE = '''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#define THREADS {threads}
#define APPLY(x) \\
    ({formula})

struct Limits {{ int count; }};

__device__ float value(float x) {{ return APPLY(x); }}

__global__ void map_kernel(const float* x, float* out, Limits limits) {{
    extern __shared__ {shared} staged[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    staged[threadIdx.x] = 0;
    if (i < limits.count) out[i] = value(x[i]);
}}

torch::Tensor map(torch::Tensor x) {{
    auto out = torch::empty_like(x);
    int n = x.numel();
    map_kernel<<<(n + THREADS - 1) / THREADS, THREADS, THREADS * 8>>>(
        x.data_ptr<float>(), out.data_ptr<float>(), Limits{{n}});
    return out;
}}
"""

extension = load_inline("maps", "torch::Tensor map(torch::Tensor x);", source, functions=["map"]{options})


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.extension = extension

    def forward(self, x):
        return self.extension.map(x.contiguous())
'''
SOURCE = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        {}\n"
BODY = "return torch.softmax(torch.relu(x), -1).cumsum(-1)"


def file(formula: str, threads: int = 64, shared: str = "float", options: str = "") -> Kernel:
    return Kernel(FILE.format(formula=formula, threads=threads, shared=shared, options=options))


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x).cumsum(-1).flip(-1).cumsum(0).abs()


@pytest.fixture
def composed() -> Callable[..., str]:
    def make(*kernels: Kernel) -> str:
        """A file that has these kernels for the first regions of a chain; what they compute is not the chain's."""
        unit = export_graph(Chain(), (torch.randn(4, 8),), {}, Device("emulated"), own_file=__name__)
        regions = tuple(cut(unit.graph))
        assert len(regions) >= len(kernels)
        parts = {one.key: Part(kernel, problem_of(one).paths) for one, kernel in zip(regions, kernels, strict=False)}
        source = SOURCE.format("return x") + "\n\ndef get_init_inputs():\n    return []\n"
        return compose(Plan(Problem(source, name="chain"), ((unit, regions),), parts)).source

    return make


def test_names_that_mean_different_things_share_a_build(composed: Callable[..., str], tmp_path: Path) -> None:
    text = composed(file("x + 1"), file("x * 3", 128, "double"))
    assert text.count("load_inline(") == 1 and "cuda_sources=[cuda_source_1, cuda_source_2]" in text
    assert text.count("THREADS * 8, c10::cuda::getCurrentCUDAStream()>>>") == 2
    assert text.index("# Region 1") < text.index("x + 1") < text.index("# Region 2") < text.index("x * 3")
    (tmp_path / "chain.py").write_text(text)
    module = load(tmp_path / "chain.py", backend="emulated")
    x = torch.randn(5, 7)
    torch.testing.assert_close(module.region_1(x), x + 1)
    torch.testing.assert_close(module.region_2(x), x * 3)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("k<<<(n + 1) / 2, 2>>>(x);", "k<<<(n + 1) / 2, 2, 0, STREAM>>>(x);"),
        ("k<float, 4><<<dim3(a, b), f(2, 3), 4 * n>>>(x);", "k<float, 4><<<dim3(a, b), f(2, 3), 4 * n, STREAM>>>(x);"),
        ("k<<<1, 2, 0, own>>>(x);", "k<<<1, 2, 0, own>>>(x);"),
        ("k<<<most<int, 3>(n), 2>>>(x);", "k<<<most<int, 3>(n), 2>>>(x);"),
        ('// k<<<1, 2>>>(x);\nauto text = "<<<1, 2>>>";', '// k<<<1, 2>>>(x);\nauto text = "<<<1, 2>>>";'),
        ("#define RUN(k) k<<<1, 2>>>()", "#define RUN(k) k<<<1, 2, 0, STREAM>>>()"),
        ("k<<<1, 2", "k<<<1, 2"),
    ],
)
def test_a_launch_without_a_stream_gets_pytorchs(launch: str, expected: str) -> None:
    found = on_current_stream(launch).replace("c10::cuda::getCurrentCUDAStream()", "STREAM")
    assert found == ("#include <c10/cuda/CUDAStream.h>\n" if expected != launch else "") + expected


@pytest.mark.parametrize("name", ["2_Conv2D_ReLU", "réseau", "a b", "..."])
def test_any_name_of_a_file_becomes_a_name_of_an_extension(name: str) -> None:
    found = Builds.of(Problem("", name), {}).name  # that of a package, too
    assert found.isidentifier() and found.isascii()


def test_other_options_are_another_build_and_what_cannot_share_says_why(composed: Callable[..., str]) -> None:
    text = composed(file("x + 1"), file("x * 3", options=', extra_cuda_cflags=["--use_fast_math"]'))
    assert text.count("load_inline(") == 2 and text.count("extra_cuda_cflags=['--use_fast_math']") == 1
    text = composed(file("x + 1"), Kernel(file("x * 3").source.replace("torch::Tensor map(torch::Tensor x) {",
        'extern "C" int seven() { return 7; }\n\ntorch::Tensor map(torch::Tensor x) {')))  # fmt: skip
    assert text.count("load_inline(") == 2
    assert '# It has a build of its own: it has functions that are extern "C".' in text


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("#include <cuda_runtime.h>", "#define X 1\n#include <cuda_runtime.h>", "includes a header where"),
        ("#include <cuda_runtime.h>", "#ifdef X\n#include <cuda_runtime.h>\n#endif", "includes a header where"),
        ("#define THREADS", "#ifndef THREADS\n#define THREADS", "unless a header has"),
        ("#define THREADS", "#undef __CUDA_NO_HALF__\n#define THREADS", "takes the macro"),
        ("#define THREADS", "#pragma GCC optimize(3)\n#define THREADS", "holds for all that follows"),
        ("float value(", "float max(", "as one of CUDA's is"),
        ("struct Limits", "namespace std { int x; }\nstruct Limits", "adds to the namespace std"),
        ("int count; }", "int count; ", "brackets without partners"),
        ('functions=["map"]', "functions=names", "does not list the functions"),
        ('functions=["map"]', 'functions=["map", "other"]', "does not declare other"),
        ("map(torch::Tensor x);", "map(torch::Tensor x); int y = 3;", "more than to declare"),
        (", source,", ", source + extra,", "when it is run"),
        ("\n\nclass ModelNew", "\nmap = extension.map\n\n\nclass ModelNew", "uses extension when it is run"),
        ("extension = load_inline(", "if True:\n    extension = load_inline(", "at its top"),
    ],
)
def test_what_would_mean_something_else_is_built_by_itself(old: str, new: str, reason: str) -> None:
    source = file("x + 1").source
    assert old in source
    with pytest.raises(NotShared, match=reason):
        extension_of(Kernel(source.replace(old, new, 1)), 1)
