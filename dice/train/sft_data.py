"""What SFT learns from: pairs, tokenised and packed into rows on the device that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dice.data.pairs import Pair, read_pairs
from dice.errors import UserError
from dice.model.config import SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.prompts import is_compact
from dice.train.config import SFTConfig
from dice.train.packing import PackedRows, pack, tokenize
from dice.train.world import World


@dataclass(frozen=True, slots=True)
class SFTData:
    """Rows to train on, held-out rows, the blocks that both are packed for, and the form of most training prompts."""

    rows: PackedRows
    eval_rows: PackedRows | None
    block_size: int
    prompt_form: str


def load_data(config: SFTConfig, tokenizer: Tokenizer, model: SDARConfig, world: World) -> SFTData:
    """The data of `config` for a model; the leader reads it for all processes.

    Raises `UserError` for data that cannot be used, and for documents longer than the model's context.
    """
    causal = model.traits.kind == "autoregressive"
    block_size = 1 if causal else config.block_size or model.block_size
    longest = min(config.row_tokens, config.max_sample_tokens or config.row_tokens)
    if longest > model.max_position_embeddings:
        reach = model.max_position_embeddings
        raise UserError(f"Documents may have {longest} tokens, the model {reach} positions; set max_sample_tokens.")

    def read(path: Path) -> tuple[PackedRows, str]:
        pairs = read_pairs(path)
        documents = tokenize(pairs, tokenizer, config.response_prefix, whole=config.learn == "all")
        rows = pack(
            documents, row_tokens=config.row_tokens, block_size=block_size, pad_id=tokenizer.pad_id,
            max_tokens=config.max_sample_tokens,
        )  # fmt: skip
        if causal:  # before the first token of a text stands none that could predict it
            rows = replace(rows, trainable=rows.trainable & (rows.positions > 0))
        return replace(rows, causal=causal), _prompt_form(pairs)

    data, eval_data, eval_rows = config.data, config.eval_data, None
    assert data is not None
    rows, prompt_form = world.broadcast_from_leader(lambda: read(data))
    if eval_data is not None:
        eval_rows = world.broadcast_from_leader(lambda: read(eval_data))[0].to(world.device)
    return SFTData(rows.to(world.device), eval_rows, block_size, prompt_form)


def _prompt_form(pairs: Sequence[Pair]) -> str:
    """`compact` or `one-shot`: the form of most prompts."""
    compact = sum(is_compact(pair.messages[-1]["content"]) for pair in pairs if pair.messages)
    return "compact" if 2 * compact > len(pairs) else "one-shot"
