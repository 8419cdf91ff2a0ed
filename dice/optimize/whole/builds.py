"""Which kernels of a composed file share a build: all whose sources allow it, one build for each set of options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dice.kernel import Kernel
from dice.optimize.whole.extension import Extension, extension_of, shared_call
from dice.optimize.whole.namespaces import NotShared
from dice.problem import Problem

_HANDLES = ("kernels", "region_kernels", "kernels_of_regions")


@dataclass(frozen=True, slots=True)
class Builds:
    """`shared`: the extension of each kernel that is built with others, by its region's key; `handles`: the Python name
    of the build that it is part of. `alone`: why another kernel is built by itself, as the end of a sentence."""

    name: str
    shared: Mapping[str, Extension]
    handles: Mapping[str, str]
    alone: Mapping[str, str]

    @classmethod
    def of(cls, problem: Problem, kernels: Mapping[str, Kernel], apart: bool = False) -> Builds:
        """`kernels`: by region, in the order of their numbers. `apart`: none are to share a build."""
        shared: dict[str, Extension] = {}
        alone: dict[str, str] = {}
        for number, (key, kernel) in enumerate(kernels.items(), 1):
            try:
                if not apart:
                    shared[key] = extension_of(kernel, number)
            except NotShared as error:
                alone[key] = str(error)
        stem = _free_name([problem.source, *(kernel.source for kernel in kernels.values())])
        handles: dict[tuple[str, ...], str] = {}
        for one in shared.values():
            handles.setdefault(one.options, stem if not handles else f"{stem}_{len(handles) + 1}")
        return cls(kernels_name(problem), shared, {key: handles[one.options] for key, one in shared.items()}, alone)

    def texts(self) -> Iterator[str]:
        """The calls of `load_inline`."""
        for number, handle in enumerate(dict.fromkeys(self.handles.values()), 1):
            parts = [one for key, one in self.shared.items() if self.handles[key] == handle]
            name = self.name if number == 1 else f"{self.name}_{number}"
            yield f"# The kernels of the regions above, in one build.\n{shared_call(name, handle, parts)}"


def kernels_name(problem: Problem) -> str:
    """What a module's kernels are called as an extension or a package, whose names are identifiers: `NAME_kernels`."""
    stem = re.sub(r"\W", "_", problem.name, flags=re.ASCII).strip("_") or "module"
    return f"module_{stem}_kernels" if stem[0].isdigit() else f"{stem}_kernels"


def _free_name(sources: list[str]) -> str:
    """A name that nothing in the sources has."""
    words = {word for source in sources for word in re.findall(r"[A-Za-z_]\w*", source)}
    return next((name for name in _HANDLES if name not in words), "_".join(_HANDLES))
