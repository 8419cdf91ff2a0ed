"""Parts of command lines that both backends use: language standard, include folders, what is left out of headers."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from dice.verify.build.shared import Shared, precompiled, write
from dice.verify.build.units import Unit, strip_comments
from dice.verify.toolchain import (
    HIDDEN_SYMBOLS,
    SHADOW_HEADERS,
    host_compiler,
    torch_folder,
)

# What a module compiled against PyTorch's own headers and pybind11 is called inside; its file says which it is.
FULL_MODULE = "dice_extension"


QUICK_STANDARD = "-std=c++17"


def host_command(
    prelude: str, body: str, flags: list[str], source: Path, output: Path, shared: Shared | None
) -> list[str]:
    """Compile with g++. The prelude comes from a precompiled header in `shared`; None: it is compiled each time,
    because the user's own flags may change what it says."""
    if shared is None or not prelude:
        path = write(source.with_suffix(".cpp"), prelude + body)
        return [host_compiler(), *flags, "-c", str(path), "-o", str(output)]
    path = write(source.with_suffix(".cpp"), body)
    header = precompiled(prelude, flags, shared)
    return [host_compiler(), *flags, "-include", str(header), "-c", str(path), "-o", str(output)]


def include_flags(*folders: Path) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def hidden(headers: str) -> tuple[str, ...]:
    return () if headers == "full" else HIDDEN_SYMBOLS


def quickly(headers: str) -> list[str]:
    return ["-DDICE_QUICK_HEADERS"] if headers == "quick" else []


def module_name(headers: str) -> list[str]:
    return [f"-DTORCH_EXTENSION_NAME={FULL_MODULE}"] if headers == "full" else []


@cache
def default_standard() -> str:
    """The language standard that this version of PyTorch compiles extensions with: the newest its builder names."""
    text = (torch_folder() / "utils" / "cpp_extension.py").read_text(encoding="utf-8")
    return f"-std=c++{max(re.findall(r'-std=c[+][+]([0-9]{2})', text), default='17')}"


def standard(flags: tuple[str, ...], headers: str) -> list[str]:
    """The language standard, unless the user's flags name one."""
    if any(flag.startswith("-std") for flag in flags):
        return []
    return [QUICK_STANDARD if headers == "quick" else default_standard()]


def torch_libraries(cuda: bool) -> list[str]:
    folder = torch_folder() / "lib"
    names = ["c10", "torch_cpu", "torch", "torch_python"] + (["c10_cuda", "torch_cuda"] if cuda else [])
    present = [name for name in names if (folder / f"lib{name}.so").exists()]
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", *(f"-l{name}" for name in present)]


# Words of std:: that the small set of standard headers in dice/base.h covers.
_COVERED = frozenset(
    """
    vector string tuple pair make_tuple make_pair get tie optional nullopt make_optional move forward swap array
    unique_ptr shared_ptr make_unique make_shared numeric_limits size_t int64_t int32_t uint32_t uint64_t uint8_t int8_t
    runtime_error invalid_argument exception logic_error out_of_range to_string sqrt exp log pow abs fabs floor ceil
    fmax fmin tanh cos sin isnan isinf max min is_same is_same_v enable_if enable_if_t conditional conditional_t
    is_floating_point is_integral initializer_list memcpy memset nullptr_t string_view declval decay_t
    """.split()  # noqa: SIM905
)


def leave_out(unit: Unit, headers: str) -> list[str]:
    """Leave out expensive parts of the headers when the source seems to use nothing of them: nvcc reads all thrice."""
    if headers != "quick":
        return []
    text = strip_comments(unit.body)
    used = set(re.findall(r"\bstd\s*::\s*(\w+)", text))
    plain = re.search(r"\busing\s+namespace\s+std\b|\busing\s+std::|<<\s*std::", text)
    std = ["-DDICE_FEW_STD_HEADERS"] if used <= _COVERED and not plain else []
    half = ["-DDICE_NO_CUDA_HALF"] if not re.search(r"half|bf16|bfloat|fp16|float16", text, re.I) else []
    return std + half


def _lists(unit: Unit, headers: str) -> str:
    """Definitions of the operator lists of `dice/op_names.h`, with only the names that occur in the source."""
    if headers != "quick":
        return ""
    words = set(re.findall(r"\w+", unit.body)) | _OPS_OF_HEADERS
    return "".join(
        f"#define {table}(_) " + " ".join(f"_({name})" for name in names if name in words) + "\n"
        for table, names in _op_tables().items()
    )


_OPS_OF_HEADERS = frozenset({"add_", "sub_", "mul_", "div_", "select"})


@cache
def _op_tables() -> dict[str, list[str]]:
    text = (SHADOW_HEADERS / "dice" / "op_names.h").read_text()
    tables = re.findall(r"#define (DICE_\w+_OPS)\(_\)((?:.*\\\n)*.*)", text)
    return {table: re.findall(r"_\((\w+)\)", names) for table, names in tables}
