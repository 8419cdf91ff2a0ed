"""CUDA C++ on the CPU: translate, compile with g++ against small headers, run every thread of every block for real.

The emulated backend says right, wrong or unsupported, and never a speed. What it cannot do is named by
`find_unsupported` (before compiling) or `explain_failure` (from the compiler's log).
"""

from __future__ import annotations

from dice.verify.emulator.fast_math import FLAGS as FAST_MATH
from dice.verify.emulator.toolchain import compile_flags, include_dir, runtime
from dice.verify.emulator.translate import Unsupported, kernel_names, translate
from dice.verify.emulator.unsupported import explain_failure, find_unsupported

__all__ = [
    "FAST_MATH",
    "Unsupported",
    "compile_flags",
    "explain_failure",
    "find_unsupported",
    "include_dir",
    "kernel_names",
    "runtime",
    "translate",
]
