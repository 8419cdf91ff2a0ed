"""What several commands hold their arguments to."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dice.errors import UserError

if TYPE_CHECKING:
    from dice.verify import Options


def at_least(least: int, **flags: int | None) -> None:
    """Raises `UserError` for a flag, named as its field is, whose number is smaller. None is no number."""
    for name, number in flags.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, not {number}.")


def numbers(arguments: Any, group: str = "") -> None:
    """Raises `UserError` for a number that no command can mean: NaN, infinity, or beyond 64 bits. `group`: what the
    names of the flags begin with."""
    for one in fields(arguments):
        value = getattr(arguments, one.name)
        name = group + one.name.replace("_", "-")
        if is_dataclass(value):
            numbers(value, f"{name}.")
        flag = f"--{name}"
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{flag} must be a finite number, not {number}.")
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                raise UserError(f"{flag} must fit into 64 bits, and {number} does not.")


def spare(inputs: Iterable[Path], *outputs: Path | None) -> None:
    """Raises `UserError` for an output that is read from, or that another one is: writing it would lose something."""
    taken = {os.path.realpath(path): "is read from; write to another file" for path in inputs}
    for output in filter(None, outputs):
        place = os.path.realpath(output)
        if place in taken:
            raise UserError(f"{output} {taken[place]}.")
        taken[place] = "would be written twice; give each output a name of its own"


def options(**settings: Any) -> Options:
    """The verifier's. Raises `UserError` for what cannot be meant."""
    from dice.verify import Options

    try:
        return Options(**settings)
    except ValueError as error:
        raise UserError(f"{error}.") from None
