"""A library that is called often: does its answer depend on how often it was?

Host code may keep variables from one call to the next, and so may kernels (`__device__`). Most of them say that
something was done already, which is honest. One that counts may have a library compute until it believes that nobody
looks any more, or answer from then on what it answered before. So it is called many times, on one and on other
inputs in turns; and what of its memory rises by the same steps from call to call is set to where a million calls more
would have brought it: its variables, and what these point to on the heap. A state that goes by no steps (random numbers
of its own, a chain of them) is only called.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dice.verify.candidate.counting import later
from dice.verify.candidate.passing import follows
from dice.verify.tensors import transport

CALLS, CPU_S = 2000, 1.0  # so many, in so much of the processor at most
AGED_CPU_S = 0.5  # for those after a counter on the heap was moved on
LEAP = 1 << 20  # calls more, as counters have it
MOST_STEP = 1 << 10  # of a counter, so that none overflows
MOST_BYTES = 16 << 20  # of a library's variables
DEPTH, MOST_BLOCKS, BLOCK_BYTES = 4, 512, 256  # of what these point to: a tensor's values are three pointers away
_LOAD, _TLS, _WRITABLE = 1, 7, 2  # kinds of segments, and a flag of theirs


class Counter(NamedTuple):
    """A word of memory, 4 bytes long, that rises by the same step from call to call."""

    address: int
    step: int
    kind: type[ctypes.c_int32] | type[ctypes.c_float]

    def leap(self) -> None:
        word = self.kind.from_address(self.address)
        word.value += self.step * LEAP


def first_other(
    call: Callable[[int], Any], inputs: int, libraries: Iterable[str], kept: Iterable[torch.Tensor] = ()
) -> tuple[int, dict[int, Any]]:
    """The number of the first call whose output is not that of the first one on the same inputs, and that output under
    the place of these; where there is none, the number 0 and what the last calls gave. `call`: on the inputs at a place
    of so many. `libraries`: the paths of those that are called. `kept`: tensors on the host that go from call to call.
    """
    first = [transport.map_tensors(torch.clone, call(place)) for place in range(inputs)]
    own = [variable for path in libraries for variable in _variables(path)]  # a thread's are there by now
    own += [(tensor.data_ptr(), tensor.nbytes // 4 * 4) for tensor in kept if tensor.device.type == "cpu"]
    variables = [*own, *_pointed_to(own)]
    memory: list[list[torch.Tensor]] = []
    started, number = time.process_time(), inputs
    chance = random.Random()  # of its own: each call seeds the one that all share, so that its draws are no chance
    while number < CALLS and (len(memory) < 3 or time.process_time() - started < CPU_S):
        place = chance.randrange(inputs)  # no count of calls tells which are next
        number += 1
        output = call(place)
        if follows(first[place], output):
            return number, {place: output}
        if len(memory) < 3:
            mapped = _mappings()  # what was pointed to may be freed by now, and closed to everybody
            far = [
                _words(*place) if _is_open(mapped, *place) else _nothing(place[1]) for place in variables[len(own) :]
            ]
            memory.append([*(_words(*place) for place in own), *far])
    mapped = _mappings()
    found = [_counters(mapped, *each) for each in zip(variables, *memory, strict=True)]
    return _aged(call, first, number, found[: len(own)], found[len(own) :], chance)


def _aged(
    call: Callable[[int], Any],
    first: list[Any],
    number: int,
    own: list[list[Counter]],
    far: list[list[Counter]],
    chance: random.Random,
) -> tuple[int, dict[int, Any]]:
    """The same after many calls more, as counters have it: all of its `own` are moved on, and of what these point to,
    which may be somebody else's, one after the other for one call. It is later then, too."""
    for counter in itertools.chain(*own):
        counter.leap()
    last = {}
    for place in range(len(first)):
        with later():
            last[place] = transport.map_tensors(torch.clone, call(place))  # a file may give the same tensor each time
        if follows(first[place], last[place]):
            return number + LEAP, {place: last[place]}
    started = time.process_time()
    for counter in itertools.chain(*far):
        if time.process_time() - started > AGED_CPU_S:
            break
        if not _is_open(_mappings(), counter.address, 4):
            continue
        place, before = chance.randrange(len(first)), ctypes.string_at(counter.address, 4)
        counter.leap()
        output = call(place)
        ctypes.memmove(counter.address, before, 4)
        if follows(first[place], output):
            return number + LEAP, {place: output}
    return 0, last


def _counters(
    mapped: list[_Mapping], variable: tuple[int, int], one: torch.Tensor, two: torch.Tensor, three: torch.Tensor
) -> list[Counter]:
    """What made the same small step twice, in whole numbers or floats that are whole; no part of a pointer is one."""
    whole = _steps(one, two, three)
    floats = _steps(*(words.view(torch.float32) for words in (one, two, three)))
    floats = torch.where(floats == floats.round(), floats, 0.0)
    found = []
    for index in ((whole != 0) | (floats != 0)).nonzero().reshape(-1).tolist():
        address = variable[0] + 4 * index
        at = ctypes.c_uint64.from_address(address - address % 8).value
        if _mapping(at, mapped) is None:
            is_whole = bool(whole[index])
            kind = ctypes.c_int32 if is_whole else ctypes.c_float
            found.append(Counter(address, int((whole if is_whole else floats)[index]), kind))
    return found


def _steps(one: torch.Tensor, two: torch.Tensor, three: torch.Tensor) -> torch.Tensor:
    """What each rose by, where that is the same twice and small; else 0."""
    step = two - one
    return torch.where((step == three - two) & (step.abs() <= MOST_STEP), step, torch.zeros_like(step))


def _is_open(mapped: list[_Mapping], address: int, size: int) -> bool:
    where = _mapping(address, mapped)
    return where is not None and where.is_heap and address + size <= where.end


def _nothing(size: int) -> torch.Tensor:
    return torch.zeros(size // 4, dtype=torch.int32)


def _words(address: int, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.int32)


class _Mapping(NamedTuple):
    begin: int
    end: int
    is_heap: bool  # memory of no file that may be read and written


def _mappings() -> list[_Mapping]:
    """Of this process; none where the system does not tell."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, rights, _, _, file, *name = line.split(maxsplit=5)
            begin, end = (int(address, 16) for address in addresses.split("-"))
            is_plain = file == "0" and (not name or name[0] == "[heap]" or name[0].startswith("[anon"))
            found.append(_Mapping(begin, end, is_plain and rights.startswith("rw")))
    return found


def _mapping(address: int, mapped: list[_Mapping]) -> _Mapping | None:
    return next((one for one in mapped if one.begin <= address < one.end), None)


def _pointed_to(variables: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Addresses and sizes of blocks on the heap that pointers in these variables lead to, one through another: the
    beginnings of them, of whose lengths nothing is known."""
    mapped = [one for one in _mappings() if one.is_heap]
    blocks: dict[int, int] = {}
    looked_at = list(variables)
    own = [range(address, address + size) for address, size in looked_at]
    for _ in range(DEPTH):
        words = [word for place in looked_at for word in _pointers(*place)]
        looked_at = []
        for word in words:
            where = _mapping(word, mapped)
            if where is None or word in blocks or any(word in variable for variable in own):
                continue
            if len(blocks) == MOST_BLOCKS:
                return list(blocks.items())
            blocks[word] = min(BLOCK_BYTES, (where.end - word) // 4 * 4)
            looked_at.append((word, blocks[word]))
    return [place for place in blocks.items() if place[1]]


def _pointers(address: int, size: int) -> list[int]:
    begin = -(-address // 8) * 8
    count = (address + size - begin) // 8
    if count <= 0:
        return []
    words = torch.frombuffer(bytearray(ctypes.string_at(begin, 8 * count)), dtype=torch.int64)
    return [word for word in words[(words > 0) & (words % 4 == 0)].tolist()]


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
