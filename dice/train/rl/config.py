"""`RLConfig`: everything a BiC-RL run depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from dice.errors import UserError
from dice.train.rl.policy import PolicyConfig
from dice.verify.options import Protocol

Stage = Literal["infill", "generate"]
Order = Literal["scheduled", "sequential", "shuffled", "adaptive"]
InfillForm = Literal["scaffold", "whole"]
InfillPromptForm = Literal["plain", "with_example", "released"]
PromptForm = Literal["auto", "one-shot", "compact"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RLConfig:
    """Bi-phase curated RL (paper section 4.2, appendix A.4.2). Named configurations are in `dice/recipes.py`.

    Under torchrun, one process for each GPU of a machine shares the work; a run may go on with another number of them.
    A step draws `problems` problems, samples `responses` kernels for each, verifies them, and updates the policy on
    their traces. The first `infill_steps` steps ask for the core of a given kernel, the rest for whole kernels.
    """

    model: str | None = None
    """Checkpoint to start from: a folder, hub id or nano; normally what SFT exported."""
    out: Path | None = None
    """Run folder. A run that was stopped resumes here."""
    infill_data: Path | None = None
    """Kernels with their core set apart, as `dice data rl` writes them (kernel_infilling.parquet or .json)."""
    generate_data: Path | None = None
    """Problems, as `dice data rl` writes them (kernel_generation.parquet or .json), or a folder of task files."""
    eval_data: Path | None = None
    """Problems in either form, for Exec during training; best such as are not trained on."""

    infill_steps: int = 20
    """Steps of the first stage; 0 leaves it out."""
    generate_steps: int = 100
    """Steps of the second stage; 0 leaves it out."""
    problems: int = 64
    """Problems of a step; fewer where the data has fewer."""
    responses: int = 16
    """Kernels sampled for each problem: the group that rewards are normalised within."""
    order: Order = "scheduled"
    """scheduled: easy to hard in each stage, through a window that slides over all of the data. sequential: from the
    easiest on, one after the other, and from the start again where the data ends, as the released code does. shuffled:
    in no order (the baseline). adaptive: by success rate, those first whose rewards are expected to vary most. No
    recipe uses it yet; it is for corpora without levels."""
    infill_form: InfillForm = "scaffold"
    """scaffold: the model writes the CUDA source alone, between a beginning and an end that it cannot change, so that
    none of the paper's three deceptions can be written. whole: the model writes the whole file, as in the released
    code, and may depart from the given parts."""
    infill_prompt: InfillPromptForm = "plain"
    """How the core is asked for in a one-shot prompt. plain: the one-shot prompt, with the file's beginning and end.
    with_example: its example is cut into beginning, end and whole file too, as in the released code, in our words.
    released: that code's own text, read from `released_code`."""
    released_code: Path | None = None
    """A checkout of github.com/deadlykitten4/DICE, for `infill_prompt` released."""
    prompt: PromptForm = "auto"
    """KernelBench's one-shot prompt, or the compact one that models of ours learn; auto: the one that the model's
    config.json says it was taught, else one-shot."""
    response_prefix: str = ""
    """What the model's own responses begin with (an empty thought, for SDAR's); put before a scaffold's beginning."""

    confidence_threshold: float = 0.9
    """tau of dynamic decoding: a step reveals every token at least this likely."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    max_new_tokens: int = 4096
    """Longest response. Problems whose prompt leaves no room for it are left out, and counted."""
    max_active: int = 64
    """Responses decoded at once, by each process."""
    engine: Literal["auto", "on", "off"] = "auto"
    """Who decodes. on: the engine, in this process and on its weights; it frees its cache before the update. off: the
    plain loop. auto: as everywhere, the engine on a GPU, unless DICE_ENGINE is 0."""
    staleness: Literal[0, 1] = 0
    """0: every response comes from the current weights. 1: a step is decoded while verdicts on the one before are
    awaited, so from weights one update old, which `policy.mismatch_cap` corrects for. It hides the wait for the last
    verdicts, and nothing else."""

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The update: learning rate, clipping, KL penalty, shrinkage s, optimiser (dice/train/rl/policy.py). What it must
    know of decoding (max_new_tokens, temperature, vocab_limit) is filled in; rows are widened if a response may need
    it."""
    reference: Literal["step", "initial"] = "step"
    """What the KL penalty pulls to: the policy at the start of each step, as published, or the model that RL started
    from, which takes the memory of one more model (several processes share it)."""

    backend: Literal["auto", "cuda", "emulated", "emulated_first"] = "auto"
    """Where kernels are verified. emulated_first: on the cores, and on a GPU what emulation does not support or takes
    seconds over, and right kernels that are timed; a GPU that decodes gives some two hundred verdicts a minute."""
    verify_workers: int | None = None
    """Candidates under way at once, of each process; default: as many as may compile and run at a time on its share of
    the machine."""
    verify_devices: tuple[str, ...] | None = None
    """GPUs that kernels run on, as CUDA_VISIBLE_DEVICES names them; default: all that PyTorch sees. Several processes
    deal them out, so that by default the kernels of each run on its own."""
    cluster: str = ""
    """Verify on all hosts of a Ray cluster instead: HOST:PORT of its head, or auto for the one that this machine is of.
    Each of several processes takes its part of the hosts."""
    mixed_hosts: bool = False
    """With `cluster`: hosts may differ in GPU and compiler."""
    engines: int = 0
    """With `cluster`: decode on so many of its GPUs, a process each, instead of here. Kernels run on the others."""
    hosts: int = 0
    """With `cluster`: train on so many of its hosts instead of here. `out`, model and data must be the same folders on
    all of them. After a loss the run goes on by itself, on fewer where no other is left."""
    per_host: int = 0
    """With `hosts`: processes on each, a GPU each; default: as many as every host has GPUs, one without GPUs."""
    protocol: Protocol = "dice"
    """How right is judged, and so what is rewarded. dice: right on hardened inputs, and honest. kernelbench-v0: right
    when executed, as in the paper, whose reward asks nothing else: a deceptive kernel is rewarded. All:
    dice/verify/protocols.py."""
    trials: int = 3
    """Fresh inputs that a kernel must be right on."""
    compile_timeout_s: float = 60.0
    run_timeout_s: float = 30.0
    memory_mb: int = 8192
    """Host memory of a candidate."""
    keep_verdicts: bool = True
    """In the run folder: a kernel that was written before gets the verdict it had, also after a restart."""
    verifier_patience_s: float = 600.0
    """How long a broken verifier is tried again, before the run ends with its last checkpoint kept."""

    speed_reward: float = 0.0
    """Added to a correct kernel's reward, in full from twice the reference's speed on, by the logarithm below. Only the
    lower end of the speed-up's 95% interval counts, and only above 1. No recipe uses it yet: the paper's reward is
    binary and names speed as the next step."""

    provenance: Literal["construction", "any"] = "construction"
    """How it must be known who computed for a correct kernel to be worth anything: by construction, or "any" way. A
    verdict by evidence can be deceived by a file that hides well enough, and training finds such files. Protocols other
    than `dice` do not ask who computed, and go with "any"."""

    eval_every: int = 10
    """Steps between two looks at `eval_data`."""
    eval_problems: int = 64
    """At most this many of them."""
    eval_temperature: float = 0.0

    device: str = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Decode and compute in bf16 on copies of float32 master weights, or all in float32; auto: bf16 on CUDA."""
    export_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    seed: int = 0
    checkpoint_every: int = 1
    """Steps; 1 loses at most the step in flight."""
    keep_checkpoints: int = 2
    stop_after_seconds: float | None = None
    """End this chunk cleanly, with a checkpoint, after the step during which this time is up."""
    stop_at_step: int | None = None
    """End this chunk cleanly when so many steps of the run are done, whoever did them; the next call goes on."""

    @property
    def steps(self) -> int:
        return self.infill_steps + self.generate_steps

    def stage(self, step: int) -> Stage:
        """The stage of step number `step`, counted from 0."""
        return "infill" if step < self.infill_steps else "generate"

    def check(self) -> RLConfig:
        """Return self, or raise `UserError` naming the first setting that cannot work."""
        if self.model is None or self.out is None:
            raise UserError("RL needs `model` (a checkpoint, normally of SFT) and `out` (the run folder).")
        if min(self.infill_steps, self.generate_steps) < 0 or not self.steps:
            raise UserError("infill_steps and generate_steps must not be negative, nor both 0.")
        for stage, steps, data in (
            ("infill", self.infill_steps, self.infill_data),
            ("generate", self.generate_steps, self.generate_data),
        ):
            if steps and data is None:
                raise UserError(f"{stage}_steps is {steps}, so `{stage}_data` is needed; `dice data rl` writes it.")
        if self.responses < 2:
            raise UserError("responses must be at least 2: rewards are compared within a group.")
        if self.max_new_tokens < 1 or self.temperature <= 0:
            raise UserError(
                "max_new_tokens and temperature must be positive: a group of equal answers teaches nothing."
            )
        if min(self.speed_reward, self.eval_temperature) < 0:
            raise UserError("speed_reward and eval_temperature must not be negative.")
        positive = ("problems", "max_active", "trials", "eval_every", "eval_problems", "checkpoint_every")
        for name in (*positive, "keep_checkpoints", "compile_timeout_s", "run_timeout_s", "memory_mb"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}.")
        if self.protocol != "dice" and self.provenance != "any":
            raise UserError(f"protocol {self.protocol} does not ask who computed; it goes with provenance any.")
        if (self.infill_prompt == "released") != (self.released_code is not None):
            raise UserError("infill_prompt released goes with `released_code`, a checkout that has the prompt.")
        if self.infill_prompt != "plain" and self.prompt == "compact":
            raise UserError(f"infill_prompt {self.infill_prompt} goes with one-shot prompts; compact ones are plain.")
        if self.engines < 0 or (self.engines and not self.cluster):
            raise UserError("engines are processes of a cluster, none or some; they go with `cluster`.")
        if min(self.hosts, self.per_host) < 0 or (self.hosts and not self.cluster):
            raise UserError("hosts that train are some of a cluster's; they go with `cluster`.")
        if self.per_host and not self.hosts:
            raise UserError("per_host is how many processes train on each of `hosts`; give them, too.")
        if self.hosts and self.engines:
            raise UserError("engines write for one trainer; those on several hosts decode themselves, a share each.")
        if self.cluster and self.verify_devices:
            raise UserError("verify_devices are GPUs of this machine, and `cluster` has kernels run on others.")
        if self.verify_workers is not None and self.verify_workers < 1:
            raise UserError("verify_workers must be at least 1.")
        if self.backend == "emulated_first" and self.cluster:
            raise UserError("backend emulated_first goes without a cluster; its hosts have backends of their own.")
        if self.policy.old_logprobs == "trace" and (self.staleness or self.top_p < 1 or self.top_k):
            raise UserError("policy.old_logprobs trace goes with staleness 0, top_p 1 and top_k 0.")
        self.policy.check()
        return self

    def to_json(self) -> dict[str, object]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}
