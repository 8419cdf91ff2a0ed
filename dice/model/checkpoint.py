"""Hugging Face checkpoint folders: read those of any known family safely, write SDAR's whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.files.atomic import sync
from dice.files.bounded import parse_json, read_bytes
from dice.model.config import ConfigError, SDARConfig
from dice.model.family import MASK_SPELLINGS
from dice.model.sdar import SDAR

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
NANO_FOLDER = Path(__file__).resolve().parent.parent / "nano"

# Copied beside the weights when saving: the tokenizer, and the Python files that config.json's auto_map names.
COMPANION_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "chat_template.jinja", "generation_config.json", "configuration_sdar.py",
    "modeling_sdar.py", "tokenization_qwen2.py", "fused_linear_diffusion_cross_entropy.py",
)  # fmt: skip


class CheckpointError(UserError):
    """A checkpoint cannot be read or written; the message is one sentence for the user."""


def resolve_model(name: str | Path) -> Path:
    """The local folder of a model: "nano" (ships with the package), a folder, or a Hugging Face hub id (downloaded).

    Raises `CheckpointError` when there is no such model or the hub cannot be reached.
    """
    if str(name) == "nano":
        if not (NANO_FOLDER / "config.json").is_file():
            raise CheckpointError("This installation does not contain the `nano` model; give a model folder instead.")
        return NANO_FOLDER
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"{folder} is a file; give the model's folder.")
    parts = str(name).split("/")
    if len(parts) != 2 or str(name).startswith((".", "/", "~")) or not all(parts):
        raise CheckpointError(f"There is no model folder {folder}.")
    return _download(str(name))


def load_model(path: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> SDAR:
    """The model in folder `path` (or "nano", or a hub id), ready for inference or training.

    `dtype` None keeps the stored type. Weights go from disk to `device` one tensor at a time, so host memory never
    holds a second copy. Raises `CheckpointError` with one sentence for anything missing, unexpected or damaged. A
    weight that is infinite or not a number counts as damaged: it would make every output one without any message.
    """
    folder = resolve_model(path)
    config = read_config(folder)
    with torch.device("meta"):
        model = SDAR(config)
    own_names = {config.traits.published_name(name): name for name in model.state_dict()}
    expected = {theirs: tuple(model.get_parameter(ours).shape) for theirs, ours in own_names.items()}
    files = _weight_files(folder)
    if config.tied:  # some files repeat the embedding under the head's name
        head = config.traits.published_name("lm_head.weight")
        expected.pop(head)
        files.pop(head, None)
    check_names(folder, expected, files)
    state: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        for name, tensor in _read_tensors(folder / file, [n for n, f in files.items() if f == file], expected):
            # Moved before it is cast: in one go, PyTorch casts on the CPU and moves what that made larger.
            tensor = tensor.to(device)
            check_finite(folder / file, name, tensor)
            state[own_names[name]] = tensor.to(dtype or tensor.dtype)
    if config.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.tie()
    model.init_rope(device)
    return model.requires_grad_(True)


def read_config(folder: str | Path) -> SDARConfig:
    """The configuration of a checkpoint folder; the mask id falls back to the tokenizer's `<|MASK|>`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"There is no model folder {folder}.")
    try:
        return SDARConfig.from_file(folder, mask_token_id=_mask_id_of_tokenizer(folder))
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def save_model(
    model: SDAR | dict[str, Tensor],
    config: SDARConfig,
    path: str | Path,
    tokenizer_files: str | Path | Iterable[str | Path] | None = None,
    *,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = 5 * 1000**3,
) -> Path:
    """Write a folder that SDAR's own code and this package load; return it.

    `model` may be a state dict (e.g. gathered from a sharded model). `tokenizer_files` is a folder whose
    `COMPANION_FILES` are copied, or the files themselves; config.json names code (`auto_map`) only if it is among them.
    A head that shares the embedding's weights is not stored twice. The folder appears whole or not at all: everything
    is written beside it first, then renamed. An existing checkpoint there is replaced; any other folder is refused.
    Raises `CheckpointError`, and `MachineError` where the disk is full.
    """
    path = Path(path)
    state = model.state_dict() if isinstance(model, SDAR) else model
    dtype = dtype or next(iter(state.values())).dtype
    if config.tied:
        state = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    companions = _companions(tokenizer_files)
    settings = {**config.to_json(), "torch_dtype": str(dtype).removeprefix("torch.")}
    if not _modules(settings) <= {file.name for file in companions}:
        del settings["auto_map"]
    with _replacing(path) as folder:
        _write_json(folder / "config.json", settings)
        _write_weights(folder, state, dtype, max_shard_bytes)
        for file in companions:
            shutil.copyfile(file, folder / file.name)
    return path


def _modules(settings: JsonObject) -> set[str]:
    """The Python files that a config.json promises to lie beside it."""
    return {f"{str(target).rpartition('.')[0]}.py" for target in settings.get("auto_map", {}).values()}


def _weight_files(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, from the index or the single file's header."""
    index = folder / INDEX_NAME
    if not index.is_file():
        single = folder / SINGLE_NAME
        if not single.is_file():
            raise CheckpointError(f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}.")
        with _opened(single) as tensors:
            return dict.fromkeys(tensors.keys(), SINGLE_NAME)
    try:
        weight_map = parse_json(read_bytes(index))["weight_map"]
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{index} is not a valid weight index.") from None
    if not isinstance(weight_map, dict) or not all(_is_file_name(file) for file in weight_map.values()):
        raise CheckpointError(f"{index} is not a valid weight index.")
    absent = sorted(file for file in set(weight_map.values()) if not (folder / file).is_file())
    if absent:
        raise CheckpointError(f"{folder} lacks {len(absent)} weight file(s) that its index names: {_some(absent)}.")
    return weight_map


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and Path(value).name == value and value.endswith(".safetensors")


def check_names(source: Path, expected: Mapping[str, object], stored: Collection[str]) -> None:
    """Raises `CheckpointError` where `source` lacks a tensor, or has one that the architecture does not have."""
    missing = sorted(expected.keys() - set(stored))
    if missing:
        raise CheckpointError(f"{source} lacks {len(missing)} tensor(s) of this architecture: {_some(missing)}.")
    unexpected = sorted(set(stored) - expected.keys())
    if unexpected:
        raise CheckpointError(
            f"{source} holds {len(unexpected)} tensor(s) that this architecture does not have: {_some(unexpected)}."
        )


def _read_tensors(file: Path, names: list[str], expected: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
    with _opened(file) as tensors:
        stored = set(tensors.keys())
        for name in names:
            if name not in stored:
                raise CheckpointError(f"{file} lacks the tensor {name} that the index promises.")
            shape = tuple(tensors.get_slice(name).get_shape())
            if shape != expected[name]:
                raise CheckpointError(
                    f"{file} stores {name} with shape {list(shape)}, but config.json asks for {list(expected[name])}."
                )
            yield name, tensors.get_tensor(name)


def check_finite(file: Path, name: str, tensor: Tensor) -> None:
    """Raises `CheckpointError` where the smallest or the largest value is infinite or NaN: a NaN makes both NaN.

    Two numbers are computed, and no tensor of the weight's size."""
    if tensor.is_floating_point() and tensor.numel() and tensor.dtype.itemsize > 1:
        low, high = torch.aminmax(tensor)
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise CheckpointError(f"{file} holds weights that are infinite or not a number, in {name}.")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        handle = safe_open(file, framework="pt")
    except (SafetensorError, OSError, struct.error) as error:
        raise CheckpointError(f"{file} is damaged or incomplete ({error}).") from None
    with handle as tensors:
        yield tensors


def _mask_id_of_tokenizer(folder: Path) -> int | None:
    """Id of `<|MASK|>` by tokenizer_config.json; its other spellings name the same row."""
    try:
        settings = parse_json(read_bytes(folder / "tokenizer_config.json"))
        added = settings.get("added_tokens_decoder", {}).items()
        return next((int(token_id) for token_id, token in added if token.get("content") in MASK_SPELLINGS), None)
    except (OSError, UserError, ValueError, AttributeError):  # reading the tokenizer itself says what is wrong
        return None


def _write_weights(folder: Path, state: dict[str, Tensor], dtype: torch.dtype, max_shard_bytes: int) -> None:
    shards = _shards(state, dtype.itemsize, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE_NAME if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        # Cloning detaches fused projections from their shared storage, which safetensors would refuse.
        tensors = {name: state[name].detach().to("cpu", dtype).contiguous().clone() for name in names}
        _save_file(tensors, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    if len(shards) > 1:
        total = sum(tensor.numel() for tensor in state.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / INDEX_NAME, index)


def _save_file(tensors: dict[str, Tensor], file: Path) -> None:
    """Raises `OSError` for what the system refuses, which safetensors only quotes."""
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(file)) from None


def _shards(state: dict[str, Tensor], itemsize: int, max_shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    room = max_shard_bytes
    for name, tensor in state.items():
        size = tensor.numel() * itemsize
        if size > room and shards[-1]:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(name)
        room -= size
    return shards


def _companions(source: str | Path | Iterable[str | Path] | None) -> list[Path]:
    if source is None:
        return []
    if isinstance(source, str | Path):
        return [Path(source) / name for name in COMPANION_FILES if (Path(source) / name).is_file()]
    return [Path(file) for file in source]


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path` that takes its place when the body succeeds and vanishes when it fails."""
    if path.exists() and not (path / "config.json").is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise CheckpointError(f"{path} exists and is not a model folder, so it is not replaced.")
    path.parent.mkdir(parents=True, exist_ok=True)
    tag = uuid4().hex[:12]
    fresh, old = path.with_name(f".{path.name}.{tag}.new"), path.with_name(f".{path.name}.{tag}.old")
    fresh.mkdir()
    try:
        yield fresh
        for file in fresh.iterdir():
            sync(file)
        if path.exists():
            path.rename(old)
        fresh.rename(path)
        sync(path.parent)
    except OSError as error:
        kind = MachineError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else CheckpointError
        raise kind(f"Cannot write the model folder {path}: {error.strerror or error}.") from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write_json(file: Path, data: JsonObject) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _some(names: list[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _download(repository: str) -> Path:
    # Imported here: the hub client is slow to import and only needed when a hub id is given.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    # Python files are never run here. They travel to what is trained of the model, for other people's code to load it.
    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.py"]
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except GatedRepoError:
        raise CheckpointError(
            f"The Hugging Face model {repository} is restricted; accept its terms there and log in first."
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise CheckpointError(f"There is neither a folder nor a Hugging Face model called {repository}.") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        raise CheckpointError(
            f"There is no folder {repository}, and the Hugging Face hub cannot be reached to download it by that name."
        ) from None
