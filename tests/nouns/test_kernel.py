from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dice.kernel import Kernel, SplitError, global_functions
from dice.prompts import EXAMPLE_KERNEL

INLINE_LITERAL = '''import torch
from torch.utils.cpp_extension import load_inline
m = load_inline(name="é", cpp_sources="", functions={"f": "doc"}, cuda_sources=["""
template <typename T> __global__ void __launch_bounds__(256, 2) scale(T* x) {}
extern "C" static __global__
void other(float* x) {}
"""])
class ModelNew: pass
'''


def test_the_example_splits_into_imports_source_and_rest() -> None:
    parts = Kernel(EXAMPLE_KERNEL).split()
    assert parts.prefix.rstrip().endswith("import load_inline")
    assert parts.core.startswith('cuda_source = """') and parts.core.endswith('"""')
    assert parts.suffix.lstrip().startswith("cpp_source")
    assert parts.prefix + parts.core + parts.suffix == EXAMPLE_KERNEL


def test_a_literal_inside_the_call_is_the_core() -> None:
    parts = Kernel(INLINE_LITERAL).split()
    assert parts.core.startswith('"""') and parts.core.endswith('"""')
    assert parts.prefix.endswith("cuda_sources=[")
    assert parts.prefix + parts.core + parts.suffix == INLINE_LITERAL


@given(st.text(alphabet="ab é€\n\t#", max_size=40), st.sampled_from(["\n", "\r\n", "\r"]))
def test_the_parts_concatenate_byte_for_byte(comment: str, newline: str) -> None:
    text = "".join(f"# {line}\n" for line in comment.split("\n")) + EXAMPLE_KERNEL
    source = text.replace("\n", newline)
    parts = Kernel(source).split()
    assert parts.prefix + parts.core + parts.suffix == source
    assert "__global__" in parts.core and "load_inline(" not in parts.core


def test_two_adjacent_sources_are_one_core_and_scattered_ones_are_refused() -> None:
    first, second = 'a = """__global__ void f() {}"""\n', 'b = """__global__ void g() {}"""\n'
    assert Kernel(first + second).split().core == (first + second).strip()
    with pytest.raises(SplitError, match="several places"):
        Kernel(first + "print(1)\n" + second).split()


@pytest.mark.parametrize("source", ["", "import torch", "def (", 's = "// __global__ void f() {}"'])
def test_a_source_without_cuda_is_not_split(source: str) -> None:
    with pytest.raises(SplitError):
        Kernel(source).split()


def test_names_of_kernels_and_bindings() -> None:
    kernel = Kernel(INLINE_LITERAL)
    assert kernel.global_functions == ("scale", "other")
    assert kernel.bound_functions == ("f",)
    assert kernel.defines_model_new
    assert Kernel('s = """__global__ void k() {} PYBIND11_MODULE(n, m) { m.def("go", &go); }"""').bound_functions == (
        "go",
    )


def test_comments_and_strings_define_no_kernel() -> None:
    assert (
        global_functions('// __global__ void a() {}\n/* __global__ void b() {} */ auto s = "__global__ void c()";')
        == ()
    )


def test_model_new_may_be_a_class_an_alias_or_absent() -> None:
    assert Kernel("class ModelNew: pass").defines_model_new
    assert Kernel("class A: pass\nModelNew = A").defines_model_new
    assert not Kernel("class Model: pass").defines_model_new
    assert not Kernel("class ModelNew").defines_model_new


def test_json_round_trip() -> None:
    kernel = Kernel(EXAMPLE_KERNEL, name="add")
    assert Kernel.from_json(kernel.to_json()) == kernel


LONG = {
    "a word": "__global__ " + "a" * 100_000,
    "a word and spaces": "__global__ a" + " " * 100_000,
    "quotes behind backslashes": "__global__ " + '"\\"' * 30_000,
    "comments that do not end": "/*" * 100_000 + "__global__ void k()",
    "marks": "__global__ " * 20_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_names_are_found_in_time_that_grows_with_the_text(text: str) -> None:
    began = time.process_time()
    assert global_functions(text) == ()
    assert time.process_time() - began < 5


def test_many_literals_are_cut_in_time_that_grows_with_the_text() -> None:
    began = time.process_time()
    assert Kernel('s = "__global__ void k();"\n' * 5000).split().core.startswith("s = ")
    assert time.process_time() - began < 10
