"""Why kernels fail (paper Fig. 6): the four classes, by stage, operator family and level; causes with examples.

A cause is a message with everything particular taken out: names, numbers, shapes, places. Two kernels that fail in the
same way then share one, whatever they are called.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dice import syntax
from dice.evaluate.run_folder import Judgement, Task
from dice.verdict import Verdict

CLASSES = ("generation failure", "execution failure", "functional incorrectness", "deceptive")
FAMILIES = (
    ("rnn", "attention", "loss", "conv", "matmul", "pool", "norm", "activation", "reduce")  # the first that occurs
    + ("other",)
)
TOP = 10  # causes that are told, the most common first
LONGEST = 2000  # characters of a message from which its cause is told
Key = TypeVar("Key", str, int)


@dataclass(frozen=True, slots=True)
class Cause:
    """One way to fail. `share` is of all failures; `task`, `sample` and `example` name one answer that failed so."""

    text: str
    failure_class: str
    stage: str
    count: int
    share: float
    task: str
    sample: int
    example: str  # that answer's own message


@dataclass(frozen=True, slots=True)
class Failures:
    """What a protocol's judgements failed of. Each breakdown counts failures: {key: {class: count}}."""

    judged: int  # verdicts about a kernel
    correct: int
    classes: dict[str, int]
    by_stage: dict[str, dict[str, int]]
    by_family: dict[str, dict[str, int]]
    by_level: dict[int, dict[str, int]]
    judged_by_family: dict[str, int]
    judged_by_level: dict[int, int]
    causes: tuple[Cause, ...]  # the most common first

    @property
    def failed(self) -> int:
        return self.judged - self.correct


def analyse(tasks: Iterable[Task], judgements: Iterable[Judgement], *, top: int = TOP) -> Failures:
    """Count the failures among `judgements`; verdicts that are not about the kernel are left out."""
    by_key = {task.key: task for task in tasks}
    families = {key: operator_family(task.source, task.name) for key, task in by_key.items()}
    told = [one for one in judgements if one.verdict.about_kernel and one.task in by_key]
    failed = [one for one in told if one.verdict.failure_class]
    return Failures(
        judged=len(told),
        correct=len(told) - len(failed),
        classes={name: len([one for one in failed if one.verdict.failure_class == name]) for name in CLASSES},
        by_stage=_count((one.verdict.stage, one) for one in failed),
        by_family=_count((families[one.task], one) for one in failed),
        by_level=_count((by_key[one.task].level, one) for one in failed),
        judged_by_family=dict(Counter(families[one.task] for one in told)),
        judged_by_level=dict(sorted(Counter(by_key[one.task].level for one in told).items())),
        causes=tuple(_causes(failed)[:top]),
    )


def _count(pairs: Iterable[tuple[Key, Judgement]]) -> dict[Key, dict[str, int]]:
    counts: dict[Key, Counter[str]] = defaultdict(Counter)
    for key, one in pairs:
        counts[key][one.verdict.failure_class or ""] += 1
    return {key: {name: counts[key][name] for name in CLASSES} for key in sorted(counts, key=str)}


def _causes(failed: Sequence[Judgement]) -> list[Cause]:
    groups: dict[tuple[str, str, str], list[Judgement]] = defaultdict(list)
    for one in failed:
        groups[one.verdict.failure_class or "", one.verdict.stage, message_class(one.verdict)].append(one)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        Cause(text, name, stage, len(ones), len(ones) / len(failed), first.task, first.sample, _message(first.verdict))
        for (name, stage, text), ones in ordered
        for first in ones[:1]
    ]


def _message(verdict: Verdict) -> str:
    return verdict.message or (verdict.errors[0] if verdict.errors else verdict.outcome.replace("_", " "))


# What is particular to one answer, and what stands for it. The order matters: each pattern takes out what a later one
# would take out by half.
_PARTICULAR = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"^trial \d+ \([^)]*\): "), ""),
    (re.compile(r"\bline \d+(?: \([\w.]+:\d+\))?:? ?"), ""),
    (re.compile(r"; the first is .*?\(allowed [^)]*\)"), ""),
    (re.compile(r"(?<![\w.])(?:/[\w.+-]+){2,}(?::\d+)*"), "PATH"),
    (re.compile(r"\u2018[^\u2019]*\u2019|(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`"), "NAME"),
    (re.compile(r"undefined symbol: .*"), "undefined symbol: NAME"),
    (re.compile(r"\b(kernel|shared array) (?!N\b)[A-Za-z_][\w:<>]*(?=[, ]|$)"), r"\1 NAME"),
    (re.compile(r"(?<!\w)[(\[][-\d, ]*[)\]]"), "SHAPE"),
    (re.compile(r"\b0x[0-9a-fA-F]+"), "N"),
    (re.compile(r"(?<![\w.])-?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])"), "N"),
    (re.compile(r"\s+"), " "),
)


def message_class(verdict: Verdict) -> str:
    """A verdict's message without what is particular to one answer; its kinds of deception come first.

    >>> message_class(Verdict("wrong", "compare", "trial 1 (zeros inputs): forward changed input 0 in place"))
    'forward changed input N in place'
    """
    text = _message(verdict).splitlines()[0][:LONGEST] if _message(verdict).strip() else verdict.outcome
    for pattern, name in _PARTICULAR:
        text = pattern.sub(name, text)
    text = text.strip(" .,")
    return f"{', '.join(verdict.deceptions)}: {text}" if verdict.outcome == "deceptive" and verdict.deceptions else text


_CALLS = {
    "rnn": re.compile(r"(RNN|LSTM|GRU)(Cell|Hidden)?$"),
    "attention": re.compile(r"^(MultiheadAttention|scaled_dot_product_attention|Transformer\w*)$|attention|attn", re.I),
    "loss": re.compile(r"Loss$|_loss$|^(cross_entropy|kl_div|nll_loss|binary_cross_entropy\w*)$"),
    "conv": re.compile(r"^(Lazy)?Conv(Transpose)?\d?d$|^conv(_transpose)?\d?d$"),
    "matmul": re.compile(r"^(Linear|Bilinear|linear|bilinear|matmul|mm|bmm|addmm|baddbmm|mv|dot|einsum|outer)$"),
    "pool": re.compile(r"Pool\d?d$|pool\d?d$"),
    "norm": re.compile(r"(Norm\d?d?|_norm)$|^(norm|normalize)$", re.I),
    "activation": re.compile(
        r"^(relu6?|leaky_relu|prelu|rrelu|elu|selu|celu|gelu|silu|swish|mish|sigmoid|tanh|softplus|softsign|glu|"
        r"log_?sigmoid|(log_?)?softmax|softmin|hard(sigmoid|tanh|swish|shrink)|tanhshrink|softshrink|threshold)(\dd)?$",
        re.I,
    ),
    "reduce": re.compile(
        r"^(sum|mean|prod|max|min|amax|amin|argmax|argmin|var|std|logsumexp|any|all|median|cum(sum|prod|max|min))$"
    ),
}


def operator_family(source: str, name: str = "") -> str:
    """The family that a reference is counted under: the first of `FAMILIES` that its text or its name speaks of.

    Read from the syntax tree; nothing is executed. A text that is not Python is `other`.
    """
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return "other"
    found = {
        family
        for word in (*_names(tree), *name.split("_"))
        for family, pattern in _CALLS.items()
        if pattern.search(word)
    }
    found |= {"matmul"} if any(isinstance(node, ast.MatMult) for node in ast.walk(tree)) else set()
    return next((family for family in FAMILIES if family in found), "other")


def _names(tree: ast.Module) -> Iterable[str]:
    """What is called, and the classes that are defined: `SelfAttention` made of linear layers is attention."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, ast.Call):
            called = node.func
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
