"""Messages of a candidate, changed at random: any field of any of them may be anything, and any byte another."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

_WORK = {"elements": {"relu": 1600, "contraction": 7}, "calls": {"relu": 1}, "host": 3}
_SOURCES = {
    "cpp": ["torch::Tensor f(torch::Tensor x);"],
    "cuda": ["__global__ void k(float* x) {}"],
    "functions": [["f", "f"]],
    "cflags": ["-O3"],
    "cuda_cflags": [],
    "implicit_headers": True,
}
_FINDING = {"kind": "race", "kernel": "k", "message": "two threads", "lines": ["line 3"], "times": 2, "library": "x"}
LONGEST = 1 << 20  # of a line: longer ones are for the tests of floods
MESSAGES: tuple[dict[str, Any], ...] = (
    {"event": "started"},
    {"event": "loaded", "has_model": True},
    {"event": "device_opened"},
    {"event": "memory_mapped", "failed": ""},
    {"event": "memory_released"},
    {"event": "constructed", "loadable": True, "fewer": False},
    {
        **{"event": "ran", "launches": {"relu_kernel": 5}, "damaged": [], "changed": [0], "aliased": [0]},
        **{"written": ["weight"], "on_cpu": [0], "work": _WORK, "deterministic": True, "overwritten": False},
        **{"findings": [_FINDING]},
    },
    {"event": "ran", "launches": {"relu_kernel": 5}, "damaged": ["input 0 was written to"]},
    {"event": "muted", "wrote": True, "failed": "", "work": _WORK},
    {"event": "round_timed", "ms": [0.1, 0.2], "host_ms": [0.1, 0.1], "idle_ms": [0.0], "checksums": [7, 8]},
    {"event": "profiled", "times": [["k", 3, 1.5], ["l", 1, 0.5]]},
    {"event": "failed", "outcome": "runtime_error", "stage": "run", "type": "E", "message": "m", "lines": ["l"]},
    {"event": "failed", "outcome": "compile_error", "stage": "load", "type": "E", "message": "m", "build": 1},
    {"event": "noticed", "notice": "native"},
    {"event": "build", "request": 1, "name": "k", "sources": _SOURCES},
    {"fault": "out_of_bounds", "message": "kernel k wrote"},
    {"fault": "unsupported", "message": "wmma"},
)
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 10**4000, 0.5, -0.0, 1e308),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        "x",
        "\0",
        "\ud800",
        "\udfff\ud800",
        "\x1b[2J",
        "\u202e",
        "x" * 5000,
    ),
    *([], [[]], [None], [1, "x", None], [[], {}], {}, {"": None}, {"a": {"b": []}}, {"event": "ran"}, [0] * 3000, DEEP),
    *("infra_error", "correct", "done", "infra", "ran", "failed", "../../x", "\n", {"\ud800": "\ud800"}, [True, 1.5]),
)


def lines(seed: int, count: int) -> Iterator[bytes]:
    """`count` lines as a hostile candidate may send them; the same for the same seed."""
    random = Random(seed)
    for _ in range(count):
        message = copy.deepcopy(random.choice(MESSAGES))
        for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
            message = _changed(message, random)
        line = json.dumps(message, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
        if random.random() < 0.2:
            line = _spoilt(line, random)
        yield line[:LONGEST].replace(b"\n", b" ")


def _changed(message: dict[str, Any], random: Random) -> dict[str, Any]:
    """With one value, somewhere in it, that is another, gone, or under another name."""
    places = list(_places(message))
    if not places:
        return {"event": random.choice(ODD)}
    holder, key = random.choice(places)
    deed = random.random()
    if deed < 0.7:
        holder[key] = copy.deepcopy(random.choice(ODD))
    elif deed < 0.8:
        del holder[key]
    elif deed < 0.9 and isinstance(holder, dict):
        holder[str(random.choice(ODD))[:50]] = holder.pop(key)
    elif isinstance(holder[key], list):
        holder[key] = (holder[key] * random.choice((2, 50, 2000)))[:5000]
    else:
        other = random.choice(MESSAGES)
        message |= {name: copy.deepcopy(value) for name, value in other.items() if random.random() < 0.5}
    return message


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Where something stands: the container and the key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[:50] if depth < 5 else ():
        yield value, key
        yield from _places(item, depth + 1)


def _spoilt(line: bytes, random: Random) -> bytes:
    data = bytearray(line)
    for _ in range(random.choice((1, 1, 4, 40))):
        place = random.randrange(len(data) + 1)
        deed = random.randrange(4)
        if deed == 0:
            data[place:place] = random.choice(
                (b"\xff", b"\0", b"[" * 2000, b'{"a":' * 500, b'"', b"9" * 5000, b"\r", b",,")
            )
        elif deed == 1:
            del data[place : place + random.choice((1, 5, 100))]
        elif data:
            data[min(place, len(data) - 1)] = random.randrange(256)
    return bytes(data)
