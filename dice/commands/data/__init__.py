"""`dice data ...`: training data, made, looked at, measured and curated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import subcommand

from dice.commands.data.curate import Cuke, Measure, Rl
from dice.commands.data.difficulty import DifficultyCommand
from dice.commands.data.import_samples import Import
from dice.commands.data.inspect import Inspect
from dice.commands.data.structural import Structural
from dice.commands.data.synth import Synth
from dice.commands.data.teach import Teach
from dice.commands.data.tokenizer import Bpe


@dataclass
class Data:
    """Make training data, and look at the problems it is made from.

    Example: dice data synth --out corpus --pairs 100
    """

    command: (
        Annotated[Synth, subcommand("synth")]
        | Annotated[Import, subcommand("import")]
        | Annotated[Structural, subcommand("structural")]
        | Annotated[Inspect, subcommand("inspect")]
        | Annotated[Measure, subcommand("measure")]
        | Annotated[Cuke, subcommand("cuke")]
        | Annotated[Rl, subcommand("rl")]
        | Annotated[Teach, subcommand("teach")]
        | Annotated[DifficultyCommand, subcommand("difficulty")]
        | Annotated[Bpe, subcommand("tokenizer")]
    )

    def run(self) -> int:
        return self.command.run()
