"""Named configurations: functions that return a dataclass. `data`, `out` and the like are for the caller to fill in."""

from __future__ import annotations

from collections.abc import Callable

from dice.train.config import ModelShape, SFTConfig

# SDAR's chat models write a thought first; the training code published with them prepends an empty one, and trains it.
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


def nano_sft() -> SFTConfig:
    """The shipped 9M-parameter model, from scratch: 64k clean tokens a step, some 8 minutes of one H100.

    `count` noise is Equation 2 with t integrated out: at 4 tokens a block it has the same gradient on average with
    weights of at most 4, where t per block reaches 1000. Nothing is clipped away and every block trains every time.
    """
    return SFTConfig(
        shape=ModelShape(
            hidden_size=384, intermediate_size=768, num_hidden_layers=6,
            num_attention_heads=6, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
        ),
        block_size=4, noise="count", row_tokens=2048, batch_rows=32, micro_rows=32,
        max_steps=8000, lr=2e-3, schedule="cosine", warmup=0.02, lr_floor=0.02, weight_decay=0.1, ema=0.998,
        log_every=20, eval_every=250, eval_rows=64, checkpoint_every=100_000, checkpoint_seconds=60.0,
    )  # fmt: skip


def tiny_sft() -> SFTConfig:
    """Seconds on a CPU: for tests and for seeing the chain work."""
    return SFTConfig(
        shape=ModelShape(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=1024,
        ),
        block_size=4, noise="count", row_tokens=256, batch_rows=4, micro_rows=4,
        max_steps=60, lr=5e-3, schedule="cosine", warmup=0.1, weight_decay=0.01, ema=None,
        log_every=10, eval_every=20, eval_rows=4, checkpoint_every=20, export_dtype="float32",
    )  # fmt: skip


def dice_1_7b_sft() -> SFTConfig:
    """The paper's SFT of SDAR-1.7B-Chat: lr 1e-5, 3 epochs, per-GPU batch 2 on 8 GPUs, rows of 6144 tokens."""
    return _paper_sft("JetLM/SDAR-1.7B-Chat", batch_rows=16, micro_rows=2)


def dice_4b_sft() -> SFTConfig:
    """The paper's SFT of SDAR-4B-Chat: as for 1.7B with a per-GPU batch of 1."""
    return _paper_sft("JetLM/SDAR-4B-Chat", batch_rows=8, micro_rows=1)


def dice_8b_sft() -> SFTConfig:
    """The paper's SFT of SDAR-8B-Chat: as for 4B."""
    return _paper_sft("JetLM/SDAR-8B-Chat", batch_rows=8, micro_rows=1)


def _paper_sft(model: str, *, batch_rows: int, micro_rows: int) -> SFTConfig:
    return SFTConfig(
        model=model, block_size=4, noise="block", t_min=1e-3, stratified=False, response_prefix=EMPTY_THOUGHT,
        row_tokens=6144, batch_rows=batch_rows, micro_rows=micro_rows, epochs=3.0,
        lr=1e-5, schedule="constant_with_warmup", warmup=0.03, beta2=0.999, weight_decay=0.0,
        checkpoint_every=200, checkpoint_seconds=1800.0, eval_every=50,
    )  # fmt: skip


SFT_RECIPES: dict[str, Callable[[], SFTConfig]] = {
    recipe.__name__: recipe for recipe in (nano_sft, tiny_sft, dice_1_7b_sft, dice_4b_sft, dice_8b_sft)
}
