"""`Structure`: one class of `modules/` as a problem, at the dimensions of several published models."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dice.data.structural.emit import load_modules, write_problem
from dice.data.structural.models import Mirror

Scale = Literal["full", "reduced"]

DIFFICULTY = {  # block kind -> which step of a curriculum it belongs to
    "norm": "single",
    "rotary": "single",
    "activation": "single",
    "embedding": "single",
    "convolution": "single",
    "attention": "fusion",
    "cross-attention": "fusion",
    "decode": "fusion",
    "mlp": "fusion",
    "routing": "fusion",
    "experts": "fusion",
    "logits": "fusion",
    "loss": "fusion",
    "state-space": "fusion",
    "linear-attention": "fusion",
    "layer": "model",
}
_WIDTHS = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads")
ORDER = ("batch_size", "tokens", "seq_len", "source_len", *_WIDTHS)
_WORDS = r"SwiGLU|GeGLU|ReGLU|XIELU|GELU|ReLU|MLP|[A-Z]+(?![a-z])|[A-Z][a-z0-9]+"  # of the name of a class
REDUCED = {  # the size that each dimension has at most at reduced scale
    "batch_size": 2,
    "tokens": 32,
    "seq_len": 24,
    "source_len": 20,
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_heads": 4,
    "vocab_size": 97,
    "max_positions": 40,
    "window": 9,
    "chunk_size": 8,
    "block_size": 4,
    "prefix": 7,
    "rotary_dim": 8,
    "expert_size": 24,
    "shared_size": 40,
    "num_experts": 8,
    "top_k": 2,
    "num_groups": 4,
    "top_groups": 2,
    "capacity": 6,
    "state_size": 8,
    "step_rank": 6,
    "kernel_size": 4,
    "kv_rank": 24,
    "q_rank": 32,
    "nope_dim": 16,
    "rope_dim": 8,
    "v_dim": 16,
    "index_heads": 4,
    "index_dim": 16,
    "rank": 4,
    "group_size": 16,
    "num_queries": 6,
    "num_slots": 12,
    "num_mels": 12,
    "image_size": 24,
    "patch_size": 8,
    "grid_size": 5,
    "projection_size": 32,
    "mlp_size": 80,
    "context": 16,
    "page_size": 4,
    "num_pages": 40,
    "table_size": 6,
    "drafts": 6,
    "num_layers": 70,
    "mask_id": 96,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A structure at the dimensions of one model. `sizes` are those that no model states, or that differ from it."""

    mirror: Mirror
    sizes: Mapping[str, int]


def at(model: str, part: int = 1, **sizes: int) -> Variant:
    return Variant(Mirror(model, part), sizes)


@dataclass(frozen=True, slots=True)
class Structure:
    """`main`: the class. `inputs`: an expression for each argument of `forward`. `reduced`: other than in `REDUCED`."""

    main: str
    kind: str
    inputs: tuple[str, ...]
    variants: tuple[Variant, ...]
    reduced: Mapping[str, int] = field(default_factory=dict)

    @property
    def difficulty(self) -> str:
        return DIFFICULTY[self.kind]

    def sizes(self, variant: Variant, scale: Scale) -> dict[str, int]:
        """Every constant of the problem, in the order in which it is written."""
        known = {**variant.mirror.sizes(), **variant.sizes}
        wanted = dict.fromkeys((*_names(self.inputs), *load_modules()[self.main].parameters, *variant.sizes))
        missing = [name for name in wanted if name not in known]
        if missing:
            raise ValueError(f"{self.main} mirroring {variant.mirror.model} needs {', '.join(missing)}")
        rank = {name: index for index, name in enumerate(ORDER)}
        sizes = {name: known[name] for name in sorted(wanted, key=lambda name: rank.get(name, len(ORDER)))}
        return sizes if scale == "full" else self._reduce(sizes)

    def _reduce(self, sizes: Mapping[str, int]) -> dict[str, int]:
        limits = {**REDUCED, **self.reduced}
        found = {name: min(value, limits.get(name, value)) for name, value in sizes.items()}
        if "num_kv_heads" in sizes:
            heads = sizes.get("num_heads", sizes["num_kv_heads"])
            many = found.get("num_heads", REDUCED["num_heads"])
            grouped = min(2, sizes["num_kv_heads"])
            found["num_kv_heads"] = many if heads == sizes["num_kv_heads"] else grouped
        return found

    def source(self, variant: Variant, scale: Scale) -> str:
        return write_problem(self.main, variant.mirror.describe(), self.inputs, self.sizes(variant, scale))

    def name(self, variant: Variant) -> str:
        part = f"_part{variant.mirror.part}" if variant.mirror.part > 1 else ""
        words = re.findall(_WORDS, self.main) + re.findall(r"[A-Za-z0-9]+", variant.mirror.model)
        return "_".join(words).lower() + part


def _names(expressions: tuple[str, ...]) -> list[str]:
    """Sizes that the expressions use."""
    nodes = [node for text in expressions for node in ast.walk(ast.parse(text))]
    found = [node.id for node in nodes if isinstance(node, ast.Name)]
    return [name for name in found if name not in ("torch", "F", "float", "int")]
