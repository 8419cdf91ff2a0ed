"""`dice train sft`: pick a recipe, change any of its fields by flag, train."""

from __future__ import annotations

import argparse
import os

import tyro

from dice.errors import UserError


def sft(arguments: list[str]) -> int:
    """`--recipe NAME` first of all, then the fields of that recipe; `--help` lists them with the recipe's values."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--recipe", default="nano_sft")
    chosen, rest = chooser.parse_known_args(arguments)
    from dice.recipes import SFT_RECIPES

    if chosen.recipe not in SFT_RECIPES:
        raise UserError(f"there is no recipe {chosen.recipe!r}; the SFT recipes are {', '.join(SFT_RECIPES)}.")
    default = SFT_RECIPES[chosen.recipe]()
    description = f"Supervised fine-tuning by block diffusion (paper Eq. 2). Recipes: {', '.join(SFT_RECIPES)}."
    prog = f"dice train sft --recipe {chosen.recipe}"
    # Without this, an optional group such as `shape` would be a subcommand and not `--shape.hidden-size`.
    flat = (tyro.conf.AvoidSubcommands,)
    config = tyro.cli(type(default), default=default, args=rest, prog=prog, description=description, config=flat)
    from dice.train.sft import train_sft

    result = train_sft(config)
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, one speaks
        print(f"step {result.step}, {result.reason}; model in {result.model}")
    return 0
