"""What a library takes from outside of itself, found in what its source was really compiled to."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dice.verify import Verifier, emulator
from dice.verify.build.sources import Sources, inner_word
from dice.verify.toolchain import CUDA_API_HEADERS, SHADOW_HEADERS

CPP = "torch::Tensor same(torch::Tensor x);"
FUNCTIONS = (("same", "same"),)


def foreign(verifier: Verifier, before: str, inside: str) -> str:
    """Why no program may call a library of this host code."""
    cuda = f"{before}\ntorch::Tensor same(torch::Tensor x) {{ {inside} return x; }}\n"
    answer = verifier._builds.build(verifier._get_zygote(), Sources((CPP,), (cuda,), FUNCTIONS), "ext", 60)
    assert answer.built is not None, answer.lines
    return answer.built.foreign.reason


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("__global__ void k(float* y) { y[0] = 1; }", "k<<<1, 1>>>(x.data_ptr<float>());"),
        (
            "\n".join(
                f"#include <{name}>"
                for name in ("algorithm", "cmath", "cstring", "iostream", "map", "sstream", "vector")
            ),
            "std::map<std::string, std::vector<double>> m; std::ostringstream s; s << std::pow(2.0, x.size(0)); "
            "m[s.str()].push_back(std::tgamma(3.0)); if (m.size() > 9) s << strerror(1); "
            'std::sort(m["1"].begin(), m["1"].end()); printf("%f", 1.0); '
            'if (m.empty()) std::cout << "none" << std::endl; TORCH_CHECK(x.dim() > 0, "no ", x.sizes());',
        ),
        (
            "#include <ATen/cuda/CUDAContext.h>",
            "auto s = at::cuda::getCurrentCUDAStream(); auto y = at::relu(x) + x; (void)s;",
        ),
        ("#include <mutex>", "static std::mutex m; std::lock_guard<std::mutex> lock(m);"),
    ],
)
def test_what_computes_and_formats_is_on_the_list(emulated: Verifier, before: str, inside: str) -> None:
    assert foreign(emulated, before, inside) == ""


@pytest.mark.parametrize(
    ("before", "inside", "name"),
    [
        ("#include <cstdlib>", 'if (getenv("HOME")) return x + 1;', "getenv"),
        ("#include <cstdio>", 'FILE* f = fopen("/tmp/x", "w"); if (f) fclose(f);', "fopen"),
        ("#include <fstream>", 'std::ofstream("/tmp/x") << 1;', "ofstream"),
        ("#include <thread>", "std::thread([] {}).join();", "thread"),
        ("#include <dlfcn.h>", 'if (dlsym(RTLD_DEFAULT, "f")) return x + 1;', "dlsym"),
        ("#include <unistd.h>", "if (fork() == 0) _exit(0);", "fork"),
        ("#include <unistd.h>", "if (syscall(39) == 1) return x + 1;", "syscall"),
        (
            "#include <chrono>",
            "if (std::chrono::steady_clock::now().time_since_epoch().count() == 1) return x + 1;",
            "chrono",
        ),
        ("#include <ctime>", "if (time(nullptr) == 1) return x + 1;", "time"),
        ("#include <sys/mman.h>", "if (mmap(nullptr, 1, 0, 0, -1, 0) == nullptr) return x + 1;", "mmap"),
        ('extern "C" int PyRun_SimpleString(const char*);', 'PyRun_SimpleString("1");', "PyRun_SimpleString"),
        ('#define GLUE(a, b) a##b\nextern "C" int GLUE(Py, Run_SimpleString)(const char*);', "", "##"),
        ("", "if (&aoti_torch_zero_ == nullptr) return x + 1;", "aoti_torch_zero_"),
        ("namespace at::native { Tensor relu(const Tensor&); }", "return at::native::relu(x);", "native"),
    ],
)
def test_what_reaches_further_is_named(emulated: Verifier, before: str, inside: str, name: str) -> None:
    said = foreign(emulated, before, inside)
    assert name in said, said


@pytest.mark.parametrize(
    "text",
    [
        "P\\\nyObject* p;",
        "P\\ \t\nyObject* p;",  # g++ joins these lines, too
        "P??/\nyObject* p;",
        "\\u0050yObject* p;",
        "auto c = '\"'; PyObject* p; auto d = '\"';",
        'auto c = R"(")"; PyObject* p; auto d = R"(")";',
        "#if __has_include(</*>)\n#endif\nPyObject* p; /* */",
        "int n = 1'000; PyObject* p; int k = '1';",
        "/* // */ PyObject* p;",
        "// a\\b \nPyObject* p;",
        'extern "C" int run(const char*) asm("P" "yRun_SimpleString");',
        '#define S "P" "yRun"\nextern "C" int run(const char*) __asm__(S);',
        'static int run() __attribute__((weakref("P" "yRun")));',
        "#pragma redefine_extname run P\\\nyRun",
        "#define GLUE(a, b) a##b",
        "#define GLUE(a, b) a %:%: b",
        'extern "C" int __CONCAT(P, yRun_SimpleString)(const char*);',
        "C10_CONCATENATE(P, yObject)* p;",
        "__UINT64_C(dice_some)",
        "#ifdef DICE_EMULATED\n#endif",
        "dice_host_code(false);",
    ],
)
def test_no_spelling_hides_an_inner_word(text: str) -> None:
    assert inner_word(Sources((CPP,), (text,), ())) != ""
    assert inner_word(Sources((text,), (), ())) != ""


@pytest.mark.parametrize(
    "text",
    [
        "torch::Tensor same(torch::Tensor x) { return x; } // a Python user's kernel, ## PyObject",
        "// pybind11::module_, PYBIND11_MODULE, DICEY, soldicer, PyTorch's own",
        "/* what PyTorch does */ float dice_loss(float p); // Dice",
        'm.def("dice", &dice_score, "PyTorch\'s"); char c = \'"\';',
        'asm volatile("membar.gl;" ::: "memory"); asm("add.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));',
        'asm volatile("" ::: "memory");',
        "int64_t n = INT64_C(1) << 40, m = UINT32_C( 7);",
        "#define _GLIBCXX_USE_CXX11_ABI 0",
    ],
)
def test_plain_code_has_no_inner_word(text: str) -> None:
    assert inner_word(Sources((CPP,), (text,), ())) == ""


HEADERS = """
torch/extension.h ATen/cuda/CUDAContext.h cooperative_groups.h cub/cub.cuh thrust/device_vector.h mma.h cuda_fp16.h
bits/stdc++.h inttypes.h pthread.h
"""
COMPILERS = {
    "emulated": ["g++", "-DDICE_EMULATED", "-DDICE_EMULATED_CUDA", f"-I{emulator.include_dir}", "-dM"],
    "cuda": ["nvcc", "-arch=sm_90", "-Xcompiler=-dM"],
}
WHAT_IT_MAY_NOT_MAKE = (
    "Py",
    "_Py",
    "_object",
    "aoti_",
    "weakref",
    "__weakref",
    "redefine_extname",
    "_Pragma",
    "dice",
    "DICE",
)


@pytest.mark.parametrize("backend", ["emulated", pytest.param("cuda", marks=pytest.mark.slow)])
def test_no_macro_of_the_headers_makes_names_unseen(backend: str, tmp_path: Path) -> None:
    """Each that pastes is named by `inner_word`, or what it makes begins otherwise."""
    if shutil.which(COMPILERS[backend][0]) is None:
        pytest.skip(f"needs {COMPILERS[backend][0]}")
    source = tmp_path / ("all.cu" if backend == "cuda" else "all.cpp")
    source.write_text("".join(f"#include <{name}>\n" for name in HEADERS.split()))
    folders = [f"-I{SHADOW_HEADERS}", f"-I{CUDA_API_HEADERS}"]
    command = [*COMPILERS[backend], "-std=c++17", "-E", *folders, str(source)]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pasting = [line for line in macros if "##" in re.sub(r",\s*##\s*__VA_ARGS__", "", line)]
    assert len(pasting) > 10
    unseen = [line for line in pasting if _makes_any_name(line) and not _is_named(line.split()[1].partition("(")[0])]
    assert unseen == []


def _is_named(macro: str) -> bool:
    return inner_word(Sources((CPP,), (f"{macro}(some, thing)",), ())) != ""


def _makes_any_name(line: str) -> bool:
    """Whether what one macro pastes may begin as an inner word does."""
    head = re.match(r"#define \w+\(([^)]*)\) (.*)", line)
    if head is None:
        return False
    parameters = {name.strip() for name in head[1].split(",")} | {"__VA_ARGS__"}
    firsts = re.findall(r"(?<![#\w])(?<!## )(\w+) ?##", head[2])
    return any(
        first in parameters or any(word.startswith(first) or first.startswith(word) for word in WHAT_IT_MAY_NOT_MAKE)
        for first in firsts
    )
