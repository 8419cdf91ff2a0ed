"""`Scaffold`: a kernel file whose CUDA source is open, and everything else fixed (paper Fig. 4).

What is written goes inside a string literal and cannot leave it: no import, no call and no `forward` can be changed, so
a kernel cannot be left unbuilt, unbound or uncalled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dice.kernel import Kernel, KernelParts

# One triple-quoted literal that is no f-string, with whatever assignment it stands in. Braces in an f-string would be
# Python that runs.
_CORE = re.compile(
    r"""(?P<head>[^"'#]*?(?<![A-Za-z])[rRuU]?)(?P<quotes>\"\"\"|''')(?P<breaks>[\r\n]*+)(?P<body>.*)(?P=quotes)(?P<tail>\s*)""",
    re.DOTALL,
)
QUOTES = ('"""', "'''")


@dataclass(frozen=True, slots=True)
class Scaffold:
    """`beginning` ends with the opening quotes of the core and the line ends after them, `end` begins with `quotes`."""

    beginning: str
    end: str
    quotes: str

    @classmethod
    def of(cls, parts: KernelParts) -> Scaffold | None:
        """None when the core is anything but a single triple-quoted string."""
        match = _CORE.fullmatch(parts.core)
        if match is None or match["quotes"] in match["body"]:
            return None
        quotes = match["quotes"]
        return cls(
            f"{parts.prefix}{match['head']}{quotes}{match['breaks']}", f"{quotes}{match['tail']}{parts.suffix}", quotes
        )

    def used(self, written: str) -> int:
        """How many characters of `written` belong to the core: those before the first closing quotes."""
        place = written.find(self.quotes)
        return len(written) if place < 0 else place

    def closed(self, written: str) -> bool:
        return self.quotes in written

    def fill(self, written: str) -> Kernel:
        """The whole file. Backslashes and quotes at the end of the core would change where it ends, and are dropped."""
        body = written[: self.used(written)].rstrip("\\" + self.quotes)
        return Kernel(f"{self.beginning}{body}{self.end}")
