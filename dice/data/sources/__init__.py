"""Published data sets, and one's own, as `Sample`s: `read(resolve(texts), report)`."""

from dice.data.sources.catalogue import OWN, SOURCES, Source, find_source
from dice.data.sources.reader import Counts, ImportReport, Input, holds_kernels, read, read_problems, resolve

__all__ = [
    "OWN",
    "SOURCES",
    "Counts",
    "Input",
    "ImportReport",
    "Source",
    "find_source",
    "holds_kernels",
    "read",
    "read_problems",
    "resolve",
]
