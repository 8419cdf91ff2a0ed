"""The parts of building that are plain functions: flags, joining units, blame for an error, the compiler's jail."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from dice.verify.build.compiler_process import MAX_LOG_BYTES, run_all
from dice.verify.build.diagnostics import error_lines, headers_to_blame
from dice.verify.build.sources import safe_flags
from dice.verify.build.units import bindings_for, may_join, split_units
from tests.conftest import PATIENCE_S

DECLARED = """#include <torch/extension.h>
// a comment;
at::Tensor f(const at::Tensor& x, std::vector<int64_t> n = {}, int64_t k = 3);
"""


def test_flags_that_change_meaning_stay_and_the_rest_goes() -> None:
    kept = ["-O3", "--use_fast_math", "-std=c++17", "-DN=4", "-lineinfo", "-U__CUDA_NO_HALF_OPERATORS__"]
    paths = ["-I/etc", "-include", "/etc/passwd", "-o", "/tmp/x", "-wrapper", "sh", "-fplugin=x.so", "-Xcompiler", "-w"]
    architectures = ["-arch=sm_80", "-gencode=arch=compute_80,code=sm_80"]
    assert safe_flags([*paths, *kept, *architectures, "-DX=`id`"]) == tuple(kept)
    assert safe_flags(["-D", "M=2", "-std", "c++20", "-D", "`id`"]) == ("-DM=2", "-std=c++20")


@pytest.mark.parametrize(
    ("cpp", "cuda", "joins"),
    [
        (DECLARED, "at::Tensor f() {}", True),
        ("", "int x;", True),
        ("void f(float* x, int n);", "int x;", True),
        ("static int g() { return 1; }", "int x;", False),
        ("#define N 3\nvoid f(int n);", "int x;", False),
        ("void f(int N);", "#define N 3", False),
        ("void f(Config c);", "struct Config {};", False),
        ("using namespace at;\nTensor f(Tensor x);", "int x;", False),
        ("#include <cuda_fp16.h>\nvoid f(half x);", "int x;", False),
        ('void f(const char* x = "a;b");', "int x;", False),
    ],
)
def test_only_pure_declarations_join_the_cuda_source(cpp: str, cuda: str, joins: bool) -> None:
    assert may_join(cpp, cuda) is joins


def test_generated_bindings_and_their_place() -> None:
    bindings = bindings_for((("f", "doc of f"),))
    assert 'm.def("f", torch::wrap_pybind_function(f), "doc of f");' in bindings
    cuda, cpp = split_units("void f();", "void f() {}", bindings)
    assert (cuda.language, cpp.language) == ("cuda", "cpp")
    assert "PYBIND11_MODULE" in cpp.body and "PYBIND11_MODULE" not in cuda.body
    assert [unit.language for unit in split_units("", "PYBIND11_MODULE(x, m) {}", "")] == ["cuda"]


UNKNOWN_NAME = "cuda_source:3:5: error: 'blokIdx' was not declared in this scope; did you mean 'blockIdx'?\n"
SUSPICIOUS = "cuda_source:9:2: error: no matching function for call to 'at::Tensor::sum(int, int, int)'\n"


@pytest.mark.parametrize(
    ("log", "to_blame"),
    [
        ("cuda_source:3:5: error: expected ';' before '}' token", False),
        ("cuda_source:3:5: error: 'blokIdx' was not declared in this scope", False),
        ("cuda_source:3:5: error: 'sum' was not declared in this scope", False),
        ('cuda_source(3): error: identifier "blokIdx" is undefined', False),
        ("cuda_source:3:5: error: 'class at::Tensor' has no member named 'cudaa'", False),
        ("cuda_source:3:5: error: 'class at::Tensor' has no member named 'klone'; did you mean 'clone'?", False),
        ("cuda_source:3:5: error: 'class at::Tensor' has no member named 'register_hook'", True),
        ('cuda_source(3): error: namespace "torch::nn" has no member "Linear"', True),
        ('cuda_source(5): error: name followed by "::" must be a class\n  F = torch::nn::x;\n             ^\n', True),
        ('cuda_source(5): error: name followed by "::" must be a class\n  f(at::cuda::x());\n        ^\n', False),
        ("cuda_source:5:7: error: 'torch::nn' has not been declared", True),
        ("cuda_source:5:7: error: 'AT_DISPATCH_COMPLEX_TYPES' was not declared in this scope", True),
        ("cuda_source:1:10: fatal error: torch/nn/functional.h: No such file or directory", True),
        ("cuda_source:1:10: fatal error: torch/library.h: No such file or directory", True),
        ("cuda_source:1:10: fatal error: my_helpers.h: No such file or directory", False),
        ("cuda_source:9:2: error: cannot convert 'at::Tensor' to 'const float*'", False),
        ("cuda_source:9:2: error: no matching function for call to 'at::Tensor::sum(int, int, int)'", True),
        ("/x/include/dice/ops.h:9:2: error: incomplete type", True),
        ("cuda_source:9:2: error: 'class at::Tensor' has no member named 'shape'; did you mean 'reshape'?", False),
        ('cuda_source(9): error: class "at::Tensor" has no member "shape"', False),
        ('cuda_source(9): error: class "at::Tensor" has no member "register_hook"', True),
        ("cuda_source:9:2: error: 'const class at::Tensor' has no member named 'set_requires_grad'", True),
        (UNKNOWN_NAME + SUSPICIOUS, False),
        (SUSPICIOUS + UNKNOWN_NAME, True),
        (UNKNOWN_NAME.replace("blokIdx", "Slice") + SUSPICIOUS, True),
        ('cuda_source(3): error: identifier "blokIdx" is undefined\n' + SUSPICIOUS, False),
        ("/x/include/dice/ops.h:3:5: error: 'blokIdx' was not declared in this scope\n" + SUSPICIOUS, True),
        # What PyTorch's own dispatch refuses, too.
        (
            "/x/include/dice/dispatch.h:15:65: error: cannot convert 'const at::DeprecatedTypeProperties' to"
            " 'c10::ScalarType'",
            False,
        ),
        ("/x/include/dice/pybind.h:201:7: error: redefinition of 'const char* const dice_module_name'", False),
        ("/x/include/dice/pybind.h:20:7: error: redefinition of 'const char* other'", True),
        ("/x/include/dice/dispatch.h:15:65: error: cannot convert 'const char*' to 'c10::ScalarType'", True),
    ],
)
def test_who_is_to_blame_for_an_error(log: str, to_blame: bool) -> None:
    assert headers_to_blame(log) is to_blame


@pytest.mark.parametrize(
    ("name", "source", "to_blame"),
    [
        ("Slice", "using namespace torch::indexing; auto y = x.index({Slice(0, 2)});", True),
        ("Slice", "using torch::indexing::Slice; auto y = x.index({Slice(0, 2)});", True),
        ("Slice", "auto y = Slice(0, 2);", False),
        ("fft_fft", "auto y = fft_fft(x);", True),
        ("sum", "sum += x[i]; auto y = x.sum();", False),
        ("blokIdx", "using namespace torch; auto y = blokIdx(x);", False),
    ],
)
def test_a_name_of_pytorch_may_need_no_scope(name: str, source: str, to_blame: bool) -> None:
    assert headers_to_blame(f"cuda_source:3:5: error: '{name}' was not declared in this scope", source) is to_blame
    assert headers_to_blame(f'cuda_source(3): error: identifier "{name}" is undefined', source) is to_blame


@pytest.mark.parametrize(("name", "to_blame"), [("synchronize", True), ("current_stream", False)])
def test_pytorch_has_a_namespace_for_cuda_with_few_names(name: str, to_blame: bool) -> None:
    source = f"torch::cuda::{name}();"
    assert headers_to_blame("cuda_source:3:5: error: 'torch::cuda' has not been declared", source) is to_blame
    assert headers_to_blame('cuda_source(3): error: namespace "torch" has no member "cuda"', source) is to_blame


def test_own_lines_come_before_those_of_headers() -> None:
    log = "/usr/include/x.h:1:1: error: a\ncuda_source:7:3: error: b\ncuda_source(8): error: c\n/usr/bin/ld: whatever\n"
    assert error_lines(log) == ("cuda_source:7: error: b", "cuda_source:8: error: c")
    assert error_lines("ld: x.o: multiple definition of `f'; y.o") == ("multiple definition of `f'; y.o",)


def test_a_module_that_is_defined_twice_is_said_to_be() -> None:
    log = (
        "/x/pybind.h:201:71: error: redefinition of 'const char* const dice_module_name'\n"
        "/x/pybind.h:202:57: error: redefinition of 'int dice_module_init(PyObject*, void* const*)'\n"
    )
    (line,) = error_lines(log)
    assert "PYBIND11_MODULE" in line and "functions=" in line


def test_an_error_in_a_header_is_told_at_the_line_that_led_to_it() -> None:
    macro = (
        "/x/dispatch.h:15:65: error: a\n   15 |   code\n/x/dispatch.h:52:53: note: in expansion of macro 'INNER'\n"
        "cuda_source:6:5: note: in expansion of macro 'AT_DISPATCH'\n/x/other.h:1:2: error: b\n"
    )
    assert error_lines(macro) == ("cuda_source:6: error: a",)
    template = "cuda_source:9:12:   required from here\n/x/tensor.h:3:5: error: c\n"
    assert error_lines(template) == ("cuda_source:9: error: c",)
    assert error_lines("/x/other.h:1:2: error: b\n") == ("/x/other.h:1: error: b",)


def test_compiler_gets_no_secrets_and_a_bounded_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-value")
    (environment,) = run_all([["env"]], tmp_path, PATIENCE_S, PATIENCE_S)
    assert "secret-value" not in environment.log and "TMPDIR=" + str(tmp_path) in environment.log
    (flood,) = run_all([["sh", "-c", "yes | head -c 5000000"]], tmp_path, PATIENCE_S, PATIENCE_S)
    assert flood.status == 0 and len(flood.log) <= MAX_LOG_BYTES


def test_grandchildren_die_with_the_compiler(tmp_path: Path) -> None:
    (finished,) = run_all([["sh", "-c", "sleep 3000 & echo $! > child; sleep 3000"]], tmp_path, 1.0, PATIENCE_S)
    assert finished.status is None
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        listed = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=False)
        state = listed.stdout.strip()
        if not state or state.startswith("Z"):
            return
        time.sleep(0.05)
    os.kill(child, 9)
    pytest.fail("a grandchild outlived the compiler")
