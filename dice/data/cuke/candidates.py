"""The nouns of curation: `Candidate`, a sample that may be kept, and `CurationSettings`, which decide whether it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dice.data.decontaminate import THRESHOLD
from dice.data.outcomes import lower_bound
from dice.data.sample import Sample
from dice.errors import UserError

Part = Literal["base", "structural", "fast"]
PARTS: tuple[Part, ...] = ("base", "structural", "fast")  # a sample that could belong to several belongs to the first


@dataclass(frozen=True, slots=True)
class CurationSettings:
    """What is kept. The defaults are the paper's."""

    base: tuple[str, ...] = ("concur",)  # sources whose correct samples are kept whatever their speed
    min_speedup: float = 2.0  # of the others; 1.5 and 2.5 in the paper's Table 4
    confident: bool = False  # the lower bound of the speed-up's interval must exceed it, not the point value
    keep_base: bool = False  # base samples are kept as they are, also unverified ones, as the paper keeps ConCuR
    concise: bool = False  # of a base problem's answers keep one: correct, faster than PyTorch, shortest reasoning
    near_duplicate: float = THRESHOLD  # Jaccard similarity of problems and of kernels from which two samples are one
    prompt: Literal["one-shot", "compact"] = "one-shot"  # for samples without a published prompt

    def __post_init__(self) -> None:
        if not self.min_speedup > 0:
            raise UserError(f"The speed-up to exceed must be positive, not {self.min_speedup:g}.")
        if self.keep_base and self.concise:
            raise UserError("--keep-base keeps every base sample, so that --concise has none to choose among.")
        if not 0 < self.near_duplicate <= 1:
            raise UserError(f"A similarity is above 0 and at most 1, not {self.near_duplicate:g}.")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sample, and the part of the set that it would belong to."""

    sample: Sample
    part: Part

    def speedup(self, settings: CurationSettings) -> float | None:
        """What the thresholds are held against; None where nothing was timed."""
        return lower_bound(self.sample.verdict) if settings.confident else self.sample.speedup

    def spared(self, settings: CurationSettings) -> bool:
        """Whether it is kept as it is: out of reach of every rule but of those that no training row may break."""
        return settings.keep_base and self.part == "base"

    @property
    def rank(self) -> tuple[int, float, int, str, str, str, str]:
        """Of equal candidates the one of lowest rank stays: of the earlier part, faster, told in fewer words."""
        sample = self.sample
        words, outcome = len(sample.response), sample.verdict.outcome if sample.verdict else ""
        return PARTS.index(self.part), -(sample.speedup or 0.0), words, sample.id, sample.source, sample.origin, outcome
