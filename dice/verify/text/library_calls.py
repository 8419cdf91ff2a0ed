"""Which libraries a kernel file's own C++ calls: what they compute, no census of PyTorch's operators sees.

Read from the text, comments and strings left out. Only libraries whose kernels come ready-made are looked for in order
to count (`families`); CUB, Thrust and CUTLASS are templates that the file itself instantiates, and are but named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dice import cpp

_MARKS = {
    "cublas": re.compile(r"\bcublas(?:Lt)?[A-Z]\w*\s*\("),
    "cudnn": re.compile(r"\bcudnn[A-Z]\w*\s*\("),
    "cufft": re.compile(r"\bcufft[A-Z]\w*\s*\("),
    "cusparse": re.compile(r"\bcusparse[A-Z]\w*\s*\("),
    "cusolver": re.compile(r"\bcusolver[A-Z]\w*\s*\("),
    "thrust": re.compile(r"\bthrust::\w+"),
    "cub": re.compile(r"\bcub::\w+"),
    "cutlass": re.compile(r"\bcutlass::\w+"),
}
_FAMILIES = {  # of `evidence.family`; `(?>` because a name that is a whole file long is looked through once, too
    "contraction": re.compile(
        r"\bcublas(?>\w*?(?:[Gg]emm|[Gg]emv|[Gg]er|[Ss]ymm|[Ss]yrk|[Tt]rmm|[Dd]ot|Matmul))\w*\s*\("
        r"|\bcudnnConvolution(?>\w*?(?:Forward|Backward))\w*\s*\(|\bcufftExec\w*\s*\(|\bcusparseSpM[MV]\s*\("
    ),
    "softmax": re.compile(r"\bcudnnSoftmax(?:Forward|Backward)\s*\("),
}


def libraries(sources: Iterable[str]) -> tuple[str, ...]:
    """The libraries that C++ texts call."""
    code = _code(sources)
    return tuple(name for name, mark in _MARKS.items() if mark.search(code))


def families(sources: Iterable[str]) -> tuple[str, ...]:
    """What they have ready-made kernels compute, as `evidence.family` names it."""
    code = _code(sources)
    return tuple(name for name, mark in _FAMILIES.items() if mark.search(code))


def _code(sources: Iterable[str]) -> str:
    return "\n".join(map(cpp.blank, sources))
