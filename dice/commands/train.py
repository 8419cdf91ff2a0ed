"""`dice train sft` and `dice train rl`: pick a recipe, change any of its fields by flag, train."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import tyro

from dice.commands.arguments import numbers
from dice.errors import UserError

Config = TypeVar("Config")
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C ended


def sft(arguments: list[str]) -> int:
    from dice.recipes import SFT_RECIPES
    from dice.train.sft import train_sft

    what = "Supervised fine-tuning by block diffusion (paper Eq. 2)."
    result = train_sft(_configure("sft", arguments, SFT_RECIPES, "nano_sft", what))
    return _end(result.step, result.reason, result.model)


def rl(arguments: list[str]) -> int:
    from dice.recipes import RL_RECIPES
    from dice.train.rl.loop import train_rl

    what = "Bi-phase curated reinforcement learning on traces (paper section 4.2)."
    result = train_rl(_configure("rl", arguments, RL_RECIPES, "nano_rl", what))
    return _end(result.step, result.reason, result.model)


def _configure(
    command: str, arguments: list[str], recipes: Mapping[str, Callable[[], Config]], usual: str, what: str
) -> Config:
    """`--recipe NAME` first of all, then the fields of that recipe; `--help` lists them with the recipe's values."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--recipe", default=usual)
    chosen, rest = chooser.parse_known_args(arguments)
    if chosen.recipe not in recipes:
        names = ", ".join(recipes)
        raise UserError(f"there is no recipe {chosen.recipe!r}; the {command.upper()} recipes are {names}.")
    default = recipes[chosen.recipe]()
    prog = f"dice train {command} --recipe {chosen.recipe}"
    # Without this, an optional group such as `shape` would be a subcommand and not `--shape.hidden-size`.
    flat = (tyro.conf.AvoidSubcommands,)
    description = f"{what} Recipes: {', '.join(recipes)}."
    config = tyro.cli(type(default), default=default, args=rest, prog=prog, description=description, config=flat)
    numbers(config)
    return config


def _end(step: int, reason: str, model: object) -> int:
    from dice.train.session import BY_HAND

    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, one speaks
        print(f"step {step}, {reason}; model in {model}")
    return INTERRUPTED if reason == BY_HAND else 0
