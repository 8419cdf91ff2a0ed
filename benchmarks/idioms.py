"""The same kernels as other people would have written their host code: seeded rewrites that keep the meaning.

The synthetic corpus spells its host code plainly. Answers to KernelBench use more of PyTorch's C++ API: dispatch
macros, checks, guards, streams, other factories, other ways to bind. Each rewrite below is one such habit.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from dice import synth
from dice.kernel import Kernel
from dice.problem import Problem

Rewrite = Callable[[str], str]
LAUNCH = re.compile(r"( *)(\w+)<<<([^;]*?)>>>\(([^;]*)\);")
WRAPPER = re.compile(r"^(torch::Tensor|at::Tensor) (\w+)\(((?:torch|at)::Tensor (\w+)[^)]*)\) \{\n", re.MULTILINE)


def varied(seed: int, count: int) -> Iterator[tuple[Problem, Kernel, tuple[str, ...]]]:
    """Distinct pairs, each with the names of the habits it was rewritten in (between none and six)."""
    seen: set[str] = set()
    index = 0
    while len(seen) < count:
        pair = synth.generate(seed, index)
        rng = random.Random(f"{seed} {index}")
        index += 1
        source, used = pair.kernel.source, []
        for name in rng.sample([*HABITS], rng.randrange(7)):
            changed = HABITS[name](source)
            if changed != source:
                source = changed
                used.append(name)
        if source not in seen:
            seen.add(source)
            yield pair.check_problem, Kernel(source, pair.kernel.name), tuple(used)


def _include(header: str) -> Rewrite:
    def rewrite(source: str) -> str:
        first = re.search(r"#include <[^>]+>\n", source)
        return source if first is None else source[: first.end()] + f"#include <{header}>\n" + source[first.end() :]

    return rewrite


def _in_wrapper(lines: str) -> Rewrite:
    """Put lines at the beginning of the first host function; `%s` is its first tensor."""
    return lambda source: WRAPPER.sub(lambda found: found[0] + lines.replace("%s", found[4]), source, count=1)


def _launch(template: str) -> Rewrite:
    """Rewrite launches; `%(indent)s`, `%(name)s`, `%(shape)s` and `%(arguments)s` are their parts."""

    def rewrite(source: str) -> str:
        parts = ("indent", "name", "shape", "arguments")
        return LAUNCH.sub(lambda found: template % dict(zip(parts, found.groups(), strict=True)), source)

    return rewrite


def _on_stream(source: str) -> str:
    def stream(found: re.Match[str]) -> str:
        indent, name, shape, arguments = found.groups()
        depth, commas = 0, 0
        for character in shape:
            depth += (character in "([{") - (character in ")]}")
            commas += character == "," and depth == 0
        if commas > 2:
            return found[0]
        more = ", 0" if commas == 1 else ""
        return f"{indent}{name}<<<{shape}{more}, at::cuda::getCurrentCUDAStream()>>>({arguments});"

    return _include("ATen/cuda/CUDAContext.h")(LAUNCH.sub(stream, source))


def _dispatched(source: str) -> str:
    """The launch inside AT_DISPATCH_FLOATING_TYPES, as templates of a kernel are called."""
    first = WRAPPER.search(source)
    if first is None or not LAUNCH.search(source, first.end()):
        return source
    launch = "AT_DISPATCH_FLOATING_TYPES(" + first[4] + '.scalar_type(), "launch", ([&] {\n'
    before, after = source[: first.end()], source[first.end() :]
    return before + LAUNCH.sub(lambda found: f"{found[1]}{launch}{found[0]}\n{found[1]}}}));", after, count=1)


def _pybind(source: str) -> str:
    """A PYBIND11_MODULE in the C++ source in place of `functions=[...]`."""
    listed = re.search(r"    functions=\[([^\]]*)\],\n", source)
    declared = re.search(r'^(cpp_\w+ = )"([^"\n]*)"\n', source, re.MULTILINE)
    if listed is None or declared is None:
        return source
    names = re.findall(r"\w+", listed[1])
    bound = "".join(f'    m.def("{name}", &{name}, "{name} on CUDA");\n' for name in names)
    module = f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{bound}}}\n"
    text = f'{declared[1]}"""\n#include <torch/extension.h>\n{declared[2]}\n{module}"""\n'
    source = source.replace(listed[0], "")
    return source.replace(declared[0], text)


def _sub(pattern: str, new: str) -> Rewrite:
    return lambda source: re.sub(pattern, new, source)


def _error_string(source: str) -> str:
    """Only where there is one launch: two would declare the status twice."""
    return _launch(ERROR)(source) if len(LAUNCH.findall(source)) == 1 else source


CHECK = '    TORCH_CHECK(%s.is_cuda(), "expected a CUDA tensor, got ", %s.device());\n'
TYPED = '    TORCH_CHECK(%s.scalar_type() == torch::kFloat32 || %s.dim() >= 0, "expected float32");\n'
ERROR = (
    "%(indent)s%(name)s<<<%(shape)s>>>(%(arguments)s);\n"
    "%(indent)scudaError_t status = cudaGetLastError();\n"
    "%(indent)sif (status != cudaSuccess)\n"
    '%(indent)s    throw std::runtime_error(std::string("launch: ") + cudaGetErrorString(status));'
)
HABITS: dict[str, Rewrite] = {
    "check_cuda": _in_wrapper(CHECK),
    "check_type": _in_wrapper(TYPED),
    "check_contiguous": _in_wrapper(
        '    TORCH_CHECK(%s.numel() >= 0 && %s.is_contiguous() | true, "shape ", %s.sizes());\n'
    ),
    "guard": lambda source: _include("c10/cuda/CUDAGuard.h")(
        _in_wrapper("    const at::cuda::OptionalCUDAGuard guard(device_of(%s));\n")(source)
    ),
    "current_stream": _on_stream,
    "launch_check": lambda source: _include("c10/cuda/CUDAException.h")(
        _launch("%(indent)s%(name)s<<<%(shape)s>>>(%(arguments)s);\n%(indent)sC10_CUDA_KERNEL_LAUNCH_CHECK();")(source)
    ),
    "error_string": lambda source: _include("stdexcept")(_include("string")(_error_string(source))),
    "synchronize": _launch("%(indent)s%(name)s<<<%(shape)s>>>(%(arguments)s);\n%(indent)scudaDeviceSynchronize();"),
    "dispatch": _dispatched,
    "pybind_module": _pybind,
    "const_data_ptr": _sub(r"\b(x|a|b|y)\.data_ptr<float>\(\)", r"\1.const_data_ptr<float>()"),
    "mutable_data_ptr": _sub(r"\bout\.data_ptr<float>\(\)", "out.mutable_data_ptr<float>()"),
    "data": _sub(r"\.data_ptr<float>\(\)", ".data<float>()"),
    "at_namespace": _sub(r"\btorch::Tensor\b", "at::Tensor"),
    "zeros": _sub(r"\btorch::empty\(", "torch::zeros("),
    "tensor_options": _sub(
        r"(\w+)\.options\(\)", r"torch::TensorOptions().dtype(\1.scalar_type()).device(\1.device())"
    ),
    "half_header": _include("cuda_fp16.h"),
    "vectors": lambda source: _include("vector")(
        _in_wrapper("    std::vector<int64_t> shape(%s.sizes().vec());\n")(source)
    ),
    "context_header": _include("ATen/ATen.h"),
    "no_grad": _in_wrapper("    torch::NoGradGuard no_grad;\n"),
    "auto_dims": _in_wrapper(
        "    const auto ndim = %s.dim();\n    const int64_t last = ndim ? %s.size(ndim - 1) : 1;\n"
    ),
}
