"""Translation units: which texts a build compiles.

`torch.utils.cpp_extension.load_inline` compiles the C++ sources with the host compiler and the CUDA sources with nvcc.
Almost always the C++ source only declares what the CUDA source defines; then one unit means the same and costs half:
the CUDA source first and exactly as it would stand alone, then the declarations, then the bindings. Whatever else the
C++ source holds goes into a unit of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dice import cpp

Language = Literal["cpp", "cuda"]
CUDA_SOURCE, CPP_SOURCE, BINDING = "cuda_source", "cpp_source", "binding"  # file names in messages

CUDA_PRELUDE = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
CPP_PRELUDE = "#include <torch/extension.h>\n"


@dataclass(frozen=True, slots=True)
class Unit:
    """One file to compile. `prelude` holds the implicit includes, which may come from a precompiled header."""

    language: Language
    prelude: str
    body: str


def split_units(cpp: str, cuda: str, bindings: str, implicit_headers: bool = True) -> list[Unit]:
    """What load_inline compiles: a unit for each language that has a source."""
    units = []
    if cuda:
        units.append(Unit("cuda", CUDA_PRELUDE if implicit_headers else "", located(cuda, CUDA_SOURCE)))
    if cpp.strip() or bindings:
        body = located(cpp, CPP_SOURCE) + located(bindings, BINDING)
        units.append(Unit("cpp", CPP_PRELUDE if implicit_headers else "", body))
    return units


def joined_unit(cpp: str, cuda: str, bindings: str) -> Unit | None:
    """The two units as one, or None when that could mean something else."""
    bound = re.findall(r"wrap_pybind_function\((\w+)\)", bindings)
    if not cuda or not set(bound) <= _words(strip_comments(cpp)) or not may_join(cpp, cuda):
        return None
    body = located(cuda, CUDA_SOURCE)
    if cpp.strip() or bindings:
        body += (
            f'#line 1 "{BINDING}"\n#include <torch/extension.h>\n'
            + located(cpp, CPP_SOURCE)
            + located(bindings, BINDING)
        )
    return Unit("cuda", CUDA_PRELUDE, body)


def bindings_for(functions: tuple[tuple[str, str], ...]) -> str:
    """The module definition that load_inline writes for `functions=`."""
    if not functions:
        return ""
    lines = [f'm.def("{name}", torch::wrap_pybind_function({name}), "{doc}");' for name, doc in functions]
    return "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}", ""])


def located(text: str, name: str) -> str:
    """The text as the compiler's messages should know it."""
    return f'#line 1 "{name}"\n{text}\n' if text else ""


# ---- when one unit means the same as two ---------------------------------------------------------------------------

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include[ \t]*[<\"][^>\"\n]*[>\"]|pragma once)[ \t]*$", re.M)
_NAME_AND_PARAMETERS = re.compile(r"(?<!\w)\w+\s*\(")
_BEFORE_NAME = re.compile(r"[\w:<>,&*\s=.{}()-]*")
_TYPE_WORDS = frozenset(
    """
    torch at c10 std Tensor TensorList vector tuple pair array optional string void bool char int long short unsigned
    float double int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t const IntArrayRef ArrayRef
    ScalarType Scalar nullopt extern inline true false auto
    """.split()  # noqa: SIM905
)


def may_join(cpp: str, cuda: str) -> bool:
    """True when `cpp` only declares functions, with words that the CUDA source gives no other meaning."""
    text = strip_comments(cpp)
    includes = re.findall(r"#\s*include\s*[<\"]([^>\"]*)", text)
    if any(not _same_headers(header) for header in includes):
        return False
    text = _INCLUDE.sub("", text)
    if "#" in text or '"' in text:
        return False
    for statement in text.split(";"):
        if statement.strip() and not _is_prototype(statement):
            return False
    return not _words(text) & _meanings(strip_comments(cuda))


def strip_comments(text: str) -> str:
    """The text without comments; strings become empty strings, line breaks stay."""

    def replace(found: str) -> str:
        return '""' if found.startswith('"') else "\n" * found.count("\n") or " "

    return cpp.blank(text, replace)


def _is_prototype(statement: str) -> bool:
    if "{" in statement.replace("{}", "") or re.search(
        r"\b(struct|class|namespace|using|typedef|template|static|return)\b", statement
    ):
        return False
    name = _NAME_AND_PARAMETERS.search(statement)
    if name is None or _BEFORE_NAME.fullmatch(statement, 0, name.start()) is None:
        return False
    end = statement.rstrip()
    return end.endswith(")") and len(end) > name.end() and len(_words(statement)) >= 2


def _same_headers(header: str) -> bool:
    return (
        header in ("torch/extension.h", "torch/types.h", "torch/torch.h")
        or "/" not in header
        and not header.endswith(".h")
    )


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text)) - _TYPE_WORDS


def _meanings(cuda: str) -> set[str]:
    """Names that the CUDA source makes macros, types, namespaces or aliases of."""
    names = set(re.findall(r"#\s*define\s+(\w+)", cuda))
    names |= set(re.findall(r"\b(?:struct|class|enum|union|namespace|using)\s+(\w+)", cuda))
    for declaration in cuda.split(";")[:-1]:
        typedef, name = re.search(r"\btypedef\b", declaration), re.search(r"(?<!\w)\w+\Z", declaration.rstrip())
        if typedef and name and name.start() >= typedef.end():
            names.add(name[0])
    return names
