"""`dice train sft`, `dice train rl` and `dice train adapt`: pick a recipe, change any of its fields by flag, train."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import tyro
from tyro.conf import Positional, arg

from dice.commands.arguments import TYPES, numbers, verifier_maker
from dice.errors import UserError

if TYPE_CHECKING:
    from dice.train.config import SFTConfig
    from dice.train.rl.config import RLConfig

Config = TypeVar("Config")
Flags = Annotated[Positional[tuple[str, ...]], arg(metavar="[--recipe NAME] [--FIELD VALUE]")]
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C ended


@dataclass
class Sft:
    """Supervised fine-tuning by block diffusion (paper Eq. 2).

    Example: dice train sft --recipe tiny_sft --data corpus/train --tokenizer corpus/tokenizer --out run
    """

    flags: Flags = ()
    """A named configuration (dice/recipes.py), then any of its fields; `dice train sft --help` lists them."""

    def run(self) -> int:
        from dice.recipes import ADAPT_RECIPES, SFT_RECIPES
        from dice.train.sft import train_sft

        # A model that writes in blocks already may be trained on as those are that only begin to.
        config = configure(Sft, "sft", self.flags, SFT_RECIPES | ADAPT_RECIPES, "nano_sft")
        if _starts_others(config.check().hosts):
            return _on_hosts("sft", self.flags, config)
        result = train_sft(config)
        return _end(result.step, result.reason, result.model)


@dataclass
class Rl:
    """Reinforcement learning on traces, kernels verified as they are written (BiC-RL, paper section 4.2).

    Example: dice train rl --recipe tiny_rl --model run/model --data rl-data --out rl
    """

    flags: Flags = ()
    """A named configuration (dice/recipes.py), then any of its fields; `dice train rl --help` lists them."""

    def run(self) -> int:
        from dice.recipes import RL_RECIPES
        from dice.train.rl.loop import train_rl

        config = configure(Rl, "rl", self.flags, RL_RECIPES, "nano_rl")
        if _starts_others(config.check().hosts):
            return _on_hosts("rl", self.flags, config)
        if not config.cluster:
            result = train_rl(config)
        else:
            verifier_maker(config.cluster, config.mixed_hosts)  # says at once where there is no cluster
            from dice.cluster.training import train_on_cluster

            result = train_on_cluster(config)
        return _end(result.step, result.reason, result.model)


@dataclass
class Adapt:
    """Turn an autoregressive Llama or Qwen into a block-diffusion model, by continued training under the block mask.

    Example: dice train adapt --model SmolLM2.gguf --data corpus/train --out adapted
    """

    flags: Flags = ()
    """A named configuration (dice/recipes.py), then any of its fields; `dice train adapt --help` lists them."""

    def run(self) -> int:
        from dice.recipes import ADAPT_RECIPES
        from dice.train.sft import train_adapted

        config = configure(Adapt, "adapt", self.flags, ADAPT_RECIPES, "adapt")
        if _starts_others(config.check().hosts):
            return _on_hosts("adapt", self.flags, config)
        result = train_adapted(config)
        return _end(result.step, result.reason, result.model)


def configure(
    command: type, name: str, flags: tuple[str, ...], recipes: Mapping[str, Callable[[], Config]], usual: str
) -> Config:
    """`--recipe NAME`, by default the `usual` one, then the fields of that recipe; `--help` lists them with its
    values."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--recipe", default=usual)
    chosen, rest = chooser.parse_known_args(flags)
    if chosen.recipe not in recipes:
        names = ", ".join(recipes)
        raise UserError(f"there is no recipe {chosen.recipe!r}; the {name.upper()} recipes are {names}.")
    default = recipes[chosen.recipe]()
    prog = f"dice train {name} --recipe {chosen.recipe}"
    # Without this, an optional group such as `shape` would be a subcommand and not `--shape.hidden-size`.
    flat = (tyro.conf.AvoidSubcommands,)
    description = f"{command.__doc__}\n\nRecipes: {', '.join(recipes)}."
    config = tyro.cli(
        type(default), default=default, args=rest, prog=prog, description=description, config=flat, registry=TYPES
    )
    numbers(config)
    return config


def _starts_others(hosts: int) -> bool:
    """Whether this is the command that a person gave, and not one of the processes that it started on `hosts`."""
    return hosts > 0 and "RANK" not in os.environ


def _on_hosts(stage: str, flags: Sequence[str], config: SFTConfig | RLConfig) -> int:
    from dice.cluster.connect import connect

    connect(config.cluster)  # before what needs Ray to be imported
    from dice.cluster.trainers import train_on_hosts

    return train_on_hosts(config.cluster, ["train", stage, *flags], config.hosts, config.per_host, config.device)


def _end(step: int, reason: str, model: object) -> int:
    from dice.train.session import BY_HAND

    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, one speaks
        print(f"step {step}, {reason}; model in {model}")
    return INTERRUPTED if reason == BY_HAND else 0
