"""The shadow headers cover what wrappers around kernels do with PyTorch's C++ interface, with PyTorch's results."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from header_snippets import SNIPPETS, source

from dice.verify.build.build import Sources, build
from dice.verify.candidate import binding
from dice.verify.execution import fake_cuda
from dice.verify.options import default_cache_dir
from dice.verify.toolchain import SHADOW_HEADERS
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.xdist_group("headers")  # one process builds what they share
NAMES = list(SNIPPETS)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """All snippets in one extension: any that the headers lack would send it to PyTorch's own headers."""
    built = build(Sources((), (source(NAMES),)), backend="emulated", cache_dir=default_cache_dir())
    assert built.headers == "slim"
    return binding.load(built, "snippets")


@pytest.mark.parametrize("name", NAMES)
def test_snippet_agrees_with_pytorch(module: ModuleType, name: str) -> None:
    torch.manual_seed(3)
    x = torch.randn(6, 4)
    expected = SNIPPETS[name][1](x.clone())
    with fake_cuda.active(True):
        actual = getattr(module, name)(x.clone())
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(
    shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists(), reason="there is no nvcc"
)
@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_nvcc_needs_no_more_than_the_shadow_headers(whole: bool) -> None:
    """nvcc sees these headers in another form than g++: cut down to the names that a source holds."""
    text = source(NAMES) + ("#ifdef __CUDACC__\n#endif\n" if whole else "")
    built = build(Sources((), (text,)), backend="cuda", cache_dir=default_cache_dir())
    assert built.headers == ("slim" if whole else "split")


def test_no_inline_function_calls_an_operator() -> None:
    """g++ would instantiate the call, and all that it needs, in every build: two thirds of what a file cost."""
    inline = re.compile(r"^[^\n]*\binline\b[^{;]*\{[^}]*\bcall<", re.M)
    texts = {path.name: path.read_text() for path in (SHADOW_HEADERS / "dice").glob("*.h")}
    found = {name: match[0] for name, text in texts.items() for match in inline.finditer(text)}
    assert {name: head for name, head in found.items() if "template" not in head} == {}


@pytest.mark.slow
def test_functions_that_quick_builds_leave_out_of_the_standard_library_are_there() -> None:
    text = (
        "double value() { return std::cyl_bessel_j(0.0, 1.0) + std::riemann_zeta(2.0); }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("value", &value); }\n'
    )
    built = build(Sources((text,), ()), backend="emulated", cache_dir=default_cache_dir())
    assert built.headers == "slim"
    assert binding.load(built, "maths").value() == pytest.approx(0.7651977 + 1.6449341)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_snippet_on_a_gpu(name: str) -> None:
    built = build(Sources((), (source([name]),)), backend="cuda", cache_dir=default_cache_dir())
    assert built.headers in ("split", "slim")
    torch.manual_seed(3)
    x = torch.randn(6, 4)
    expected = SNIPPETS[name][1](x.clone())
    if name in ("accessor", "pointers"):  # they read on the host
        return
    actual = getattr(binding.load(built, "snippets"), name)(x.cuda()).cpu()
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.slow  # makes the full headers, which takes the better part of a minute
def test_a_header_that_is_not_shadowed_has_pytorchs_own() -> None:
    """Also with what PyTorch declares for nvcc alone."""
    x = torch.randn(6, 4)
    text = source(["packed_accessors"]) + "#include <c10/util/complex.h>\n#include <ATen/native/cpu/utils.h>\n"
    built = build(Sources((), (text,)), backend="emulated", cache_dir=default_cache_dir(), timeout_s=PATIENCE_S)
    assert built.headers == "full"
    with fake_cuda.active(True):
        actual = binding.load(built, "snippets").packed_accessors(x)
    torch.testing.assert_close(actual, x * 2)
