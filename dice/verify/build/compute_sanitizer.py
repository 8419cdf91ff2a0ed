"""NVIDIA's compute-sanitizer: where it is, how it is asked, and what its reports say.

Its text is read, not its XML, which some versions leave out fields of. A report is a headline and indented lines:

    ========= Invalid __global__ write of size 4 bytes
    =========     at scale(float *, int)+0x1d0 in cuda_source:8
    =========     by thread (64,0,0) in block (3,0,0)
    =========     Access to 0x7f1c2f000400 is out of bounds
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dice.files import JsonObject
from dice.verify import toolchain

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "compute-sanitizer"
PRINT_LIMIT = 50
MAX_FINDINGS = 20
_MARK = "========="
_OWN = re.compile(r"\b(cuda_source|cpp_source):(\d+)")
_AT = re.compile(r"\b(?:at|Device Frame:)\s*(?:0x[0-9a-f]+ in )?(?P<kernel>.+?)\s*(?:\+0x[0-9a-f]+)?(?: in \S+)?$")
_THREAD = re.compile(r"by thread (\([\d,]+\)) in block (\([\d,]+\))")
_RACE = re.compile(r"(?P<level>Error|Warning): Race reported between (?P<did>\w+) access at (?P<place>.+)")
_PARTNER = re.compile(r"and (?P<did>\w+) access at (?P<place>.+?)\s*(?:\[(?P<hazards>\d+) hazards?\])?$")
_SUMMARY = re.compile(r"(ERROR|RACECHECK|LEAK) SUMMARY: \d+")


def find_program() -> Path | None:
    """compute-sanitizer of the toolkit that builds use, else on the PATH."""
    try:
        home = toolchain.cuda_toolkit().home
        # The program in `bin` is a script that starts the one in `compute-sanitizer`.
        folders = [str(home / folder) for folder in ("compute-sanitizer", "bin")]
    except toolchain.ToolchainError:
        folders = []
    found = shutil.which(PROGRAM, path=os.pathsep.join(folders)) or shutil.which(PROGRAM)
    return Path(os.path.abspath(found)) if found else None


def command(program: Path, tool: str, log: Path, target: Iterable[str]) -> list[str]:
    """Run `target` under one tool, its reports to `log`."""
    options = ["--log-file", str(log), "--print-limit", str(PRINT_LIMIT), "--show-backtrace", "device"]
    return [str(program), "--tool", tool, *options, "--target-processes", "application-only", *target]


def finished(log: str) -> bool:
    """Whether the tool got to its summary; without one it says nothing about the kernel."""
    return _SUMMARY.search(log) is not None


def read(log: str, tool: str, kernels: Iterable[str]) -> list[JsonObject]:
    """Findings in the form of `dice.verdict.Finding` about code of ours: `kernels`, or lines of the sources.

    Reports that differ in thread and address alone are one finding, `times` over.
    """
    names = set(kernels)
    kept: dict[tuple[Any, ...], JsonObject] = {}
    for report in _reports(log):
        found = _race(report) if tool == "racecheck" else _fault(report)
        if found is None or not (found["lines"] or found["kernel"] in names):
            continue
        key = (found["kind"], found["kernel"], *sorted(found["lines"]))
        if key in kept:
            kept[key]["times"] += found["times"]
        elif len(kept) < MAX_FINDINGS:
            kept[key] = found | {"tool": tool}
    return list(kept.values())


def _reports(log: str) -> Iterator[list[str]]:
    """The lines of each report, without marks. One begins at a line that is not indented."""
    report: list[str] = []
    for line in log.splitlines():
        if not line.startswith(_MARK):
            continue  # what the target printed
        text = line.removeprefix(_MARK).rstrip()
        if text.startswith("  ") or text.strip().startswith("and "):
            report.append(text.strip())
            continue
        if report:
            yield report
        report = [text.strip()] if text.strip() else []
    if report:
        yield report


def _fault(report: list[str]) -> JsonObject | None:
    headline, details = report[0].rstrip("."), report[1:]
    text = " ".join(details)
    kind = _kind(headline, text)
    if not kind:
        return None
    places = [line for line in details if line.startswith(("at ", "Device Frame"))]
    thread = _THREAD.search(text)
    what = headline[0].lower() + headline[1:]
    lines = _lines(" ".join(places))
    kernel = _kernel(places[-1]) if places else ""
    # The outermost frame is the kernel; the first line is where it happened.
    parts = [f"{what} in kernel {kernel}" if kernel else what]
    parts += [f"at {lines[0]}"] if lines else []
    parts += [f"by thread {thread[1]} of block {thread[2]}"] if thread else []
    address = next((line for line in details if line.startswith(("Address", "Access to"))), "")
    after = next((line for line in details if line.startswith("and is")), "")
    message = " ".join(parts) + "".join(f"; {part}" for part in (address, after) if part)
    return {"kind": kind, "kernel": kernel, "message": message, "lines": lines, "times": 1}


def _kind(headline: str, details: str) -> str:
    """The kind of finding; empty for what follows from another one, or says nothing about a kernel."""
    if headline.startswith("Invalid __"):
        return "misaligned" if "misaligned" in details else "out_of_bounds"
    if headline.startswith(("Uninitialized __", "Uninitialized access")):
        return "uninitialised"
    if headline.startswith("Barrier error"):
        return "barrier"
    if headline.startswith("Leaked"):
        return "leak"
    if headline.startswith(("Stack overflow", "Illegal instruction", "Warp assert", "Malloc/Free error", "Lane ")):
        return "fault"
    return ""


def _race(report: list[str]) -> JsonObject | None:
    first = _RACE.search(report[0])
    if first is None:
        return None
    # Long places go on in a line of their own: "in cuda_source:12".
    joined = re.sub(r" (?=and \w+ access at )", "\n", " ".join((first["place"], *report[1:])))
    place, *others = joined.splitlines()
    partners = [match for match in map(_PARTNER.search, others) if match is not None]
    acts = [f"{first['did'].lower()} at {_where(place)}"]
    acts += [f"{match['did'].lower()} at {_where(match['place'])}" for match in partners]
    kernel = _kernel(f"at {place}")
    hazards = sum(int(match["hazards"] or 1) for match in partners) or 1
    lines = _lines(joined)
    message = f"shared memory in kernel {kernel}: {', '.join(acts)}, with no barrier between them"
    kind = "race" if first["level"] == "Error" else "hazard"
    return {"kind": kind, "kernel": kernel, "message": message, "lines": lines, "times": hazards}


def _where(place: str) -> str:
    lines = _lines(place)
    return lines[0] if lines else place.split(" [")[0]


def _lines(text: str) -> list[str]:
    return list(dict.fromkeys(f"{file}:{line}" for file, line in _OWN.findall(text)))


def _kernel(place: str) -> str:
    """`scale` of `at void ns::scale<float>(float *, int)+0x1d0 in cuda_source:8`."""
    match = _AT.search(place)
    if match is None:
        return ""
    name = match["kernel"].replace("(anonymous namespace)::", "")
    depth, plain = 0, ""
    for char in name:
        depth += char == "<"
        plain += char if depth == 0 else ""
        depth -= char == ">"
    head = plain.split("(")[0].split()
    return head[-1].split("::")[-1].split("+")[0] if head else ""
