"""`SFTConfig`: everything a supervised fine-tuning run depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dice.errors import UserError
from dice.model.sdar import SDARConfig
from dice.train.noise import Noise
from dice.train.optimizer import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a model trained from scratch; names as in `SDARConfig`. The tokenizer gives the vocabulary."""

    family: Literal["sdar", "qwen3"] = "sdar"
    """sdar learns block diffusion; qwen3 is the same transformer, learning to predict the next token."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 8192
    rope_theta: float = 1e4

    def for_timing(self, vocab_size: int, block_size: int) -> SDARConfig:
        """A model of these sizes for measurements, which need no tokenizer: the last token is the mask."""
        return SDARConfig(vocab_size=vocab_size, mask_token_id=vocab_size - 1, block_size=block_size, **asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTConfig:
    """Block-diffusion SFT (paper Eq. 2), or next-token SFT of a qwen3 model. Named configurations: `dice/recipes.py`.

    A row is a packed training sequence of `row_tokens` clean tokens; the model reads it twice, noisy and clean.
    One optimiser step covers `batch_rows` rows, run at most `micro_rows` at a time and dealt over the processes that
    torchrun started; neither changes the result.
    """

    data: Path | None = None
    """Parquet or JSONL with prompt/response (or messages, or text), or a folder of such files."""
    out: Path | None = None
    """Run folder. A run that was stopped resumes here."""
    eval_data: Path | None = None
    """Held-out pairs for the validation loss."""
    model: str | None = None
    """Checkpoint to start from (folder, hub id or nano; to adapt, also a .gguf file). Without one, a model of `shape`
    is trained from scratch."""
    shape: ModelShape | None = None
    """Sizes of a new model; a recipe's count only without `model`, so that any recipe can go on from a checkpoint."""
    tokenizer: Path | None = None
    """Tokenizer folder; default: that of `model`."""

    block_size: int | None = None
    """Tokens per block; default: that of `model`, 4 for a new one. A qwen3 model has no blocks, nor noise."""
    noise: Noise = "block"
    """t per block (Eq. 2), per sample (the released code), or integrated out (count): see dice/train/noise.py."""
    t_min: float = 1e-3
    """Range of t; weights are at most 1/t_min. Not for `count`, which has no t."""
    t_max: float = 1.0
    stratified: bool = True
    """Spread the draws of t evenly over a batch."""
    response_prefix: str = ""
    """Put before each response without a `<think>` of its own, and trained with it; SDAR's chat models expect an empty
    thought there."""

    learn: Literal["responses", "all"] = "responses"
    """What is hidden and predicted: responses, or prompts too, as in continued pretraining. Of texts without a prompt
    it is all."""

    row_tokens: int = 2048
    max_sample_tokens: int | None = None
    """Longer documents are dropped; default: row_tokens."""
    batch_rows: int = 32
    micro_rows: int = 8

    epochs: float | None = None
    """Length of the run: this many passes over the rows, or `max_steps`."""
    max_steps: int | None = None
    max_seconds: float | None = None
    """End, and anneal the schedule, by this training time over all chunks if it comes before `max_steps`."""
    stop_after_seconds: float | None = None
    """End this chunk cleanly, with a checkpoint, this long after its start; the next call goes on."""

    lr: float = 1e-5
    schedule: Schedule = "constant_with_warmup"
    warmup: float = 0.03
    """Share of the run."""
    lr_floor: float = 0.0
    """Final learning rate of the cosine schedule, as a share of the peak."""
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    """On matrices only, not on norm scales."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """How AdamW's moments are kept; bfloat16, rounded at random, takes half the memory."""
    clip: float = 1.0
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is validated and exported."""

    lora_rank: int | None = None
    """Train adapters of this rank beside every projection (LoRA, needs peft) instead of the weights. What is exported
    has them merged in."""
    lora_alpha: float = 32.0
    """Adapters count alpha / rank times."""

    device: str = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Compute in bf16 on copies of float32 master weights, or all in float32; auto: bf16 on CUDA."""
    attention: Literal["auto", "flex", "dense"] = "auto"
    """FlexAttention or a dense mask; auto: FlexAttention on CUDA if it passes its check there, else dense."""
    compile: bool | None = None
    """torch.compile each transformer block; default: on CUDA, where a failure falls back to eager."""
    activation_checkpointing: Literal["auto", "none", "ffn", "block"] = "none"
    """What is computed again in the backward pass instead of being kept: nothing, the feed-forward half of each block
    (less memory, a fifth more work), or the whole block (least memory, a third more work). auto: on a GPU as little as
    its memory asks for, by the plan that `dice plan` prints."""
    recompute_layers: int | None = None
    """Only in this many blocks, the first ones; default: in all, and auto chooses."""
    reshard: bool = True
    """Several processes share the weights (FSDP2). True: a block's gathered weights are freed after its forward pass
    and gathered again for the backward one; False: all are gathered at once and kept, which is faster for small models
    and takes the memory of a whole one."""
    sharding: Literal["all", "host"] = "all"
    """all: the weights are split over all processes. host: over those of each host, which then has a copy of its own
    (HSDP): less goes from host to host, and each GPU holds more."""
    cluster: str = ""
    """Train on hosts of a Ray cluster: HOST:PORT of its head, or auto for the one that this machine is of. Data and
    `out` must be the same folders on all of them."""
    hosts: int = 0
    """With `cluster`: how many. After a loss the run goes on by itself, on fewer where no other is left."""
    per_host: int = 0
    """With `hosts`: processes on each, a GPU each; default: as many as every host has GPUs, one without GPUs."""
    export_dtype: Literal["float32", "bfloat16"] = "bfloat16"

    seed: int = 0
    log_every: int = 10
    eval_every: int = 200
    eval_rows: int = 64
    """At most this many rows of `eval_data`."""
    exec_data: Path | None = None
    """Problems (a folder or a table) to write kernels for now and then, greedily; val_exec is the right share."""
    exec_every: int = 1000
    """Steps between two such trials; there is one more at the end."""
    exec_problems: int = 32
    """At most this many, the first ones."""
    exec_batch: int = 16
    """Decoded at once by a process; each takes memory for the keys and values of its whole text."""
    exec_backend: Literal["auto", "cuda", "emulated"] = "auto"
    exec_max_new_tokens: int = 2048
    checkpoint_every: int = 1000
    checkpoint_seconds: float = 120.0
    """Checkpoint at either interval, whichever comes first."""
    keep_checkpoints: int = 2
    final_checkpoint: Literal["full", "weights"] = "full"
    """full: a finished run can be made longer. weights: its last checkpoint leaves out the moments, two thirds of
    it."""

    def check(self) -> SFTConfig:
        """Return self, or raise `UserError` naming the first setting that cannot work."""
        if self.data is None or self.out is None:
            raise UserError("Training needs `data` (pairs to learn) and `out` (the run folder).")
        if self.model is None and self.shape is None:
            raise UserError("Give either `model` (a checkpoint to start from) or `shape` (sizes of a new model).")
        if self.model is None and self.tokenizer is None:
            raise UserError("A new model needs a `tokenizer` folder; `dice data tokenizer` makes one.")
        if (self.epochs is None) == (self.max_steps is None):
            raise UserError("Give the length of the run as either `epochs` or `max_steps`.")
        if not 0 <= self.t_min < self.t_max <= 1:
            raise UserError(f"t_min {self.t_min} and t_max {self.t_max} must satisfy 0 <= t_min < t_max <= 1.")
        if self.noise == "count" and (self.t_min, self.t_max) != (1e-3, 1.0):
            raise UserError("noise=count integrates over all t; t_min and t_max go with noise=block or noise=sample.")
        positive: tuple[str, ...] = ("row_tokens", "batch_rows", "micro_rows", "lr", "clip", "log_every", "eval_every")
        positive += ("eval_rows", "lora_alpha", "exec_every", "exec_problems", "exec_batch", "exec_max_new_tokens")
        positive += ("checkpoint_every", "checkpoint_seconds", "keep_checkpoints", "epochs", "max_steps", "block_size")
        positive += ("recompute_layers",)
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} must be positive, not {value}.")
        if self.batch_rows % self.micro_rows:
            raise UserError(f"batch_rows {self.batch_rows} must be a multiple of micro_rows {self.micro_rows}.")
        if self.lora_rank is not None and (self.lora_rank < 1 or self.model is None):
            raise UserError(f"lora_rank {self.lora_rank} must be positive, and goes with a `model` to start from.")
        if bool(self.cluster) != bool(self.hosts):
            raise UserError("`cluster` and `hosts`, how many of its hosts train, go together.")
        if min(self.hosts, self.per_host) < 0 or (self.per_host and not self.hosts):
            raise UserError("hosts and per_host, the processes on each of them, must be positive and go together.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(f"ema must lie between 0 and 1, not {self.ema}.")
        return self

    def to_json(self) -> dict[str, object]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}
