"""One row of a table becomes one `Sample`, or a reason why it cannot."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dice import syntax
from dice.data.sample import Sample
from dice.data.sources.catalogue import Source
from dice.data.sources.columns import Layout, as_messages, as_text, holds_kernel, leaves, lookup
from dice.files.tables import Row
from dice.prompts import extract_kernel, extract_problem

SHORT = 200  # characters that a text in `meta` has at most; a longer one is some content and no label

_REQUIRED = ("get_inputs", "get_init_inputs")
_TRITON = re.compile(r"^[^\S\n]*(?:import|from)\s+triton\b|@triton\.jit\b", re.MULTILINE)
_THINK = re.compile(r"</?think>")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")


class Unusable(Exception):
    """The row gives no sample; the message says why, in words that are the same for every such row."""


@dataclass(frozen=True, slots=True)
class Converted:
    sample: Sample
    remark: str = ""  # what was left out of the sample, in words that are the same for every such row


def convert(row: Row, layout: Layout, source: Source, licence: str) -> Converted:
    """Raises `Unusable`."""
    values = row.values
    prompt, response = _turns(values, layout)
    published = _text(values, layout, "problem")
    text = published if published.strip() else extract_problem(prompt) or ""
    problem, flaw = usable_problem(text, _text(values, layout, "entry_point")) if text else ("", "")
    kernel, core, remark = _kernel(values, layout, response)
    if kernel and not problem:
        remark = remark or (f"the problem is left out: {flaw}" if flaw else "its prompt holds no problem")
    if not kernel and not problem:
        raise Unusable(flaw or remark or _nothing(layout, response))
    reasoning = _text(values, layout, "reasoning") or (_before(response, kernel) if kernel and response else "")
    level = lookup(values, layout["level"]) if "level" in layout else None
    name = lookup(values, layout["name"]) if "name" in layout else None
    sample = Sample(
        problem=problem,
        kernel=kernel,
        prompt=prompt,
        response=response if kernel else "",
        reasoning=reasoning if kernel else "",
        name=str(name) if name not in (None, "") else f"{row.file.stem} {row.number}",
        source=source.name,
        origin=f"{row.file.name}:{row.number}",
        licence=licence,
        family=_text(values, layout, "family"),
        difficulty=source.difficulty.get(str(level).removeprefix("level"), "") if level is not None else "",
        meta=_meta(values, layout) | ({"core": core} if core else {}),
    )
    _check_unicode(sample)
    return Converted(sample, remark)


def _text(values: Mapping[str, Any], layout: Layout, role: str) -> str:
    return as_text(lookup(values, layout[role])) if role in layout else ""


def _turns(values: Mapping[str, Any], layout: Layout) -> tuple[str, str]:
    """Prompt and response. Of a conversation, the answer of the turn that the row calls best, else the last answer,
    with everything that came before the first answer."""
    prompt, response = _text(values, layout, "prompt"), _text(values, layout, "response")
    messages = as_messages(lookup(values, layout["messages"])) if "messages" in layout else []
    answers = [message["content"] for message in messages if message["role"] in ("assistant", "gpt")]
    if response or not answers:
        return prompt, response
    first = next(index for index, message in enumerate(messages) if message["role"] in ("assistant", "gpt"))
    turn = lookup(values, layout["turn"]) if "turn" in layout else None
    chosen = turn - 1 if isinstance(turn, int) and 1 <= turn <= len(answers) else -1
    return prompt or "\n\n".join(message["content"] for message in messages[:first]), answers[chosen]


def usable_problem(text: str, entry_point: str = "") -> tuple[str, str]:
    """The problem, and what is wrong where there is none. A module of another name gets a last line `Model = NAME`."""
    if not text.strip():
        return "", "its problem is empty"
    try:
        tree = syntax.parse(text)
    except (SyntaxError, ValueError):
        return "", "its problem is not valid Python"
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    names = {*classes, *(node.name for node in tree.body if isinstance(node, ast.FunctionDef))}
    bound = [one for node in tree.body if isinstance(node, ast.Assign) for one in node.targets]
    names |= {one.id for one in bound if isinstance(one, ast.Name)}
    missing = next((name for name in _REQUIRED if name not in names), None)
    if missing:
        return "", f"its problem defines no {missing}()"
    if "Model" in names:
        return text, ""
    only = entry_point if entry_point in classes else classes[0] if len(classes) == 1 else ""
    return (f"{text.rstrip()}\n\n\nModel = {only}\n", "") if only else ("", "its problem defines no class Model")


def _kernel(values: Mapping[str, Any], layout: Layout, response: str) -> tuple[str, list[int], str]:
    """The kernel, the span of its core where the set gives one, and what kept a kernel out."""
    parts = [lookup(values, layout[one]) for one in ("prefix", "middle", "suffix") if one in layout]
    core: list[int] = []
    if len(parts) == 3 and all(isinstance(part, str) for part in parts) and any(parts):
        text, core = "".join(parts), [len(parts[0]), len(parts[0] + parts[1])]
    else:
        text = _text(values, layout, "kernel")
    if not text.strip() and response:
        found = extract_kernel(response) if holds_kernel(response) else None
        text = found.source if found else ""
        if not text:
            return "", [], "its response holds no kernel"
    if not text.strip():
        return "", [], ""
    if "ModelNew" not in text:
        return "", [], "its kernel defines no ModelNew"
    if _TRITON.search(text) and "__global__" not in text:
        return "", [], "its kernel is Triton, not CUDA"
    return text, core, ""


def _nothing(layout: Layout, response: str) -> str:
    return "its columns are empty" if layout and not response else "it holds neither problem nor kernel"


def _before(response: str, kernel: str) -> str:
    """The reasoning of a response: what stands before its kernel, without the marks around either."""
    start = response.find(kernel.strip(), response.rfind("</think>") + 1)
    text = response[:start] if start >= 0 else response.rpartition("</think>")[0]
    lines = _THINK.sub("", text).rstrip().split("\n")
    return "\n".join(lines[:-1] if _FENCE.match(lines[-1]) else lines).strip()


def _meta(values: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """What else the row says, as long as it is short: numbers, flags, labels, lists of them."""
    used = {path for role, path in layout.items() if role != "level"}
    found = {path: value for path, value in leaves(values) if path not in used and value not in (None, "")}
    return {path: value for path, value in found.items() if _is_short(value)}


def _is_short(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 64 and all(isinstance(one, str | int | float) and _is_short(one) for one in value)
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= SHORT)


def _check_unicode(sample: Sample) -> None:
    try:
        for text in (sample.problem, sample.kernel, sample.prompt, sample.response, sample.reasoning, sample.name):
            text.encode("utf-8")
        sample.family.encode("utf-8")
    except UnicodeEncodeError:
        raise Unusable("its text is not valid Unicode") from None
