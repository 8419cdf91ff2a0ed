"""One module for several inputs: each set of shapes and types has kernels of its own, and one file calls whichever fit.

A module's file may have further functions `get_inputs_NAME()`, which give other arguments of `forward`, and the module
may be wanted in other floating types. Each such variant is a problem of its own, whose text is the module's with a few
lines behind it: so it is optimised as any problem is, and the file for all of them is verified on every one. What is
right for none of its kernels there is left to the module's own PyTorch code.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dice import syntax
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.atomic import write_text
from dice.kernel import Kernel
from dice.optimize.report import Report
from dice.optimize.run import Result, optimize_module
from dice.optimize.training import kernel_with_gradients, problem_with_gradients
from dice.optimize.whole.compose import compose
from dice.optimize.whole.plan import Plan
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier

PREFIX = "get_inputs_"
DTYPES = ("float64", "float32", "float16", "bfloat16")

# What comes behind a file so that its class, made with any arguments, is in another floating type. The class stays the
# one that its own constructor names, as `super(Model, self)` does.
_CONVERTED = """

def _made_in_{dtype}(make):
    def __init__(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.to(__import__("torch").{dtype})

    return __init__


{name}.__init__ = _made_in_{dtype}({name}.__init__)
"""
_DRAWN = """

def get_inputs_in_{dtype}(draw):
    import torch

    def convert(one):
        return one.to(torch.{dtype}) if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    return lambda: torch.utils._pytree.tree_map(convert, draw())


get_inputs = get_inputs_in_{dtype}(get_inputs)
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """`function`: which draws its inputs. `dtype`: what the module and its floating inputs are converted to, "" for
    their own."""

    problem: Problem
    function: str
    dtype: str

    @property
    def name(self) -> str:
        return " in ".join(filter(None, (self.function, self.dtype)))

    @property
    def folder(self) -> str:
        """Of its own run, in the module's."""
        return self.name.replace(" ", "_")

    def of_file(self, kernel: Kernel) -> Kernel:
        """The kernel file as this variant's problem wants it: its model in the variant's type."""
        if not self.dtype:
            return kernel
        return replace(kernel, source=kernel.source + _CONVERTED.format(name="ModelNew", dtype=self.dtype))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one variant. `verdict`: of the file for all of them, on this one; None where PyTorch has it to
    itself, for the reason `why`."""

    variant: Variant
    report: Report
    verdict: Verdict | None
    why: str = ""

    def to_json(self) -> JsonObject:
        verdict = self.verdict.to_json() if self.verdict else None
        return {**self.report.to_json(), "inputs": self.variant.name, "verdict": verdict, "why": self.why}

    def line(self) -> str:
        if self.verdict is None:
            return f"{self.variant.name}: left to PyTorch: {self.why}"
        timing = self.verdict.timing
        speed = f", {timing.speedup:.2f}x" if timing else ""
        count = len(self.report.replaced)
        return (
            f"{self.variant.name}: {self.verdict.outcome}, {count} of {len(self.report.rows)} regions replaced{speed}"
        )


@dataclass(frozen=True, slots=True)
class Several:
    """`kernel`: the one file, None where no variant has a kernel. `plan`: the kernels in it. `outcomes`: one a
    variant. `gradients`: what the file does of them, a sentence, where there are several variants and they were asked
    for."""

    kernel: Kernel | None
    plan: Plan
    outcomes: tuple[Outcome, ...]
    gradients: str = ""

    @property
    def cases(self) -> list[tuple[str, str]]:
        """The variants that have kernels: the function that draws their inputs, and their type."""
        return [(one.variant.function, one.variant.dtype) for one in self.outcomes if one.verdict is not None]

    def to_json(self) -> JsonObject:
        """The report on the module's own inputs; `variants`: one for each, where there are several."""
        reports = [one.to_json() for one in self.outcomes]
        several = {"variants": reports, "gradients": self.gradients} if len(reports) > 1 else {}
        return self.outcomes[0].report.to_json() | several


def variants_of(problem: Problem, dtypes: Sequence[str] = ()) -> list[Variant]:
    """The module's own inputs first, then those of each `get_inputs_NAME()`; all of them once more in each of `dtypes`.

    Raises `UserError` for a type that is no floating one, or a function that wants arguments."""
    unknown = next((name for name in dtypes if name not in DTYPES), None)
    if unknown is not None:
        raise UserError(f"--dtypes knows {', '.join(DTYPES)}, and not {unknown}.")
    functions = ["get_inputs", *_others(problem)]
    return [_variant(problem, function, dtype) for dtype in ("", *dict.fromkeys(dtypes)) for function in functions]


def _others(problem: Problem) -> list[str]:
    found = []
    for node in syntax.parse(problem.source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(PREFIX):
            given = node.args
            if len(given.args) + len(given.posonlyargs) > len(given.defaults) or None in given.kw_defaults:
                raise UserError(
                    f"{problem.name} cannot be optimised: {node.name}() draws inputs and takes no arguments."
                )
            found.append(node.name)
    return list(dict.fromkeys(found))


def _variant(problem: Problem, function: str, dtype: str) -> Variant:
    source = problem.source.rstrip("\n") + "\n"
    if function != "get_inputs":
        source += f"\n\nget_inputs = {function}\n"
    if dtype:
        source += _DRAWN.format(dtype=dtype) + _CONVERTED.format(name="Model", dtype=dtype)
    is_own = function == "get_inputs" and not dtype
    return Variant(problem if is_own else replace(problem, source=source), function, dtype)


def optimize_variants(
    variants: Sequence[Variant],
    verifier: Verifier,
    folder: Path,
    **given: Any,
) -> Several:
    """Optimise each variant, put all into one file, and verify that on each. `given`: what `optimize_module` takes
    besides. The run of a variant but the first is a folder in `folder`.

    Raises `UserError` for a variant that cannot be run or followed, `MachineError` where this machine cannot verify."""
    results = []
    for index, variant in enumerate(variants):
        own = folder / variant.folder if index else folder
        results.append(optimize_module(variant.problem, verifier, folder=own, **given))
    pairs = list(zip(variants, results, strict=True))
    if len(pairs) == 1:  # its file has been verified already
        ((variant, result),) = pairs
        verdict = result.verdict if result.kernel is not None else None
        return Several(result.kernel, result.plan, (Outcome(variant, result.report, verdict),))
    kept = [pair for pair in pairs if pair[1].kernel is not None]
    verdicts: dict[str, Verdict] = {}
    apart = any(result.plan.apart for _, result in kept)
    while kept:
        plan = _plan(variants[0].problem, kept, apart)
        kernel = compose(plan)
        verdicts |= {one.name: verifier.verify(one.problem, one.of_file(kernel)) for one, _ in kept}
        right = [pair for pair in kept if verdicts[pair[0].name].correct]
        if not right and not apart:  # the fault may be that of the one build
            apart = True
            continue
        if len(right) == len(kept):
            plan, kernel, gradients = _trained(plan, kernel, kept, verifier)
            write_text(folder / "whole.py", kernel.source)
            return Several(kernel, plan, tuple(_outcome(*pair, verdicts, right) for pair in pairs), gradients)
        kept = right
    none = Plan(variants[0].problem, (), {})
    return Several(None, none, tuple(_outcome(*pair, verdicts, []) for pair in pairs))


def _plan(problem: Problem, kept: Sequence[tuple[Variant, Result]], apart: bool) -> Plan:
    """All that the variants' own plans replace, and in each of them nothing else: what two share may win in one."""
    units = tuple(
        (replace(unit, dtype=variant.dtype), tuple(region for region in regions if region.key in result.plan.parts))
        for variant, result in kept
        for unit, regions in result.plan.units
    )
    parts = {key: part for _, result in kept for key, part in result.plan.parts.items()}
    gradients = {key: one for _, result in kept for key, one in result.plan.gradients.items()}
    return Plan(problem, units, parts, apart, all(result.plan.training for _, result in kept), gradients)


def _trained(
    plan: Plan, kernel: Kernel, kept: Sequence[tuple[Variant, Result]], verifier: Verifier
) -> tuple[Plan, Kernel, str]:
    """The plan and its file where gradients are right on all variants; else without backward kernels, or, where they
    are wrong even so, without gradients through kernels. And what is said of that."""
    wrong = [one.name for one, result in kept if not result.plan.training]
    if len(wrong) == len(kept):  # they were not asked for, or each variant's own report says why
        return plan, kernel, ""
    while plan.training:
        file = kernel_with_gradients(kernel)
        verdicts = [verifier.verify(problem_with_gradients(one.problem), one.of_file(file)) for one, _ in kept]
        if all(verdict.correct for verdict in verdicts):
            break
        wrong = [one.name for (one, _), verdict in zip(kept, verdicts, strict=True) if not verdict.correct]
        plan = replace(plan, gradients={}, training=bool(plan.gradients))
        kernel = compose(plan)
    if not wrong:
        return plan, kernel, "gradients flow through the kernels on all of these inputs, and are right"
    whose = f"they are wrong on {' and '.join(wrong)}"
    if plan.training:
        return plan, kernel, f"gradients are PyTorch's on all of these inputs, for with backward kernels {whose}"
    return plan, kernel, f"gradients do not flow through the kernels, for {whose}"


def _outcome(
    variant: Variant, result: Result, verdicts: dict[str, Verdict], right: Sequence[tuple[Variant, Result]]
) -> Outcome:
    verdict = verdicts.get(variant.name)
    if verdict is None:
        reasons = [row.why for row in result.report.rows if row.why]
        return Outcome(variant, result.report, None, reasons[0] if reasons else "no region has a kernel")
    if all(variant is not one for one, _ in right):
        why = f"the file for all inputs is {verdict.outcome} on these: {verdict.message}".rstrip(": ")
        return Outcome(variant, result.report, None, why)
    return Outcome(variant, result.report, verdict)
