"""The probes: hostile kernel files, each of which tries to break one promise of the verifier. Read, never imported.

A file of `dice/verify/probes` begins with lines `# key: value`:

- `promise`: what must hold, whatever the file does, in one sentence;
- `alone`: outcomes that it may have where nothing follows it, or where it defines `ModelNew` itself;
- `right`: outcomes that it may have where a right kernel follows it in the same file;
- `tags`: `quick` for `dice doctor --probe`, else `slow`; `victim` where others' kernels are to be built beside it;
- `lacking`: guarantees (`guarantees.py`) without which the promise is not made: where a verdict says that one of them
  is lacking, the probe is excused.

It may use what `PREAMBLE` defines. A probe that got what it must not get calls `escaped`, which ends it. A line
`#repeat COUNT|BEFORE|AGAIN|AFTER` stands for `BEFORE`, `AGAIN` so many times and `AFTER`. In them, `@` stands for the
number of the turn, `@+` for the next, and `~` for the end of a line.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import OUTCOMES

FOLDER = Path(__file__).parent / "hostile"
ENDINGS = ("alone", "right")
ESCAPED = "ESCAPED"
_HEADER = re.compile(r"# (promise|alone|right|tags|lacking): (.+)")
_REPEAT = re.compile(r"^#repeat (\d+)\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)$", re.MULTILINE)

PREAMBLE = """
import ctypes, os, sys, time
LIMIT_MB, MARK = {limit_mb}, {mark!r}
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, MARK.encode(), 0, 0, 0)  # its name, and that of all that it forks
def escaped(what):
    raise SystemExit("ESCAPED: " + what)
"""
END = "\nos._exit(0)\n"


@dataclass(frozen=True, slots=True)
class Probe:
    """`outcomes`: by ending, what the verdict may be."""

    name: str
    promise: str
    outcomes: dict[str, tuple[str, ...]]
    tags: frozenset[str]
    lacking: tuple[str, ...]
    text: str

    @property
    def quick(self) -> bool:
        return "quick" in self.tags

    @property
    def endings(self) -> tuple[str, ...]:
        return tuple(self.outcomes)

    def kernel(self, ending: str, limit_mb: int, mark: str) -> Kernel:
        """The file as it is verified: a right kernel follows it, which `alone` is never reached."""
        source = PREAMBLE.format(limit_mb=limit_mb, mark=mark) + self.text
        if "class ModelNew" not in self.text:  # what is no kernel at all would not even be run
            source += ("" if ending == "right" else END) + f"\n{_read('_right')}"
        return Kernel(source, f"{self.name} ({ending})")


@functools.cache
def all_probes(folder: Path = FOLDER) -> tuple[Probe, ...]:
    """Every probe, by name. Raises `ValueError` for a file with a bad header."""
    return tuple(read(path) for path in sorted(folder.glob("[a-z]*.py")))


def read(path: Path) -> Probe:
    """One probe. Raises `ValueError` where its header says less than is needed."""
    header: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    while lines and (match := _HEADER.fullmatch(lines[0].rstrip("\n"))):
        header[match[1]] = match[2]
        lines.pop(0)
    outcomes = {ending: tuple(header[ending].split()) for ending in ENDINGS if ending in header}
    tags = frozenset(header.get("tags", "").split())
    known = all(outcome in OUTCOMES for ending in outcomes.values() for outcome in ending)
    if not (header.get("promise") and outcomes and known and len(tags & {"quick", "slow"}) == 1):
        raise ValueError(f"{path.name}: a promise, outcomes, and one of the tags quick and slow are needed")
    lacking = tuple(name.strip() for name in header.get("lacking", "").split(",") if name.strip())
    return Probe(path.stem, header["promise"], outcomes, tags, lacking, _REPEAT.sub(_repeated, "".join(lines)))


def _repeated(line: re.Match[str]) -> str:
    before, again, after = (part.replace("~", "\n") for part in line.groups()[1:])
    turns = (again.replace("@+", str(number + 1)).replace("@", str(number)) for number in range(int(line[1])))
    return before + "".join(turns) + after


def right(number: str) -> Kernel:
    """A right kernel of nobody's, distinct by `number`."""
    return Kernel(f"{_read('_right')}\n# {number}\n", f"right {number}")


def wrong(number: str) -> Kernel:
    """A wrong one."""
    return Kernel(f"{_read('_wrong')}\n# {number}\n", f"wrong {number}")


def victim(number: str, secret: str) -> Kernel:
    """A right kernel that has to be built anew, with a secret in its source and in its library."""
    mark = f'#include <cuda_runtime.h>\nextern "C" const char dice_probe_victim[] = "{secret}";\n'
    return Kernel(_read("_right").replace("#include <cuda_runtime.h>\n", mark), f"victim {number}")


def problem() -> Problem:
    return Problem(_read("_problem"), "relu")


@functools.cache
def _read(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")
