"""`dice train ...`: train a model by a recipe, and watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import subcommand

from dice.commands.train.curves import WatchRun
from dice.commands.train.recipe import Adapt, Rl, Sft

RECIPE_COMMANDS: dict[str, type[Sft] | type[Rl] | type[Adapt]] = {"sft": Sft, "rl": Rl, "adapt": Adapt}


@dataclass
class Train:
    """Train a model.

    Example: dice train sft --recipe tiny_sft --data corpus/train --tokenizer corpus/tokenizer --out run
    """

    command: (
        Annotated[Sft, subcommand("sft")]
        | Annotated[Rl, subcommand("rl")]
        | Annotated[Adapt, subcommand("adapt")]
        | Annotated[WatchRun, subcommand("watch")]
    )

    def run(self) -> int:
        return self.command.run()
