"""`Plan`: what a module is put together from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dice.kernel import Kernel
from dice.optimize.backward.derived import Backward
from dice.optimize.region import Region
from dice.optimize.unit import Unit
from dice.problem import Problem

Cut = tuple[Unit, tuple[Region, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """A region's kernel: its file, how that reaches the region's states, and the numbers that it may read besides."""

    kernel: Kernel
    paths: tuple[str, ...]
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gradient:
    """How a region's gradients are computed: its backward, the regions of that, and the kernels of those that have one,
    by their keys; the rest of it is PyTorch's."""

    backward: Backward
    regions: tuple[Region, ...]
    parts: Mapping[str, Part]

    @property
    def replaced(self) -> tuple[Region, ...]:
        return tuple(region for region in self.regions if region.key in self.parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """`units` with their regions, several for one place where each was followed for other inputs; `parts`: the kernel
    of each region that is replaced, by the region's key. `apart`: each kernel is built by itself, as it was when it was
    verified, so that nothing has to be compiled. `training`: gradients flow through the regions, by kernels where one
    has `gradients`, else by PyTorch's autograd of what it computes."""

    problem: Problem
    units: tuple[Cut, ...]
    parts: Mapping[str, Part]
    apart: bool = False
    training: bool = False
    gradients: Mapping[str, Gradient] = field(default_factory=dict)

    @property
    def replaced(self) -> dict[str, Region]:
        """The regions that have kernels, each once, in the order of their numbers."""
        return {region.key: region for _, regions in self.units for region in regions if region.key in self.parts}

    @property
    def behind(self) -> dict[str, tuple[Region, Part]]:
        """The regions of backwards that have kernels, each once, in the order of their numbers."""
        found: dict[str, tuple[Region, Part]] = {}
        for gradient in self.gradients.values() if self.training else ():
            for region in gradient.replaced:
                found.setdefault(region.key, (region, gradient.parts[region.key]))
        return found
