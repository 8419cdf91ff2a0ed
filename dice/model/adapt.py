"""An autoregressive Llama or Qwen as the beginning of a block-diffusion model, as SDAR began from Qwen3.

The transformer and all its weights stay. What changes is how it is read: in blocks, with a mask token and without
shift, that is, logits at a position predict the token there. For this the tokenizer gets what it lacks of a mask token
and of ChatML, and the embedding and the head get rows for them, each the mean of the rows that were trained. The model
is no use before it has been trained on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from dice.errors import UserError
from dice.files import JsonObject
from dice.files.atomic import write_json, write_text
from dice.model.chatml import CHAT_TEMPLATE, IM_END, IM_START, MASK
from dice.model.checkpoint import load_model, read_config, resolve_model, save_model
from dice.model.config import SDARConfig
from dice.model.family import FAMILIES, MASK_SPELLINGS
from dice.model.gguf import GGUFFile
from dice.model.sdar import MAX_BLOCK_SIZE, SDAR
from dice.model.tokenizer import Tokenizer, read_encoder, read_settings, read_template

SOURCE_KEY = "dice_adapted_from"  # of config.json
# Rows of the embedding come in multiples of this, for the matrix units.
ROWS = 64


@dataclass
class _Source:
    """What is adapted. `settings`, `generation`: what tokenizer_config.json and generation_config.json say."""

    config: SDARConfig
    encoder: FastTokenizer
    settings: JsonObject
    generation: JsonObject
    template: str | None
    weights: Callable[[torch.dtype], SDAR]


def adapt(
    source: str | Path, out: str | Path, *, block_size: int = 4, tokenizer: Path | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:  # fmt: skip
    """Write the block-diffusion model that `source` becomes to the folder `out`, and return it.

    `source`: a checkpoint folder, a hub id, or a .gguf file, of Llama, Qwen2 (2.5) or Qwen3. `tokenizer`: a folder with
    its tokenizer, where that is not to be read from `source` itself. Raises `UserError` for what cannot be adapted,
    `MachineError` where a library is missing or the disk is full.
    """
    if not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise UserError(f"block_size must lie between 1 and {MAX_BLOCK_SIZE}, not {block_size}.")
    found = _read(source, tokenizer)
    family = found.config.traits
    if not family.adapts_to:
        kind = family.kind.replace("_", " ")
        raise UserError(
            f"{source} is no autoregressive Llama or Qwen but a model of the family {family.name} ({kind}): there is "
            f"nothing to adapt."
        )
    known = found.encoder.get_vocab_size()
    fresh = _complete(found)
    target = FAMILIES[family.adapts_to]
    rows = max(found.config.vocab_size, found.encoder.get_vocab_size())
    if rows > found.config.vocab_size:
        rows = -(-rows // ROWS) * ROWS
    fresh |= set(range(found.config.vocab_size, rows))
    with tempfile.TemporaryDirectory() as temporary:
        files = _write_tokenizer(found, Path(temporary))
        stops = Tokenizer.from_folder(temporary).stop_ids
        mask_id = _id(found.encoder, found.settings["mask_token"])
        config = replace(
            found.config, family=target.name, block_size=block_size, mask_token_id=mask_id, vocab_size=rows,
            tied=found.config.tied and target.can_tie, eos_token_id=tuple(sorted(stops, reverse=True)),
            extra=found.config.extra | {SOURCE_KEY: Path(source).name},
        )  # fmt: skip
        state = _grown(found.weights(dtype).state_dict(), known, sorted(fresh), rows)
        return save_model(state, config, out, files, dtype=dtype)


def _read(source: str | Path, tokenizer: Path | None) -> _Source:
    if Path(source).suffix == ".gguf":
        file = GGUFFile(source)
        config, weights = file.config, file.model
        encoder, settings, template = _of_folder(tokenizer) if tokenizer else file.tokenizer()
        generation: JsonObject = {}
    else:
        folder = resolve_model(source)
        config = read_config(folder)
        encoder, settings, template = _of_folder(tokenizer or folder)
        generation = read_settings(folder / "generation_config.json")

        def weights(dtype: torch.dtype) -> SDAR:
            return load_model(folder, dtype)

    return _Source(config, encoder, settings, generation, template, weights)


def _of_folder(folder: Path) -> tuple[FastTokenizer, JsonObject, str | None]:
    settings = read_settings(folder / "tokenizer_config.json")
    return read_encoder(folder, settings), settings, read_template(folder, settings)


def _complete(found: _Source) -> set[int]:
    """Give the tokenizer a mask token and a chat template where it has none; the ids of new tokens."""
    encoder = found.encoder
    names = [found.settings.get("mask_token"), *MASK_SPELLINGS]
    texts = [name.get("content") if isinstance(name, dict) else name for name in names]
    mask = next((text for text in texts if text and encoder.token_to_id(text) is not None), MASK)
    wanted = [mask]
    if found.template is None:
        found.template = CHAT_TEMPLATE
        wanted += [IM_START, IM_END]
    fresh = [token for token in wanted if encoder.token_to_id(token) is None]
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in wanted])
    found.settings["mask_token"] = mask
    return {_id(encoder, token) for token in fresh}


def _id(encoder: FastTokenizer, token: str) -> int:
    """Of a token that is known to be there."""
    found = encoder.token_to_id(token)
    assert found is not None
    return int(found)


def _write_tokenizer(found: _Source, folder: Path) -> list[Path]:
    """The tokenizer's files, all of it in tokenizer.json; the end tokens of the model stay with generation_config."""
    dropped = ("auto_map", "chat_template", "tokenizer_file", "name_or_path")
    settings = {key: value for key, value in found.settings.items() if key not in dropped}
    added = found.encoder.get_added_tokens_decoder()
    flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    settings["added_tokens_decoder"] = {
        str(index): {flag: getattr(token, flag) for flag in flags} for index, token in sorted(added.items())
    }
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    ends = [found.config.eos_token_id, found.generation.get("eos_token_id")]
    ids = {index for end in ends for index in (end if isinstance(end, list | tuple) else [end]) if index is not None}
    found.encoder.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "generation_config.json", found.generation | {"eos_token_id": sorted(ids)})
    write_text(folder / "chat_template.jinja", str(found.template))
    return sorted(folder.iterdir())


def _grown(state: dict[str, Tensor], known: int, fresh: list[int], rows: int) -> dict[str, Tensor]:
    """`state` with `rows` rows of embedding and head, the `fresh` ones the mean of those of the `known` tokens."""
    grown = dict(state)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        old = state[name].detach()
        new = old.new_zeros(rows, old.shape[1])
        new[: len(old)] = old
        new[fresh] = old[:known].float().mean(0).to(old.dtype)
        grown[name] = new
    return grown
