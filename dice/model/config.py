"""`SDARConfig`: the shape of a transformer, from the config.json of any known family; some can be written, too."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from dice.errors import UserError
from dice.files import JsonObject
from dice.files.bounded import parse_json, read_bytes
from dice.model.family import FAMILIES, NO_MASK, SDAR_FAMILY, Family, Llama3Rope

DEFAULT_BLOCK_SIZE = 4
DEFAULT_MASK_TOKEN_ID = SDAR_FAMILY.mask_token_id

# The families whose models can be written.
WRITTEN = ("sdar", "qwen3", "sdar-qwen2", "sdar-llama")
# What the code published with SDAR, and the engines that serve it, look for beyond the numbers.
_AUTO_MAP: JsonObject = {
    "AutoConfig": "configuration_sdar.SDARConfig",
    "AutoModel": "modeling_sdar.SDARModel",
    "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
}
_FAMILY_KEYS = frozenset({"architectures", "auto_map", "model_type"})  # written from the family
_DEFAULT_EXTRAS: JsonObject = {
    "attention_dropout": 0.0,
    "rope_scaling": None,
    "sliding_window": None,
    "use_cache": False,
    "use_sliding_window": False,
}
_SDAR_EXTRAS: JsonObject = {"attn_implementation": "flex_attention", "fuse_cross_entropy": True}
PROMPT_KEY = "dice_prompt"  # of config.json
# Ours, not config.json's: they follow from `model_type`, `tie_word_embeddings` and the rotary settings.
_DERIVED = frozenset({"family", "tied", "llama3_rope", "extra"})
_OF_BLOCKS = frozenset({"block_size", "mask_token_id"})
MOST = {"num_hidden_layers": 10_000, "max_position_embeddings": 1 << 24}


class ConfigError(UserError):
    """The configuration describes no model that this package can run; the message is one sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class SDARConfig:
    """Sizes and constants of one transformer; field names are those of SDAR's config.json.

    `family` is a key of `FAMILIES`. Autoregressive models have `block_size` 1 and `mask_token_id` `NO_MASK`. `tied`:
    the head shares the embedding's weights.
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
    family: str = SDAR_FAMILY.name
    tied: bool = False
    llama3_rope: Llama3Rope | None = None
    extra: JsonObject = field(default_factory=dict, compare=False)

    @property
    def prompt(self) -> str:
        """The form of the prompts that it was taught: `compact`, or KernelBench's `one-shot` where none is said."""
        return "compact" if self.extra.get(PROMPT_KEY) == "compact" else "one-shot"

    @property
    def traits(self) -> Family:
        """What sets this model's family apart."""
        return FAMILIES[self.family]

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "block_size",
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"The model configuration needs a positive whole number for {name}, not {value!r}.")
            if value > MOST.get(name, value):  # other sizes are those of tensors in the files
                raise ConfigError(
                    f"The model configuration says {name} {value:,}; at most {MOST[name]:,} can be meant."
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})."
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even for rotary positions, not {self.head_dim}.")
        if self.family not in FAMILIES:
            raise ConfigError(f"There is no model family {self.family!r}; known: {', '.join(FAMILIES)}.")
        if self.traits.kind != "autoregressive" and not 0 <= self.mask_token_id < self.vocab_size:
            raise ConfigError(f"mask_token_id {self.mask_token_id} lies outside the vocabulary of {self.vocab_size}.")

    @classmethod
    def from_json(cls, data: JsonObject, *, name: str = "", mask_token_id: int | None = None) -> SDARConfig:
        """Read the parsed text of a config.json.

        Public SDAR configs carry neither `block_size` nor `mask_token_id`. Block size: the config, else a `-b8`, `-b16`
        ... suffix of `name` (folder or hub name), else 4. Mask id: the config, else the `mask_token_id` argument (the
        tokenizer's), else 151669. Raises `ConfigError` for missing sizes and for features that change the computation.
        """
        _check_types(data)
        family = _family_of(data)
        data = {**family.defaults, **data}
        _check_supported(family, data)
        data["llama3_rope"] = _read_rope(family, data)
        if data.get("embedding_size") is not None:  # LLaDA: rows of the table, which may exceed the vocabulary
            data["vocab_size"] = data["embedding_size"]
        data = {family.settings.get(key, key): value for key, value in data.items()}
        if family.kind != "block_diffusion":
            data["block_size"] = 1
        elif data.get("block_size") is None:
            data["block_size"] = block_size_from_name(name) or DEFAULT_BLOCK_SIZE
        if family.kind == "autoregressive":
            data["mask_token_id"] = NO_MASK
        elif data.get("mask_token_id") is None:
            data["mask_token_id"] = family.mask_token_id if mask_token_id is None else mask_token_id
        if "torch_dtype" not in data and "dtype" in data:
            data["torch_dtype"] = data.pop("dtype")
        if isinstance(data.get("eos_token_id"), list):
            data["eos_token_id"] = tuple(data["eos_token_id"])
        data.update(family=family.name, tied=bool(data.get("tie_word_embeddings", False)))
        known = {item.name for item in fields(cls)} - {"extra"}
        values = {key: value for key, value in data.items() if key in known}
        extra = {key: value for key, value in data.items() if key not in known and key not in _FAMILY_KEYS}
        needed = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
        missing = needed - {key for key, value in values.items() if value is not None}
        if missing:
            spelled = {ours: theirs for theirs, ours in family.settings.items()}
            names = sorted(spelled.get(key, key) for key in missing)
            raise ConfigError(f"The model configuration lacks {', '.join(names)}.")
        if values.get("num_key_value_heads") is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        if values.get("head_dim") is None:
            values["head_dim"] = family.head_dim or _head_dim(values["hidden_size"], values["num_attention_heads"])
        return cls(**values, extra=extra)

    def to_json(self) -> dict[str, object]:
        """A config.json that `from_json` reads back, and that SDAR's or Qwen3's own code and engines load.

        Raises `ConfigError` for a family that is not in `WRITTEN`.
        """
        if self.family not in WRITTEN:
            known, way = ", ".join(WRITTEN), "; `dice train adapt` makes one of them of it"
            raise ConfigError(
                f"Models of the families {known} can be written, and this one is of {self.family}"
                f"{way if self.traits.adapts_to else ''}."
            )
        sdar = self.family == SDAR_FAMILY.name
        skipped = _DERIVED if self.traits.kind == "block_diffusion" else _DERIVED | _OF_BLOCKS
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in skipped}
        if isinstance(self.eos_token_id, tuple):
            own["eos_token_id"] = list(self.eos_token_id)
        defaults = {**_DEFAULT_EXTRAS, **(_SDAR_EXTRAS if sdar else {}), "max_window_layers": self.num_hidden_layers}
        data = {**defaults, **self.extra, **({"auto_map": _AUTO_MAP} if sdar else {}), **own}
        data.update(architectures=[self.traits.architecture], model_type=self.family, hidden_act="silu")
        data.update(attention_bias=self.traits.qkv_bias, tie_word_embeddings=self.tied)
        if self.llama3_rope is not None:
            data["rope_scaling"] = {"rope_type": "llama3", **asdict(self.llama3_rope)}
        return dict(sorted(data.items()))

    @classmethod
    def from_file(cls, path: str | Path, *, mask_token_id: int | None = None) -> SDARConfig:
        """Read `path`, a config.json or the folder that holds one; the folder's name may tell the block size."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        try:
            data = parse_json(read_bytes(path).decode("utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"There is no model configuration {path}.") from None
        except UserError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
        except ValueError:
            raise ConfigError(f"{path} is not valid JSON.") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{path} does not hold a JSON object.")
        return cls.from_json(data, name=path.parent.name, mask_token_id=mask_token_id)


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "architectures": ((list, type(None)), "list"),
    "auto_map": ((dict, type(None)), "object"),
    "layer_types": ((list, type(None)), "list"),
    "mask_token_id": ((int, type(None)), "whole number"),
    "rms_norm_eps": ((int, float), "number"),
    "rope_parameters": ((dict, type(None)), "object"),
    "rope_scaling": ((dict, type(None)), "object"),
    "rope_theta": ((int, float), "number"),
}


def block_size_from_name(name: str) -> int | None:
    """8 for "SDAR-4B-Chat-b8": SDAR's naming habit for checkpoints whose config does not say."""
    match = re.search(r"-b(\d+)$", name.rstrip("/"), re.IGNORECASE)
    return int(match.group(1)) if match and int(match.group(1)) > 0 else None


def _check_types(data: JsonObject) -> None:
    """Of what is used before `SDARConfig` checks its own fields, or is not among them."""
    for key, (kinds, word) in _TYPES.items():
        if key in data and not isinstance(data[key], kinds):
            raise ConfigError(f"The model configuration has {key} = {data[key]!r}, which is no {word}.")


def _family_of(data: JsonObject) -> Family:
    name = str(data.get("model_type", SDAR_FAMILY.name)).lower()
    if name not in FAMILIES:
        raise ConfigError(f"The model configuration has model_type = {name!r}; known are {', '.join(FAMILIES)}.")
    architectures = data.get("architectures") or []
    classes = {str(entry).rpartition(".")[2] for entry in (data.get("auto_map") or {}).values()}.union(architectures)
    for family in FAMILIES.values():
        if classes.intersection(family.code):
            return family
    family = FAMILIES[name]
    if architectures and family.architecture not in architectures:
        raise ConfigError(
            f"The model configuration has model_type = {name!r} but architectures = {architectures!r}; "
            f"only {family.architecture} works here."
        )
    return family


def _check_supported(family: Family, data: JsonObject) -> None:
    supported = dict(family.supported)
    if not family.can_tie:
        supported["tie_word_embeddings"] = (False,)
    for key, accepted in supported.items():
        if key in data and data[key] not in accepted:
            raise ConfigError(f"The model configuration has {key} = {data[key]!r}; only {accepted[0]!r} works here.")
    other = sorted(set(data.get("layer_types") or ()) - {"full_attention"})
    if other:
        raise ConfigError(f"The model configuration has layers of type {other[0]!r}; only 'full_attention' works here.")


def _read_rope(family: Family, data: JsonObject) -> Llama3Rope | None:
    """Settle `rope_theta` in `data` and return the scaling; newer transformers nest what older ones keep flat."""
    nested = data.pop("rope_parameters", None) or {}
    rope = {**(data.get("rope_scaling") or {}), **nested}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in family.rope_types:
        raise ConfigError(f"Rotary scaling of type {kind!r} is not supported for the family {family.name}.")
    data["rope_theta"] = nested.get("rope_theta", data["rope_theta"])
    if kind == "default":
        return None
    try:
        return Llama3Rope(**{item.name: rope[item.name] for item in fields(Llama3Rope)})
    except KeyError as error:
        raise ConfigError(f"The rotary scaling of the model configuration lacks {error.args[0]}.") from None


def _head_dim(hidden_size: int, heads: int) -> int:
    if not isinstance(hidden_size, int) or not isinstance(heads, int) or heads < 1 or hidden_size % heads:
        raise ConfigError(f"hidden_size ({hidden_size!r}) must be a multiple of num_attention_heads ({heads!r}).")
    return hidden_size // heads
