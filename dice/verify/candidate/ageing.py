"""A library that is called often: does its answer depend on how often it was?

Host code may keep variables from one call to the next, and so may kernels (`__device__`). Most of them say that
something was done already, which is honest. One that counts may have a library compute until it believes that nobody
looks any more, or answer from then on what it answered before. So it is called many times, on one and on other
inputs in turns; and what of its memory rises by the same steps from call
to call is set to where a million calls more would have brought it.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dice.verify.candidate.passing import follows
from dice.verify.tensors import transport

CALLS = 100
CPU_S = 1.0  # for all of them
LEAP = 1 << 20  # calls more, as counters have it
MOST_STEP = 1 << 10  # of a counter, so that none overflows
MOST_BYTES = 16 << 20  # of a library's variables
_LOAD, _TLS, _WRITABLE = 1, 7, 2  # kinds of segments, and a flag of theirs


def first_other(call: Callable[[int], Any], inputs: int, libraries: Iterable[str]) -> tuple[int, int, Any]:
    """The number of the first call whose output is not that of the first one on the same inputs, the place of these,
    and that output; the number 0 where there is none. `call`: on the inputs at a place of so many. `libraries`: the
    paths of those that are called."""
    first = [transport.map_tensors(torch.clone, call(place)) for place in range(inputs)]
    variables = [variable for path in libraries for variable in _variables(path)]  # a thread's are there by now
    memory: list[list[torch.Tensor]] = []
    started, number = time.process_time(), inputs
    while number < CALLS and (len(memory) < 3 or time.process_time() - started < CPU_S):
        place = random.randrange(inputs)  # no count of calls tells which are next
        number += 1
        output = call(place)
        if follows(first[place], output):
            return number, place, output
        if len(memory) < 3:
            memory.append([_words(*variable) for variable in variables])
    for variable, (one, two, three) in zip(variables, zip(*memory, strict=True), strict=True):
        _leap(variable[0], two - one, three - two)
    for place in range(inputs):
        output = call(place)
        if follows(first[place], output):
            return number + LEAP, place, output
    return 0, 0, None


def _leap(address: int, step: torch.Tensor, next_step: torch.Tensor) -> None:
    """Move on what made the same small step twice."""
    counts = (step == next_step) & (step != 0) & (step.abs() <= MOST_STEP)
    for index in counts.nonzero().reshape(-1).tolist():
        word = ctypes.c_int32.from_address(address + 4 * index)
        word.value += int(step[index]) * LEAP


def _words(address: int, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.int32)


class _Segment(ctypes.Structure):
    """Of a 64-bit ELF file."""

    _fields_ = [("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64) for name in ("offset", "address", "physical", "in_file", "size", "alignment")
    ]


class _Object(ctypes.Structure):
    """What `dl_iterate_phdr` says of a loaded object."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
        ("subs", ctypes.c_ulonglong),
        ("tls_number", ctypes.c_size_t),
        ("tls", ctypes.c_void_p),
    ]


def _variables(path: str) -> list[tuple[int, int]]:
    """Addresses and sizes, in whole words, of what a loaded library may write to; its variables of this thread, too."""
    found: list[tuple[int, int]] = []

    def look(info: Any, size: int, _: Any) -> int:
        loaded = info.contents
        if loaded.name != path.encode():
            return 0
        for segment in loaded.segments[: loaded.count]:
            if segment.kind == _LOAD and segment.flags & _WRITABLE:
                begin = -(-(loaded.base + segment.address) // 4) * 4
                found.append((begin, (loaded.base + segment.address + segment.size - begin) // 4 * 4))
            elif segment.kind == _TLS and loaded.tls:
                found.append((loaded.tls, segment.size // 4 * 4))
        return 1

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p)(look)
    ctypes.CDLL(None).dl_iterate_phdr(callback, None)
    return [place for place in found if 0 < place[1] <= MOST_BYTES]
