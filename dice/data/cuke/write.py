"""The set as files: the same bytes for the same curation.

data/train.parquet   one row a sample: everything known of it, with `prompt`, `response` and `messages` for SFT
CuKe_dataset.json    the paper's form: a list of {"prompt", "response"}
report.json          how many rows each rule removed
README.md            the dataset card
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from dice import prompts
from dice.data.cuke.candidates import Candidate, CurationSettings
from dice.data.cuke.card import card
from dice.data.cuke.curate import Curation, Removed, checked
from dice.data.outcomes import lower_bound
from dice.files import JsonObject
from dice.files.atomic import write_json, write_parquet, write_text

_PUBLISHED = ("problem", "kernel", "reasoning", "name", "source", "origin", "licence", "family", "difficulty")
_TEXT = ("id", "part", "checked", "prompt", "response", *_PUBLISHED, "verdict", "meta")
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in _TEXT]
    + [(name, pa.float64()) for name in ("speedup", "speedup_low")]
    + [("messages", pa.list_(_MESSAGE))]
)
_REMOVED = pa.schema([(name, pa.string()) for name in ("id", "name", "source", "origin", "part", "rule", "why")])


def write(curation: Curation, report: JsonObject, out: Path, command: str) -> None:
    """Write the set below `out`. `command`: how to build it again, for the card."""
    rows = [row(candidate, curation.settings) for candidate in curation.kept]
    write_parquet(out / "data" / "train.parquet", pa.Table.from_pylist(rows, schema=_SCHEMA))
    write_json(out / "CuKe_dataset.json", [{"prompt": one["prompt"], "response": one["response"]} for one in rows])
    write_parquet(out / "removed.parquet", pa.Table.from_pylist(list(map(_removed, curation.removed)), _REMOVED))
    write_text(out / "README.md", card(report, command))
    write_json(out / "report.json", report)


def row(candidate: Candidate, settings: CurationSettings) -> dict[str, object]:
    """A sample with what it lacks to train on: the prompt we would ask, and the reply we would like."""
    sample = candidate.sample
    prompt = sample.prompt or prompts.PROMPTS[settings.prompt](sample.as_problem())
    response = sample.response or prompts.reply(sample.as_kernel())
    return {name: getattr(sample, name) for name in _PUBLISHED} | {
        "id": sample.id,
        "part": candidate.part,
        "checked": checked(candidate),
        "prompt": prompt,
        "response": response,
        "verdict": json.dumps(asdict(sample.verdict), sort_keys=True) if sample.verdict else "",
        "meta": json.dumps(sample.meta, sort_keys=True),
        "speedup": sample.speedup,
        "speedup_low": lower_bound(sample.verdict),
        "messages": _chat(("user", prompt), ("assistant", response)),
    }


def _removed(one: Removed) -> dict[str, str]:
    sample = one.candidate.sample
    where = {"id": sample.id, "name": sample.name, "source": sample.source, "origin": sample.origin}
    return where | {"part": one.candidate.part, "rule": one.rule, "why": one.why}


def _chat(*turns: tuple[str, str]) -> Sequence[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in turns]
