"""What a verdict tells the writer of a kernel beyond right or wrong: places in the file, and sanitizers' findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dice.verdict import Finding
from dice.verify.build.sources import Sources
from dice.verify.ipc import untrusted
from dice.verify.text.source_map import Literal, SourceMap

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MAX_FINDINGS = 20
DECIDING = ("race", "out_of_bounds", "misaligned", "barrier", "fault")  # other kinds are worth a look, and no more


class Feedback:
    """Gathers, for one kernel file, what its builds and runs say."""

    def __init__(self, kernel_source: str):
        self.kernel_source = kernel_source
        self.literals: Iterable[Literal] | None = None  # of the file, once they are known
        self.findings: list[Finding] = []
        self._last: SourceMap | None = None
        self._maps: dict[str, SourceMap] = {}  # by library

    def note_build(self, sources: Sources, library: str) -> None:
        """`library` is empty when the build failed."""
        self._last = SourceMap(self.kernel_source, sources, self.literals)
        if library:
            self._maps[library] = self._last

    def locate(self, texts: Iterable[str], library: str = "") -> tuple[str, ...]:
        """Texts that name lines of a build's sources (the last one's, if not of `library`), with the file's lines."""
        places = self._maps.get(library, self._last)
        return tuple(text if places is None else places.locate(text) for text in texts)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings, for the list of a verdict's errors."""
        return tuple(f"{finding.kind}: {finding.message}" for finding in self.findings)

    def note_findings(self, said: object) -> Finding | None:
        """Keep what a candidate's process reports. Returns the first finding that makes the kernel wrong."""
        return self.keep(read(item) for item in said[:MAX_FINDINGS]) if isinstance(said, list) else None

    def keep(self, found: Iterable[tuple[Finding, str]]) -> Finding | None:
        """Keep findings, each with the library that it is in. Returns the first that makes the kernel wrong."""
        deciding = None
        known = {(finding.kind, finding.kernel, finding.lines) for finding in self.findings}
        for finding, library in found:
            lines = self.locate(finding.lines, library)
            located = replace(finding, message=self.locate((finding.message,), library)[0], lines=lines)
            if (located.kind, located.kernel, lines) not in known and len(self.findings) < MAX_FINDINGS:
                self.findings.append(located)
            if deciding is None and located.kind in DECIDING:
                deciding = located
        return deciding


def read(said: object) -> tuple[Finding, str]:
    """One finding as a candidate's process claims it, and its library."""
    item = said if isinstance(said, dict) else {}
    times = item.get("times")
    tool = item.get("tool")
    finding = Finding(
        kind=untrusted.text(item.get("kind", ""), 40),
        kernel=untrusted.text(item.get("kernel", ""), 200),
        message=untrusted.text(item.get("message", "")),
        lines=untrusted.texts(item.get("lines")),
        times=times if type(times) is int else 1,
        tool=tool if tool in TOOLS else "emulator",
    )
    return finding, str(item.get("library", ""))
