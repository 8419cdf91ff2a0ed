"""`dice bench ...`: what this machine does in a minute, ours against stock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import subcommand

from dice.commands.bench.baseline import BenchBaseline
from dice.commands.bench.decode import BenchDecode
from dice.commands.bench.train import BenchTrain
from dice.commands.bench.verify import BenchVerify


@dataclass
class Bench:
    """Measure what this machine does: verification, training, decoding, or KernelBench's references.

    Example: dice bench verify --candidates 96 --out bench
    """

    command: (
        Annotated[BenchVerify, subcommand("verify")]
        | Annotated[BenchTrain, subcommand("train")]
        | Annotated[BenchDecode, subcommand("decode")]
        | Annotated[BenchBaseline, subcommand("baseline")]
    )

    def run(self) -> int:
        return self.command.run()
