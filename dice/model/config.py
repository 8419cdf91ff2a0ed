"""`SDARConfig`: the shape of an SDAR transformer, read from and written to SDAR's config.json."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dice.errors import UserError

DEFAULT_BLOCK_SIZE = 4
DEFAULT_MASK_TOKEN_ID = 151669

# What SDAR's own code and the engines that serve it look for, beyond the numbers.
_FIXED_KEYS: dict[str, Any] = {
    "architectures": ["SDARForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_sdar.SDARConfig",
        "AutoModel": "modeling_sdar.SDARModel",
        "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
    },
    "model_type": "sdar",
}
_DEFAULT_EXTRAS: dict[str, Any] = {
    "attention_dropout": 0.0,
    "attn_implementation": "flex_attention",
    "fuse_cross_entropy": True,
    "rope_scaling": None,
    "sliding_window": None,
    "use_cache": False,
    "use_sliding_window": False,
}
# A value other than these would change the computation, so it is refused instead of ignored.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("sdar",),
    "attention_bias": (False,),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False,),
    "tie_word_embeddings": (False,),
}


class ConfigError(UserError):
    """The configuration describes no model that this package can run; the message is one sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class SDARConfig:
    """Sizes and constants of one SDAR transformer; field names are those of SDAR's config.json.

    `extra` holds every key of a config.json that does not influence the computation here, so that saving loses nothing.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    initializer_range: float = 0.02
    block_size: int = DEFAULT_BLOCK_SIZE
    mask_token_id: int = DEFAULT_MASK_TOKEN_ID
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    torch_dtype: str = "bfloat16"
    extra: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "block_size",
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"The model configuration needs a positive whole number for {name}, not {value!r}.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})."
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even for rotary positions, not {self.head_dim}.")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ConfigError(f"mask_token_id {self.mask_token_id} lies outside the vocabulary of {self.vocab_size}.")

    @classmethod
    def from_json(cls, data: dict[str, Any], *, name: str = "", mask_token_id: int | None = None) -> SDARConfig:
        """Read the parsed text of a config.json.

        Public SDAR configs carry neither `block_size` nor `mask_token_id`. Block size: the config, else a `-b8`, `-b16`
        ... suffix of `name` (folder or hub name), else 4. Mask id: the config, else the `mask_token_id` argument (the
        tokenizer's), else 151669. Raises `ConfigError` for missing sizes and for features that change the computation.
        """
        data = dict(data)
        rope = data.pop("rope_parameters", None) or {}  # newer transformers nest what older ones keep flat
        if rope.get("rope_type", "default") != "default":
            raise ConfigError(f"Rotary scaling of type {rope['rope_type']!r} is not supported.")
        data.setdefault("rope_theta", rope.get("rope_theta", 1e6))
        for key, accepted in _SUPPORTED.items():
            if key in data and data[key] not in accepted:
                raise ConfigError(
                    f"The model configuration has {key} = {data[key]!r}; only {accepted[0]!r} works here."
                )
        if data.get("block_size") is None:
            data["block_size"] = block_size_from_name(name) or DEFAULT_BLOCK_SIZE
        if data.get("mask_token_id") is None:
            data["mask_token_id"] = DEFAULT_MASK_TOKEN_ID if mask_token_id is None else mask_token_id
        if "torch_dtype" not in data and "dtype" in data:
            data["torch_dtype"] = data.pop("dtype")
        if isinstance(data.get("eos_token_id"), list):
            data["eos_token_id"] = tuple(data["eos_token_id"])
        known = {item.name for item in fields(cls)} - {"extra"}
        values = {key: value for key, value in data.items() if key in known}
        extra = {key: value for key, value in data.items() if key not in known and key not in _FIXED_KEYS}
        missing = sorted(
            {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
            - values.keys()
        )
        if missing:
            raise ConfigError(f"The model configuration lacks {', '.join(missing)}.")
        values.setdefault("num_key_value_heads", values["num_attention_heads"])
        return cls(**values, extra=extra)

    def to_json(self) -> dict[str, Any]:
        """A config.json that SDAR's own code and engines load."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "extra"}
        if isinstance(self.eos_token_id, tuple):
            own["eos_token_id"] = list(self.eos_token_id)
        data = {**_DEFAULT_EXTRAS, "max_window_layers": self.num_hidden_layers, **self.extra, **_FIXED_KEYS, **own}
        data.update(attention_bias=False, hidden_act="silu", tie_word_embeddings=False)
        return dict(sorted(data.items()))

    @classmethod
    def from_file(cls, path: str | Path, *, mask_token_id: int | None = None) -> SDARConfig:
        """Read `path`, a config.json or the folder that holds one; the folder's name may tell the block size."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"There is no model configuration {path}.") from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ConfigError(f"{path} is not valid JSON.") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{path} does not hold a JSON object.")
        return cls.from_json(data, name=path.parent.name, mask_token_id=mask_token_id)


def block_size_from_name(name: str) -> int | None:
    """8 for "SDAR-4B-Chat-b8": SDAR's naming habit for checkpoints whose config does not say."""
    match = re.search(r"-b(\d+)$", name.rstrip("/"), re.IGNORECASE)
    return int(match.group(1)) if match and int(match.group(1)) > 0 else None
