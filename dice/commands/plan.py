"""`dice plan RECIPE`: what a run will need of a GPU's memory, of disk and of time, before it starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from dice.commands.arguments import at_least
from dice.errors import UserError

if TYPE_CHECKING:
    from dice.model.sdar import SDARConfig
    from dice.train.config import SFTConfig
    from dice.train.plan.plan import Plan
    from dice.train.rl.config import RLConfig


@dataclass
class PlanCommand:
    """Predict memory, disk and time of a training run, and choose the settings that fit.

    Example: dice plan dice_8b_sft --gpus 2
    """

    recipe: Annotated[Positional[str], arg(metavar="RECIPE", help_behavior_hint="")]
    """A named configuration of `dice train sft` or `dice train rl`."""
    gpus: int = 1
    """GPUs of each machine."""
    nodes: int = 1
    """Machines."""
    gpu: str = "h200"
    """h200, h100 or a100 (80 GB)."""
    model: str | None = None
    """Another model than the recipe's: a folder, or a size such as 4b."""
    row_tokens: int | None = None
    """Another length of rows than the recipe's."""
    batch_rows: int | None = None
    """Another batch than the recipe's (SFT)."""
    micro_rows: int | None = None
    """Other rows at a time than the recipe's."""
    moments: Literal["float32", "bfloat16"] | None = None
    """Other moments than the recipe's."""
    data_tokens: float | None = None
    """Clean tokens of the data: tells how long a recipe's epochs take (SFT)."""
    json: bool = False
    """Print the plan as JSON, in bytes and seconds."""

    def run(self) -> int:
        from dice.recipes import RL_RECIPES, SFT_RECIPES
        from dice.train.plan.gpus import gpu_named
        from dice.train.plan.plan import Cluster, plan_rl, plan_sft

        at_least(
            1, gpus=self.gpus, nodes=self.nodes, row_tokens=self.row_tokens, batch_rows=self.batch_rows,
            micro_rows=self.micro_rows,
        )  # fmt: skip
        if self.data_tokens is not None and self.data_tokens <= 0:
            raise UserError(f"--data-tokens must be positive, not {self.data_tokens:g}.")
        cluster = Cluster(gpu_named(self.gpu), self.gpus, self.nodes)
        if self.recipe in SFT_RECIPES:
            config = self._changed_sft(SFT_RECIPES[self.recipe]())
            plan = plan_sft(config, self._shape(config.model, config), cluster, self.data_tokens)
        elif self.recipe in RL_RECIPES:
            if self.batch_rows or self.data_tokens:
                raise UserError("--batch-rows and --data-tokens are for recipes of SFT.")
            rl = self._changed_rl(RL_RECIPES[self.recipe]())
            plan = plan_rl(rl, self._shape(rl.model), cluster)
        else:
            raise UserError(f"there is no recipe {self.recipe!r}; there are {', '.join([*SFT_RECIPES, *RL_RECIPES])}.")
        print(json.dumps(plan.to_json()) if self.json else _text(self.recipe, plan))
        return 0 if plan.fits else 1

    def _changed_sft(self, config: SFTConfig) -> SFTConfig:
        asked: dict[str, object] = {"row_tokens": self.row_tokens, "micro_rows": self.micro_rows}
        asked |= {"batch_rows": self.batch_rows, "moments": self.moments}
        return replace(config, **{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]

    def _changed_rl(self, config: RLConfig) -> RLConfig:
        asked: dict[str, object] = {"row_tokens": self.row_tokens, "micro_rows": self.micro_rows}
        asked["moments"] = self.moments
        changes = {name: value for name, value in asked.items() if value is not None}
        return replace(config, policy=replace(config.policy, **changes))  # type: ignore[arg-type]

    def _shape(self, model: str | None, config: SFTConfig | None = None) -> SDARConfig:
        """Of `--model`, else of the recipe: its checkpoint's or, without asking the hub, what its name says."""
        from pathlib import Path

        from dice.model.checkpoint import read_config, resolve_model
        from dice.model.sdar import SDARConfig
        from dice.recipes import SHAPES

        name = self.model or model or self.recipe.replace("_", "-").replace("1-7b", "1.7b")
        if name == "nano" or Path(name).is_dir():
            return read_config(resolve_model(name))
        shape, vocabulary = next((found for key, found in SHAPES.items() if key in name.lower()), (None, 0))
        if config is not None and config.shape is not None and self.model is None:
            shape = config.shape
            vocabulary = next((size for one, size in SHAPES.values() if one == shape), 2048)
        if shape is None:
            sizes = ", ".join(SHAPES)
            raise UserError(f"There is no model folder {name}, and its name holds none of the sizes {sizes}.")
        return SDARConfig(vocab_size=vocabulary, mask_token_id=vocabulary - 1, **asdict(shape))


def _text(recipe: str, plan: Plan) -> str:
    from dice.train.plan.disk import size
    from dice.train.runlog import duration

    verdict = "fits" if plan.fits else "does not fit"
    lines = [f"{recipe}, {plan.parameters / 1e6:,.0f} million parameters, on {plan.cluster}: {verdict}."]
    for phase, parts in plan.memory.items():
        split = ", ".join(f"{name} {size(value)}" for name, value in parts.items() if value)
        lines.append(f"Memory of each GPU, {phase}: {size(sum(parts.values()))} ({split})")
    lines.append(f"  of {size(plan.cluster.gpu.memory)}, {size(plan.cluster.usable)} of them usable")
    lines.append(f"Host memory of each machine while a checkpoint is written: {size(plan.host)}")
    lines.append(f"Needs up to {plan.disk}")
    group = "policy." if "update" in plan.memory else ""
    lines.append(f"Settings: {plan.setting.flags(group)}")
    if plan.fits:
        lines.append(f"Time: {_time(plan.time)}")
        if "run_s" in plan.time:
            lines.append(f"The run: {plan.time['steps']:,.0f} steps, {duration(plan.time['run_s'])}")
    lines += [f"What would fit: {one}" for one in plan.advice]
    lines.append(f"Supposed: {'; '.join(plan.assumed)}")
    lines += [f"Measured before: {source}" for source in plan.sources]
    return "\n".join(lines)


def _time(time: dict[str, float]) -> str:
    shown = [f"a step {time['step_s']:,.3g} s"]
    parts = [f"{part} {time[f'{part}_s']:,.3g} s" for part in ("decode", "wait", "update") if f"{part}_s" in time]
    if parts:
        shown[0] += f" ({', '.join(parts)}; verifying {time['verify_s']:,.3g} s beside it)"
        shown.append(f"{time['texts_at_once']:,.0f} texts at once on a GPU")
    if "clean_tokens_per_s" in time:
        shown.append(f"{time['clean_tokens_per_s']:,.0f} clean tokens/s")
    shown.append(f"MFU {time.get('mfu', time.get('update_mfu', 0.0)):.1%}")
    return ", ".join(shown)
