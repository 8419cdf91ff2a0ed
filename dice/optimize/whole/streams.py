"""Launches on PyTorch's current stream, whoever wrote the kernel.

A launch that names no stream goes to the legacy default stream, which waits for none of PyTorch's side streams, and
which a CUDA graph cannot hold. For a benchmark that is nothing; in a program of a user's it is a race.
"""

from __future__ import annotations

from dice.verify.emulator.tokens import OPENING, Edits, Tokens

_HEADER = "#include <c10/cuda/CUDAStream.h>\n"
_STREAM = "c10::cuda::getCurrentCUDAStream()"


def on_current_stream(source: str) -> str:
    """The CUDA source with a stream for each launch that names none. One whose grid and block are templates with
    arguments of their own is left as it is."""
    tokens, edits = Tokens(source), Edits(source)
    launches = [_arguments(tokens, at) for at in range(len(tokens)) if tokens.text(at) == "<<<"]
    missing = [(end, count) for end, count in launches if count]
    if not missing:
        return source
    edits.insert(0, _HEADER)
    for end, count in missing:
        edits.insert(tokens[end].start, ", 0" * (3 - count) + f", {_STREAM}")
    return edits.apply()


def _arguments(tokens: Tokens, launch: int) -> tuple[int, int]:
    """Where the configuration of a launch ends, and of how many arguments it is: 2, or 3; 0 for any other."""
    at, count = launch + 1, 1
    while at < len(tokens) and tokens.text(at) != ">>>":
        if tokens.text(at) == "<":
            return at, 0
        count += tokens.text(at) == ","
        at = tokens.partner.get(at, at) + 1 if tokens.text(at) in OPENING else at + 1
    return at, count if at < len(tokens) and count in (2, 3) else 0
