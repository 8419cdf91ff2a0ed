"""What several commands hold their arguments to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dice.errors import UserError

if TYPE_CHECKING:
    from dice.verify import Options


def at_least(least: int, **flags: int | None) -> None:
    """Raises `UserError` for a flag, named as its field is, whose number is smaller. None is no number."""
    for name, number in flags.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, not {number}.")


def options(**settings: Any) -> Options:
    """The verifier's. Raises `UserError` for what cannot be meant."""
    from dice.verify import Options

    try:
        return Options(**settings)
    except ValueError as error:
        raise UserError(f"{error}.") from None
