"""What the device cannot do faster: the least time a forward needs, from what it must move and what it computes.

Two figures of different standing. `Ceilings.ceiling_ms` is the roofline of the reference's own work, for a reader to
compare with. `Ceilings.least_ms` is a proof: a kernel that claims less did not do the work. Only bytes can prove that;
fewer floating-point operations than the reference's may be honest algebra (a diagonal matrix, a sum moved before a
product), so they never reject.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dice.files import JsonObject

MARGIN = 0.8  # of the measured bandwidth's time; some access patterns beat a copy by a few percent


@dataclass(frozen=True, slots=True)
class Work:
    """What a forward of the reference moves and computes."""

    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    flops: int

    @property
    def bytes_moved(self) -> int:
        return self.input_bytes + self.parameter_bytes + self.output_bytes


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device was measured to do: bytes and floating-point operations a second, and the size of its L2 cache."""

    bandwidth: float  # a large copy, bytes read plus bytes written
    fp32: float
    tf32: float
    bf16: float
    l2_bytes: int

    def least_ms(self, needed_bytes: int) -> float:
        """The least time in which `needed_bytes` can be read and written once, with cold caches and a margin. As much
        as fits into L2 may stay there, written or pinned, so it counts for nothing."""
        return MARGIN * 1e3 * max(0, needed_bytes - self.l2_bytes) / self.bandwidth

    def ceiling_ms(self, work: Work) -> float:
        """The roofline of the reference's work in its own precision (float32)."""
        return 1e3 * max(work.bytes_moved / self.bandwidth, work.flops / self.fp32)


def is_impossible(claimed_ms: float, ceilings: Ceilings, work: Work, needed_bytes: Callable[[], int]) -> bool:
    """Whether a call cannot have taken so little. `needed_bytes` (what provably is read and written) takes a backward
    pass to know, and is asked only when the claim is below what all inputs, parameters and outputs would take."""
    if claimed_ms >= ceilings.least_ms(work.bytes_moved):
        return False
    return claimed_ms < ceilings.least_ms(min(needed_bytes(), work.bytes_moved))


def stored_ceilings(cache_dir: Path, device: str, measure: Callable[[], JsonObject]) -> Ceilings:
    """The ceilings of `device` (its name and driver), measured once and kept in the cache folder."""
    fields = stored(cache_dir / "ceilings.json", device, measure)
    return Ceilings(**{name: fields[name] for name in Ceilings.__dataclass_fields__})


def known_ceilings(cache_dir: Path, device: str) -> Ceilings | None:
    """Those that were measured of `device` before, None where none were."""

    def unknown() -> JsonObject:
        raise LookupError

    try:
        return stored_ceilings(cache_dir, device, unknown)
    except LookupError:
        return None


def device_key(name: str) -> str:
    """What the ceilings of this machine's device are kept under."""
    return f"{name}, driver {driver_version()}"


def stored(path: Path, name: str, measure: Callable[[], JsonObject]) -> JsonObject:
    """What was measured under `name` once, from a JSON file that is replaced whole."""
    known: JsonObject = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_text())
    if name not in known:
        known[name] = measure()
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
        with os.fdopen(descriptor, "w") as file:
            json.dump(known, file, indent=1)
        os.replace(temporary, path)
    found: JsonObject = known[name]
    return found


def driver_version() -> str:
    """Of NVIDIA's kernel driver; empty where there is none."""
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return ""
