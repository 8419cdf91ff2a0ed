"""What the emulator's race detector found, as findings: sentences with names, indices and lines.

The detector itself is `emulator/runtime/races.cpp`: g++ reports each access of a kernel to it, and every word of shared
and global memory remembers its last writer and two readers. A race is two accesses to the same bytes, one of them a
write, by different threads of a launch, which nothing orders on every run.

**What orders.** Within a block `__syncthreads` and its relatives. Within a warp also every collective that both lanes
take part in: `__syncwarp`, shuffles, votes, cooperative groups. (CUDA promises the order of memory only for
`__syncwarp`; right kernels in the field rely on all of them.) Between blocks, and under a lock, a `__threadfence` by
the one side and after it an atomic or volatile access by the other.
**What is let pass.** Writing the value that is there already. Two atomics, or volatile accesses to global memory, which
are flags. Volatile accesses within one warp: the lockstep of older reductions. A plain read beside an atomic, where
some thread follows that read by an atomic on the same word: loops around atomicCAS, a look before atomicMax.
**What is not seen.** A third and further reader of a word between two barriers; which part of a word its earlier writer
wrote, where several threads write its bytes; kernels that overlap on two streams; accesses on paths that the trial's
inputs do not take. A word read before any thread of the block wrote it is a finding of its own, which decides nothing.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]
MAX_FINDINGS = 20
BINUTILS_TIMEOUT_S = 20
_OWN = ("cuda_source", "cpp_source")
_DID = {"read": "read", "write": "wrote", "atomic": "changed atomically", "atomic read": "read atomically"}
_LABEL = re.compile(r"(?P<name>.+), (?P<dtype>[a-z]+\d*) (?P<shape>scalar|[\dx]+)")
_BYTES = {"bool": 1, "bfloat16": 2, "complex64": 8, "complex128": 16}


def findings(text: str) -> list[Message]:
    """Findings in the form of `dice.verdict.Finding` from what `dice_findings_json` says, the worst first.

    Runs in the candidate's process: the debug information it reads there is the candidate's own.
    """
    raw: list[Message] = json.loads(text)
    lines = _lines(place for found in raw for place in (found["first"], found["second"]) if place)
    kept: dict[tuple[Any, ...], Message] = {}
    for found in sorted(raw, key=_order):
        places = [lines[place["library"], place["code"]] for place in (found["first"], found["second"]) if place]
        key = (found["kind"], found["kernel"], found["label"] or found["memory"], *sorted(places))
        if key in kept:
            kept[key]["times"] += found["times"]
            continue
        kept[key] = {
            "kind": found["kind"],
            "kernel": found["kernel"],
            "message": _sentence(found, lines),
            "lines": list(dict.fromkeys(place for place in places if place)),
            "times": found["times"],
            "library": found["second"]["library"],
        }
    return list(kept.values())[:MAX_FINDINGS]


def _order(found: Message) -> tuple[bool, bool]:
    """Races first, and those between blocks before those that a barrier would mend."""
    between = found["first"] and found["first"]["block"] != found["second"]["block"]
    return found["kind"] != "race", not between


def _sentence(found: Message, lines: dict[tuple[str, int], str]) -> str:
    first, second = found["first"], found["second"]
    what = f"{_element(found)} in kernel {found['kernel']}"
    if not first:
        who = f"{_who(second)} of block {_triple(second['block'])}"
        return f"{who} read {what}{_at(second, lines)} before any thread of the block had written it"
    same_block = first["block"] == second["block"]
    blocks = ["of the same block", ""] if same_block else [f"of block {_triple(p['block'])}" for p in (first, second)]
    acts = [
        " ".join(part for part in (_who(place), block, _DID[place["did"]] + " it" + _at(place, lines)) if part)
        for place, block in zip((first, second), reversed(blocks), strict=True)
    ]
    why = "with no barrier between them" if same_block else "and nothing orders blocks"
    return f"{what}: {acts[0]}, {acts[1]}, {why}"


def _who(place: Message) -> str:
    return f"thread {_triple(place['thread'])}"


def _triple(index: Sequence[int]) -> str:
    return f"({','.join(map(str, index))})"


def _at(place: Message, lines: dict[tuple[str, int], str]) -> str:
    line = lines[place["library"], place["code"]]
    return f" at {line}" if line else ""


def _element(found: Message) -> str:
    """The name of the memory and the index in it."""
    offset, label = found["offset"], found["label"]
    if found["memory"] == "variable":
        return f"__device__ variable {_variable(found['second']['library'], offset)}".rstrip()
    if found["memory"] != "tensor":
        name = f"shared array {label}" if label else "the dynamic shared memory"
        return f"{name}[{offset // found['width']}]" if label else f"{name}, byte {offset}"
    match = _LABEL.fullmatch(label)
    if match is None:
        return f"a tensor of {found['size']} bytes made by the kernel file, byte {offset}"
    bits = re.search(r"\d+", match["dtype"])
    width = _BYTES.get(match["dtype"]) or (int(bits[0]) // 8 if bits else 1)
    shape = [int(size) for size in match["shape"].split("x")] if match["shape"] != "scalar" else []
    return f"{match['name']}{_index(offset // width, shape)}"


def _variable(library: str, offset: int) -> str:
    """Name of the variable at that place of the library, with the distance in bytes from its start; "" if unknown."""
    for line in _run(["nm", "-S", "-C", "--defined-only", library]).splitlines():
        fields = line.split(maxsplit=3)
        if len(fields) == 4 and fields[2] in "bBdDuV":
            start, size = int(fields[0], 16), int(fields[1], 16)
            if start <= offset < start + size:
                return fields[3] + (f", byte {offset - start}" if size > 8 else "")
    return ""


def _index(flat: int, shape: list[int]) -> str:
    """Index of an element of a contiguous tensor; the flat one when it lies outside the shape."""
    if not shape or flat >= math.prod(shape):
        return f"[{flat}]" if shape else ""
    index = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return f"[{', '.join(map(str, reversed(index)))}]"


def _lines(places: Iterable[Message]) -> dict[tuple[str, int], str]:
    """`cuda_source:12` for each place in a library's code; empty where its debug information names no line of ours."""
    found: dict[tuple[str, int], str] = {}
    codes: dict[str, list[int]] = {}
    for place in places:
        found[place["library"], place["code"]] = ""
        codes.setdefault(place["library"], []).append(place["code"])
    for library, addresses in codes.items():
        addresses = list(dict.fromkeys(addresses))
        for address, frames in zip(addresses, _frames(library, addresses), strict=False):
            # Inlined functions of the headers come first; the candidate's own line is what called them.
            own = next((frame for frame in frames if frame.rpartition(":")[0] in _OWN), "")
            found[library, address] = own
    return found


def _frames(library: str, addresses: list[int]) -> list[list[str]]:
    """For each address the places of its chain of inlined functions, innermost first, as `file:line`."""
    chains: list[list[str]] = []
    for line in _run(["addr2line", "-a", "-i", "-e", library, *map(hex, addresses)]).splitlines():
        if line.startswith("0x"):
            chains.append([])
        elif chains:
            chains[-1].append(Path(line.split(" (")[0]).name)
    return chains


def _run(command: list[str]) -> str:
    """What it prints; nothing where binutils lacks it: findings without lines and names are findings all the same."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BINUTILS_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
