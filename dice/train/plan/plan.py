"""What a run needs of so many GPUs, and the settings that fit: memory, disk and time, each figure with its source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from dice.model.sdar import SDARConfig
from dice.train.blocks import Recompute
from dice.train.config import SFTConfig
from dice.train.plan.disk import DiskNeed
from dice.train.plan.flops import recomputed_flops, training_flops
from dice.train.plan.gpus import (
    DECODED_PARAMETERS,
    DECODED_TOKENS_PER_S,
    GPU,
    GPUS,
    RL_SOURCE,
    SMALL_PARAMETERS,
    SMALL_SOURCE,
    SMALL_TOKENS_PER_S,
    UPDATE_OF_SFT,
    VERDICTS_PER_S,
    utilisation,
)
from dice.train.plan.memory import BESIDE_KERNELS, PREDICTED, USABLE, Layout, Memory, least_recompute, parameters
from dice.train.rl.config import RLConfig
from dice.train.sft_objective import micro_rows

Moments = Literal["float32", "bfloat16"]
MOST_GPUS = 64  # how far it is searched for what would fit
PROMPT_TOKENS = 1500  # of a one-shot prompt
ROUNDS = 2  # rounds of denoising that a block of an answer took
FEWEST_TEXTS = 8  # at once, for which decoding must have room


@dataclass(frozen=True, slots=True)
class Setting:
    """What is to be set so that a run fits."""

    micro_rows: int
    moments: Moments
    activation_checkpointing: str
    recompute_layers: int | None

    def flags(self, group: str = "") -> str:
        named = {name: value for name, value in asdict(self).items() if value is not None}
        return " ".join(f"--{group}{name.replace('_', '-')} {value}" for name, value in named.items())


@dataclass(frozen=True, slots=True)
class Cluster:
    """`gpus` on each of `nodes` machines."""

    gpu: GPU
    gpus: int
    nodes: int

    @property
    def size(self) -> int:
        return self.gpus * self.nodes

    @property
    def usable(self) -> float:
        return self.gpu.memory * USABLE

    def sharing(self, sharding: Literal["all", "host"]) -> int:
        """GPUs that the weights are split over."""
        return self.gpus if sharding == "host" else self.size

    def __str__(self) -> str:
        return f"{self.size} x {self.gpu.name}" + (f" on {self.nodes} machines" if self.nodes > 1 else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """`memory`: bytes on each GPU, by phase and part. `time`: seconds and rates. `assumed`: what is not in the recipe
    and was supposed. `advice`: where it does not fit, what would."""

    cluster: Cluster
    parameters: int
    setting: Setting
    fits: bool
    memory: dict[str, dict[str, float]]
    disk: DiskNeed
    host: float
    time: dict[str, float]
    assumed: list[str]
    sources: list[str]
    advice: list[str]

    @property
    def peak(self) -> float:
        return max(sum(parts.values()) for parts in self.memory.values())

    def to_json(self) -> dict[str, Any]:
        disk = asdict(self.disk) | {"peak": self.disk.peak, "least": self.disk.least}
        peak = {"peak": self.peak, "usable": self.cluster.usable}
        return asdict(self) | {"disk": disk, "memory": self.memory | peak}


def plan_sft(config: SFTConfig, model: SDARConfig, cluster: Cluster, data_tokens: float | None = None) -> Plan:
    """`data_tokens`: clean tokens of the data, from which the length of a run in epochs follows. Raises `UserError`
    where the batch cannot be dealt over so many GPUs."""
    rows = micro_rows(config, cluster.size)
    copies = 1 if model.traits.kind == "autoregressive" else 2
    base = Layout(
        config=model, gpus=cluster.sharing(config.sharding), tokens=rows * config.row_tokens * copies,
        moments=config.moments, average=config.ema is not None, gathered=not config.reshard,
    )  # fmt: skip
    setting, recompute, needed = _choose(base, rows, cluster.usable)
    count = parameters(model)
    tokens = copies * config.batch_rows * config.row_tokens
    context = config.row_tokens / 4
    needed_flops = training_flops(model, tokens=tokens, pairs=tokens * context, predicted=tokens * PREDICTED)
    done = needed_flops + recomputed_flops(model, recompute, tokens=tokens, pairs=tokens * context)
    share, sources = utilisation(model.hidden_size, cluster.size)
    parts = config.batch_rows // setting.micro_rows
    busy = parts / (math.ceil(parts / cluster.size) * cluster.size)
    seconds = done / (share * busy * cluster.gpu.flops * cluster.size)
    time = {
        "step_s": seconds, "clean_tokens_per_s": config.batch_rows * config.row_tokens / seconds,
        "mfu": needed_flops / seconds / (cluster.gpu.flops * cluster.size),
    }  # fmt: skip
    steps = config.max_steps
    if steps is None and data_tokens is not None and config.epochs is not None:
        steps = math.ceil(data_tokens * config.epochs / (config.batch_rows * config.row_tokens))
    if steps is not None:
        time |= {"steps": steps, "run_s": steps * seconds}
    stored = count * (4 + 2 * (2 if setting.moments == "bfloat16" else 4) + (4 if base.average else 0))
    last = count * (8 if base.average else 4) if config.final_checkpoint == "weights" else stored
    during = None if steps is None else (steps - 1) // config.checkpoint_every
    disk = DiskNeed(stored, last, count * _width(config.export_dtype), config.keep_checkpoints, during)
    return Plan(
        cluster, count, setting, needed.total <= cluster.usable, {"training": asdict(needed)}, disk,
        stored / cluster.nodes, time, [f"documents of {context:,.0f} tokens before a token on average"], sources,
        [] if needed.total <= cluster.usable else _advice(base, rows, cluster),
    )  # fmt: skip


def plan_rl(config: RLConfig, model: SDARConfig, cluster: Cluster) -> Plan:
    """A step: answers, supposed to be half as long as allowed, are decoded and verified, and then learned from."""
    policy, count, gpus = config.policy, parameters(model), cluster.size
    answer = config.max_new_tokens / 2
    copies = 1 + -(-model.block_size // policy.shrink)
    row = max(policy.row_tokens, PROMPT_TOKENS + copies * (config.max_new_tokens + model.block_size))
    base = Layout(
        config=model, gpus=cluster.sharing(policy.sharding), tokens=policy.micro_rows * row, moments=policy.moments,
        reference=config.reference == "initial" and policy.kl_coef > 0,
    )  # fmt: skip
    setting, *_ = _choose(base, policy.micro_rows, cluster.usable)
    layout = replace(base, tokens=base.tokens // policy.micro_rows * setting.micro_rows, moments=setting.moments)
    recompute, needed = least_recompute(layout, cluster.gpu.memory * BESIDE_KERNELS)
    setting = Setting(setting.micro_rows, setting.moments, recompute.part, recompute.layers)
    cached = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * 2
    each = (PROMPT_TOKENS + config.max_new_tokens) * cached
    resident = {name: value for name, value in asdict(needed).items() if name in ("weights", "moments", "average")}
    resident["copies"] = count * 2.0 + (count * 2 / gpus if base.reference else 0.0)
    room = max(0.0, cluster.usable - sum(resident.values()))
    texts = min(config.max_active, -(-config.problems * config.responses // gpus))
    decoding = resident | {"cache": max(min(texts * each, room), FEWEST_TEXTS * each)}
    time, sources = _rl_time(config, model, cluster, recompute, answer)
    fits = max(needed.total, sum(decoding.values())) <= cluster.usable
    stored = count * (4 + 2 * (2 if setting.moments == "bfloat16" else 4))
    return Plan(
        cluster, count, setting, fits, {"decoding": decoding, "update": asdict(needed)},
        DiskNeed(stored, stored, count * _width(config.export_dtype), config.keep_checkpoints), stored / cluster.nodes,
        time | {"texts_at_once": min(texts, decoding["cache"] // each)},
        [
            f"prompts of {PROMPT_TOKENS:,} tokens", f"answers of {answer:,.0f} tokens", "every answer is learned from",
            f"{ROUNDS} rounds of denoising for a block",
        ],
        sources, [] if fits else _advice(base, policy.micro_rows, cluster),
    )  # fmt: skip


def _rl_time(
    config: RLConfig, model: SDARConfig, cluster: Cluster, recompute: Recompute, answer: float
) -> tuple[dict[str, float], list[str]]:
    """Seconds of a step by what they go to. Verification goes on beside decoding, and beside the update where samples
    need no scoring: what it takes longer is `wait`."""
    answers, count = config.problems * config.responses, parameters(model)
    source = RL_SOURCE if count >= SMALL_PARAMETERS else SMALL_SOURCE
    rate = DECODED_TOKENS_PER_S * DECODED_PARAMETERS / count * cluster.gpu.bandwidth / GPUS["h200"].bandwidth
    if count < SMALL_PARAMETERS:  # where the time goes to launching, and not to reading weights
        rate = SMALL_TOKENS_PER_S
    decode = answers * answer / (rate * cluster.size)
    verify = answers / (VERDICTS_PER_S * cluster.nodes)
    tokens = config.problems * PROMPT_TOKENS + answers * answer * (1 + ROUNDS)
    pairs = tokens * (PROMPT_TOKENS + answer / 2)
    needed = training_flops(model, tokens=tokens, pairs=pairs, predicted=answers * answer)
    share, sources = utilisation(model.hidden_size, cluster.size)
    done = needed + recomputed_flops(model, recompute, tokens=tokens, pairs=pairs)
    update = done / (share * UPDATE_OF_SFT * cluster.gpu.flops * cluster.size)
    waits_for_all = config.policy.old_logprobs == "score" or config.speed_reward > 0
    wait = max(0.0, verify - decode - (0.0 if waits_for_all else update))
    step = decode + wait + update
    time = {
        "decode_s": decode, "verify_s": verify, "wait_s": wait, "update_s": update, "step_s": step,
        "update_mfu": needed / update / (cluster.gpu.flops * cluster.size), "steps": config.steps,
        "run_s": config.steps * step,
    }  # fmt: skip
    return time, list(dict.fromkeys((*sources, source, RL_SOURCE)))


def _choose(base: Layout, rows: int, usable: float) -> tuple[Setting, Recompute, Memory]:
    """The least recomputation that fits; smaller moments, and then fewer rows at a time, only where nothing else
    does."""
    found: tuple[Setting, Recompute, Memory] | None = None
    for moments, part in _candidates(base.moments, rows):
        layout = replace(base, tokens=base.tokens // rows * part, moments=moments)
        recompute, needed = least_recompute(layout, usable)
        setting = Setting(part, moments, recompute.part, recompute.layers)
        if needed.total <= usable:
            return setting, recompute, needed
        if found is None or needed.total < found[2].total:
            found = setting, recompute, needed
    assert found is not None
    return found


def _candidates(moments: str, rows: int) -> Iterator[tuple[Moments, int]]:
    kinds: tuple[Moments, ...] = ("bfloat16",) if moments == "bfloat16" else ("float32", "bfloat16")
    for kind in kinds:
        for part in range(rows, 0, -1):
            if rows % part == 0:
                yield kind, part


def _advice(base: Layout, rows: int, cluster: Cluster) -> list[str]:
    """What would hold the training of the model: more GPUs of the kind, or others."""
    advice = []
    for gpus in range(cluster.size + 1, MOST_GPUS + 1):
        setting, _, needed = _choose(replace(base, gpus=gpus), rows, cluster.usable)
        if needed.total <= cluster.usable:
            advice.append(f"{gpus} x {cluster.gpu.name}, with {setting.flags()}")
            break
    for gpu in GPUS.values():
        setting, _, needed = _choose(base, rows, gpu.memory * USABLE)
        if gpu.memory > cluster.gpu.memory and needed.total <= gpu.memory * USABLE:
            advice.append(f"{cluster.size} x {gpu.name}, with {setting.flags()}")
    return advice or ["nothing up to 64 such GPUs; make rows shorter"]


def _width(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
