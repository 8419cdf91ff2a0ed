"""Command lines of the two backends: a unit to an object file, object files to a library.

Each command is for one of three ways with headers:

| headers | what is read |
|---|---|
| `quick` | the shadow headers as C++17, in a sixth less time; for nvcc, only what the text seems to use of them |
| `slim` | the shadow headers whole, under the language standard that PyTorch compiles extensions with |
| `full` | PyTorch's own headers, under the same standard |

`quick` rests on guesses, so it may say that a source is right and never that it is wrong.
"""

from __future__ import annotations

from dice.verdict import Backend
from dice.verify.build.compiler import Compiler
from dice.verify.build.cuda import CudaCompiler
from dice.verify.build.emulated import EmulatedCompiler
from dice.verify.build.shared import Shared


def compiler_for(
    backend: Backend,
    arch: str,
    shared: Shared,
    cflags: tuple[str, ...],
    cuda_cflags: tuple[str, ...],
    sanitize: bool = False,
) -> Compiler:
    """`sanitize`: what it builds can be looked at by the sanitizers, and says which lines its code comes from."""
    if backend == "cuda":
        return CudaCompiler(shared, arch, cflags, (*cuda_cflags, *["-lineinfo"] * sanitize))
    return EmulatedCompiler(shared, cflags, cuda_cflags, sanitize)
