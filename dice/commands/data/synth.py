"""`dice data synth`: write the synthetic corpus."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import UseAppendAction

from dice.commands.arguments import Backend, at_least
from dice.commands.progress import bars
from dice.errors import UserError

if TYPE_CHECKING:
    from dice.synth.pair import Pair


@dataclass
class Synth:
    """Write the synthetic corpus: PyTorch problems with CUDA kernels, each verified before it enters.

    Example: dice data synth --out corpus --pairs 100
    """

    out: Path
    """Folder for the Parquet files and report.json. An interrupted run resumes here."""
    pairs: int = 1000
    """Training pairs to write."""
    heldout: int = 240
    """Pairs of the held-out set (compositions and operator contexts that no training pair has)."""
    control: int = 120
    """Pairs of training compositions with other text, for comparison."""
    seed: int = 0
    workers: int = os.cpu_count() or 1
    """Processes that draw pairs, and candidates verified at once; what is written does not depend on it."""
    backend: Backend = "auto"
    verify: bool = True
    """Verify each pair; without it, pairs are only drawn and checked for whole syntax."""
    prose_free: bool = False
    """Also write each training pair without docstrings and comments, so that a model learns to read the code."""
    infill_share: float = 0.0
    """Share of the training pairs to write once more as infilling: the prompt gives the kernel's beginning and end."""
    styles: Literal["plain", "wide"] = "plain"
    """How modules are written: as they are drawn, or also with helpers, properties, containers, einsum, several inputs
    and outputs, and so on, their kernels to match; or in the canonical form in which the optimiser asks."""
    without_style: UseAppendAction[tuple[str, ...]] = ()
    """A wide style to leave out of the training pairs; may be given several times. Held-out and control pairs have it
    wherever it can be applied, so that one can measure on it."""
    decontaminate: tuple[Path, ...] = ()
    """Folders of benchmark problems: a pair that equals or nearly equals one of theirs is dropped."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.synth import Styles
        from dice.synth.corpus import build

        styles = Styles(self.styles, tuple(self.without_style), _canonical() if self.styles == "wide" else None)
        at_least(0, pairs=self.pairs, heldout=self.heldout, control=self.control)
        at_least(1, workers=self.workers)
        missing = next((folder for folder in self.decontaminate if not folder.is_dir()), None)
        if not 0 <= self.infill_share <= 1:
            raise UserError(f"--infill-share must lie between 0 and 1, not {self.infill_share:g}.")
        if missing is not None:
            raise UserError(f"There is no folder {missing} to decontaminate against.")
        with bars() as show:
            show("pairs", 0, None)
            report = build(
                self.out,
                self.pairs,
                self.seed,
                heldout=self.heldout,
                control=self.control,
                workers=self.workers,
                verify=self.verify,
                backend=self.backend,
                decontaminate=self.decontaminate,
                prose_free=self.prose_free,
                infill_share=self.infill_share,
                styles=styles,
                progress=lambda done, total, what: show("pairs", done, total, what),
            )
        if self.json:
            print(json.dumps(report))
            return 0
        for name in ("train", "heldout", "control"):
            part = report[name]
            dropped = ", ".join(f"{count} {reason}" for reason, count in part["dropped"].items()) or "none"
            print(f"{name}: {part['pairs']} pairs, {part['compositions']} compositions; dropped: {dropped}")
        print(f"written to {self.out}; counts in {self.out / 'report.json'}")
        return 0


def _canonical() -> Callable[[Pair], Pair | str]:
    from dice.optimize.canonical import canonical_pair

    return canonical_pair
