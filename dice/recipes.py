"""Named configurations: functions that return a dataclass. `data`, `out` and the like are for the caller to fill in.

`paper_*` are the paper's settings, `dice_*` the best that we know; docs/recipes.md lists every difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dice.train.config import ModelShape, SFTConfig
from dice.train.rl.config import RLConfig
from dice.train.rl.policy import PolicyConfig

# SDAR's chat models write a thought first; the training code released with them puts an empty one before responses
# that have none.
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


NANO = ModelShape(
    hidden_size=384, intermediate_size=768, num_hidden_layers=6,
    num_attention_heads=6, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
)  # fmt: skip
MINI = ModelShape(
    hidden_size=768, intermediate_size=2048, num_hidden_layers=14,
    num_attention_heads=12, num_key_value_heads=4, head_dim=64, max_position_embeddings=4096,
)  # fmt: skip
TINY = ModelShape(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=1024,
)  # fmt: skip


def _sdar(hidden_size: int, intermediate_size: int, layers: int, heads: int) -> ModelShape:
    return ModelShape(
        hidden_size=hidden_size, intermediate_size=intermediate_size, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, max_position_embeddings=32768, rope_theta=1e6,
    )  # fmt: skip


# Sizes and vocabulary by name, for measuring with random weights.
SHAPES: dict[str, tuple[ModelShape, int]] = {
    "tiny": (TINY, 512),
    "nano": (NANO, 2048),
    "mini": (MINI, 8192),
    "1.7b": (_sdar(2048, 6144, 28, 16), 151936),
    "4b": (_sdar(2560, 9728, 36, 32), 151936),
    "8b": (_sdar(4096, 12288, 36, 32), 151936),
}


def nano_sft() -> SFTConfig:
    """The shipped 9M-parameter model, from scratch: 64k clean tokens a step, some 8 minutes of one H100.

    `count` noise is Equation 2 with t integrated out: at 4 tokens a block it has the same gradient on average with
    weights of at most 4, where t per block reaches 1000. Nothing is clipped away and every block trains every time.
    """
    return SFTConfig(
        shape=NANO,
        block_size=4, noise="count", row_tokens=2048, batch_rows=32, micro_rows=32, reshard=False,
        max_steps=8000, lr=2e-3, schedule="cosine", warmup=0.02, lr_floor=0.02, weight_decay=0.1, ema=0.998,
        log_every=20, eval_every=250, eval_rows=64, checkpoint_every=100_000, checkpoint_seconds=60.0,
    )  # fmt: skip


def mini_sft() -> SFTConfig:
    """A model of 100M parameters from scratch, with a tokenizer of 8,192: 64k clean tokens a step, on one GPU or up to
    eight. At this size a step is short: all weights are gathered at once.
    """
    return SFTConfig(
        shape=MINI,
        block_size=4, noise="count", row_tokens=2048, batch_rows=32, micro_rows=16, reshard=False,
        max_steps=5120, lr=1e-3, schedule="cosine", warmup=0.02, lr_floor=0.02, weight_decay=0.1, ema=0.998,
        log_every=20, eval_every=500, eval_rows=64, exec_every=2000, exec_problems=64, exec_batch=64,
        checkpoint_every=100_000, checkpoint_seconds=300.0,
    )  # fmt: skip


def tiny_sft() -> SFTConfig:
    """Seconds on a CPU: for tests and for seeing the chain work."""
    return SFTConfig(
        shape=TINY,
        block_size=4, noise="count", row_tokens=256, batch_rows=4, micro_rows=4,
        max_steps=60, lr=5e-3, schedule="cosine", warmup=0.1, weight_decay=0.01, ema=None,
        log_every=10, eval_every=20, eval_rows=4, checkpoint_every=20, export_dtype="float32",
    )  # fmt: skip


def paper_1_7b_sft() -> SFTConfig:
    """The paper's SFT of SDAR-1.7B-Chat: lr 1e-5, 3 epochs (A.4.1), per-GPU batch 2 on 8 GPUs, rows of 6144 tokens.

    What the paper's text leaves open is as in the released code; where the two differ it is the text (docs/recipes.md).
    Started by torchrun. On fewer GPUs each takes more micro-batches of the same batch.
    """
    return _paper_sft("JetLM/SDAR-1.7B-Chat", batch_rows=16, micro_rows=2)


def paper_4b_sft() -> SFTConfig:
    """The paper's SFT of SDAR-4B-Chat: as for 1.7B with a per-GPU batch of 1."""
    return _paper_sft("JetLM/SDAR-4B-Chat", batch_rows=8, micro_rows=1)


def paper_8b_sft() -> SFTConfig:
    """The paper's SFT of SDAR-8B-Chat: as for 4B."""
    return _paper_sft("JetLM/SDAR-8B-Chat", batch_rows=8, micro_rows=1)


def dice_1_7b_sft() -> SFTConfig:
    """Our SFT of SDAR-1.7B-Chat: the paper's, with the noise of less variance that has the same mean gradient."""
    return _dice_sft(paper_1_7b_sft())


def dice_4b_sft() -> SFTConfig:
    """Our SFT of SDAR-4B-Chat: as for 1.7B."""
    return _dice_sft(paper_4b_sft())


def dice_8b_sft() -> SFTConfig:
    """Our SFT of SDAR-8B-Chat: as for 1.7B."""
    return _dice_sft(paper_8b_sft())


def adapt() -> SFTConfig:
    """An autoregressive model to block diffusion, as SDAR's began: any token may be hidden, those of prompts too, at 4
    tokens a block. SDAR took 50 billion tokens for it; no long run has tested the learning rate here.
    """
    return SFTConfig(
        block_size=4, noise="count", learn="all", row_tokens=2048, batch_rows=32, micro_rows=8,
        epochs=1.0, lr=1e-4, schedule="cosine", warmup=0.03, lr_floor=0.1, beta2=0.95, weight_decay=0.1,
        activation_checkpointing="auto", log_every=10, eval_every=200, eval_rows=64,
        checkpoint_every=1000, checkpoint_seconds=600.0,
    )  # fmt: skip


def _paper_sft(model: str, *, batch_rows: int, micro_rows: int) -> SFTConfig:
    return SFTConfig(
        model=model, block_size=4, noise="block", t_min=1e-3, stratified=False, response_prefix=EMPTY_THOUGHT,
        row_tokens=6144, batch_rows=batch_rows, micro_rows=micro_rows, epochs=3.0,
        lr=1e-5, schedule="constant_with_warmup", warmup=0.03, beta2=0.999, weight_decay=0.0,
        activation_checkpointing="auto", exec_every=200, exec_max_new_tokens=4096,
        checkpoint_every=200, checkpoint_seconds=1800.0, eval_every=50, final_checkpoint="weights",
    )  # fmt: skip


def _dice_sft(paper: SFTConfig) -> SFTConfig:
    return replace(paper, noise="count", stratified=True)


SFT_RECIPES: dict[str, Callable[[], SFTConfig]] = {
    recipe.__name__: recipe
    for recipe in (
        nano_sft,
        mini_sft,
        tiny_sft,
        paper_1_7b_sft,
        paper_4b_sft,
        paper_8b_sft,
        dice_1_7b_sft,
        dice_4b_sft,
        dice_8b_sft,
    )  # fmt: skip
}
ADAPT_RECIPES: dict[str, Callable[[], SFTConfig]] = {"adapt": adapt}


def nano_rl() -> RLConfig:
    """BiC-RL of nano on one GPU or more: 64 problems x 16 responses a step.

    A small model learns with a far larger step than a large one. Its context is short, so are its responses.
    """
    return RLConfig(
        model="nano", infill_steps=10, generate_steps=50, max_new_tokens=1536, max_active=512,
        policy=PolicyConfig(lr=2e-5, minibatch=256, row_tokens=8192, micro_rows=4),
        eval_every=5, eval_problems=256, export_dtype="float32",
    )  # fmt: skip


def tiny_rl() -> RLConfig:
    """Seconds a step on a CPU: for tests and for seeing the chain work.

    The optimiser is nearly plain gradient ascent: in so small a model, AdamW's equal steps for all weights break more
    than the few decisions that are to be learned mend.
    """
    return RLConfig(
        infill_steps=2, generate_steps=4, problems=4, responses=4, max_new_tokens=512, max_active=16,
        policy=PolicyConfig(lr=1.2e-2, adam_eps=1e-2, beta1=0.5, minibatch=64, row_tokens=2048),
        backend="emulated", trials=2, memory_mb=4096, eval_every=3, eval_problems=4, export_dtype="float32",
    )  # fmt: skip


def paper_1_7b_rl() -> RLConfig:
    """The paper's BiC-RL of DICE-1.7B: 20 + 100 steps of 64 x 16, lr 1e-6, clip 0.2, KL 0.01, tau 0.9, T 1 (A.4.2).

    The reward is execution alone, the core is asked for as a whole file, problems come one after the other from the
    easiest on; what the text leaves open is as in the released code (docs/recipes.md has all of it beside ours).
    Started by torchrun. Beside a process's share of the weights and moments stand a whole copy to decode with and
    `max_active` responses' keys and values, some 0.7 GB each (0.9 GB for the larger two); of 80 GB at least 15 are left
    to the kernels that are verified.
    """
    return _paper_rl(max_active=64)


def paper_4b_rl() -> RLConfig:
    """The paper's BiC-RL of DICE-4B: as for 1.7B."""
    return _paper_rl(max_active=48)


def paper_8b_rl() -> RLConfig:
    """The paper's BiC-RL of DICE-8B: as for 1.7B."""
    return _paper_rl(max_active=32)


def dice_1_7b_rl() -> RLConfig:
    """Our BiC-RL of 1.7B: the paper's steps and optimiser, with a reward that only honest kernels earn, a scaffold in
    which none of the paper's deceptions can be written, and an order that never turns back to easy problems."""
    return _dice_rl(paper_1_7b_rl())


def dice_4b_rl() -> RLConfig:
    """Our BiC-RL of 4B: as for 1.7B."""
    return _dice_rl(paper_4b_rl())


def dice_8b_rl() -> RLConfig:
    """Our BiC-RL of 8B: as for 1.7B."""
    return _dice_rl(paper_8b_rl())


def _paper_rl(*, max_active: int) -> RLConfig:
    return RLConfig(
        infill_steps=20, generate_steps=100, problems=64, responses=16, order="sequential",
        infill_form="whole", infill_prompt="with_example", prompt="one-shot", response_prefix=EMPTY_THOUGHT,
        confidence_threshold=0.9, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=4096, max_active=max_active,
        policy=PolicyConfig(
            lr=1e-6, beta2=0.999, weight_decay=0.0, clip_grad=1.0, clip_ratio=0.2, kl_coef=0.01, shrink=1,
            minibatch=256, minibatch_unit="rounds", fresh_optimizer=True,
            row_tokens=24576, activation_checkpointing="auto",
        ),
        reference="step", protocol="kernelbench-v0", provenance="any", trials=1,
        compile_timeout_s=180.0, run_timeout_s=180.0,
    )  # fmt: skip


def _dice_rl(paper: RLConfig) -> RLConfig:
    policy = replace(
        paper.policy, minibatch=64, minibatch_unit="responses", fresh_optimizer=False, old_logprobs="trace"
    )
    return replace(
        paper, policy=policy, order="scheduled", infill_form="scaffold", infill_prompt="plain",
        protocol="dice", provenance="construction", trials=3, compile_timeout_s=60.0, run_timeout_s=30.0,
    )  # fmt: skip


RL_RECIPES: dict[str, Callable[[], RLConfig]] = {
    recipe.__name__: recipe
    for recipe in (
        nano_rl,
        tiny_rl,
        paper_1_7b_rl,
        paper_4b_rl,
        paper_8b_rl,
        dice_1_7b_rl,
        dice_4b_rl,
        dice_8b_rl,
    )  # fmt: skip
}
