"""`Style`: how one author writes, drawn once for each problem: names, numbers, constructors, flow of `forward`."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

# How often a style writes an operator in each form, relative to its other forms.
TASTES = (
    {"call": 6.0, "method": 1.0, "module": 1.0, "formula": 0.6},
    {"call": 1.5, "method": 0.5, "module": 6.0, "formula": 0.3},
    {"call": 2.0, "method": 5.0, "module": 0.5, "formula": 0.5},
    {"call": 3.0, "method": 2.0, "module": 2.0, "formula": 2.0},
)
Flow = Literal["reassign", "nested", "fresh"]  # `x = f(x)`; `g(f(x))`; `a = f(x)`, then `b = g(a)`

# Where a number stands: in the text ("literal": always there), as an attribute, a constant of the file or of the class.
Home = Literal["text", "literal", "attribute", "constant", "class"]


@dataclass(frozen=True, slots=True)
class Style:
    """The choices of one author. Rates are probabilities of one decision each."""

    flow: Flow
    taste: dict[str, float]
    named_dimensions: bool  # sizes have names at the top of the file
    upper_case: bool  # those names are written like BATCH_SIZE
    conventional: bool  # takes the first name of each pool, as long as it is free
    invention_rate: float  # of names that no pool holds
    after_class_rate: float  # of attributes that are called like their class
    home: Home  # of numbers that the kernel does not take
    argument_rate: float  # of numbers that are constructor arguments, which the kernel takes
    setting_rate: float  # of numbers written into the kernel that are constructor arguments nevertheless
    constant_rate: float  # of constructor arguments whose value is a constant of the file
    shared_names: bool  # a constructor argument is called like the constant that it is given
    keywords: bool  # settings of a layer are all written as keywords
    positional: bool  # settings of a layer are written by position where others write keywords
    comments: str  # "", "before" or "after" a statement
    in_place: bool  # operators work in place where that means the same
    contained: bool  # activations that follow one another stand in an nn.Sequential
    printing: float  # decides everything about the layout of the file, see `printing`
    sampler: str  # the expression that makes an ordinary input

    @classmethod
    def draw(cls, rng: random.Random, *, keep_inputs: bool = False) -> Style:
        """A style; with `keep_inputs`, `forward` never gives an input's name to another value.

        The order of the draws is part of the corpus: another order makes every pair of every seed another one.
        """
        return cls(
            flow="fresh" if keep_inputs else rng.choices(_FLOWS, (4, 3, 2))[0],
            taste=rng.choice(TASTES),
            named_dimensions=rng.random() < 0.85,
            upper_case=rng.random() < 0.1,
            conventional=rng.random() < 0.35,
            invention_rate=rng.choices((0.0, 0.1, 0.4, 0.9), (4, 3, 2, 1.2))[0],
            after_class_rate=rng.choice((0.1, 0.5, 0.9)),
            home=rng.choices(_HOMES, (82, 9, 6, 3))[0],
            argument_rate=rng.choice((0.0, 0.0, 0.2, 0.5, 0.9)),
            setting_rate=rng.choices((0.0, 0.4, 1.0), (4, 2, 4))[0],
            constant_rate=rng.choice((0.1, 0.5, 0.95)),
            shared_names=rng.random() < 0.6,
            keywords=rng.random() < 0.4,
            positional=rng.random() < 0.25,
            comments=rng.choices(("", "before", "after"), (84, 10, 6))[0],
            in_place=rng.random() < 0.3,
            contained=rng.random() < 0.15,
            printing=rng.random(),
            sampler=rng.choices(("torch.randn({shape})", "torch.rand({shape})"), (6, 4))[0],
        )

    def with_literal_numbers(self) -> Style:
        """The same style, but every number stands where it is used."""
        return replace(self, argument_rate=0.0, home="literal")


_FLOWS: tuple[Flow, ...] = ("reassign", "nested", "fresh")
_HOMES: tuple[Home, ...] = ("text", "attribute", "constant", "class")
