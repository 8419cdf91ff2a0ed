"""What a backend's compiler can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from dice.verdict import Backend
from dice.verify.build.units import Unit


class Compiler(ABC):
    """How one backend compiles, for one architecture and one set of user flags."""

    backend: Backend

    @property
    @abstractmethod
    def identity(self) -> str:
        """Everything but the sources that decides the result."""

    @abstractmethod
    def command(self, unit: Unit, source: Path, output: Path, headers: str) -> list[str]:
        """Writes the unit beside `source` and returns the command that compiles it to `output`."""

    @abstractmethod
    def link(self, objects: list[Path], output: Path, headers: str) -> list[str]: ...
