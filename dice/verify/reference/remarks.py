"""What is looked at once a kernel is right, and earns no more than a label.

**Other arguments of the constructor.** A problem fixes them (`get_init_inputs`), and KernelBench's contract asks for no
others; many published answers hold them as constants. So a kernel that gives the same with another `negative_slope` is
right, and not the module that it stands for: `ignores_constructor_argument`. Numbers and truth values are changed, all
at once, as far as the reference's parameters and output keep their shapes, and the output changes.

**Values that are not finite.** What PyTorch makes of a NaN or an infinity among the inputs is seldom asked for, and
`fmaxf(x, 0)` drops a NaN that `relu` keeps: `nan_or_infinity_differs`. It is looked at where a part of the reference's
output is not finite then, and another part is.

**Values far from zero.** A variance taken as the difference of two means is nothing but rounding where the values lie a
thousand spreads from zero, and PyTorch's is not: `inexact_far_from_zero`. Many published kernels compute it so.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from dice.verify.execution import inputs, steady
from dice.verify.execution.changes import FAR_BELOW
from dice.verify.execution.copying import copied
from dice.verify.ipc.messages import Step
from dice.verify.reference import workload
from dice.verify.reference.reference import Reference
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import ReferenceFailed, State, Trial, derive, unchanged
from dice.verify.tensors import near, sampled, transport, trees
from dice.verify.tensors.compare import Comparison

MOST_ARGUMENTS = 12  # looked at, each by constructing a model or two
MOST_PARAMETERS = 4_000_000  # of a model that is constructed so often
MOST_ELEMENTS = 1 << 22  # of inputs: more would take long on the CPU
MOST_COST = 1 << 28  # of a forward there, in bytes that could be moved meanwhile: a network's takes seconds
SECONDS, CPU_SECONDS = 20.0, 6.0  # for all that is tried there: a busy machine must not decide what is found
NOT_FINITE = (inputs.NOT_FINITE, inputs.ONE_NAN)  # families
_ARGUMENTS = Step(
    "extra arguments",
    "other arguments of the constructor",
    core=False,
    remark="ignores_constructor_argument",
    arguments=True,
)
_SPECIAL = Step("extra not finite", inputs.NOT_FINITE, core=False, remark="nan_or_infinity_differs")
_FAR = Step("extra far", FAR_BELOW, core=False, remark="inexact_far_from_zero")


@dataclass(frozen=True)
class OtherModel:
    """A reference that was constructed with other arguments, under the same seed; on the CPU."""

    arguments: Any
    model: torch.nn.Module
    state: State


class Remarks:
    """The steps that may earn a label, and their trials. `other`: the reference with other arguments, where some
    matter.

    What suits the problem is found on the CPU: a GPU's context ends with the first index that a NaN has led astray. So
    nothing is looked for where a forward would keep many cores busy for long, and others waiting for this process.
    """

    def __init__(self, reference: Reference):
        self._reference = reference
        self.other: OtherModel | None = None

    def plan(self, secret: int, seed: int) -> tuple[Step, ...]:
        """`seed`: the one that the reference was constructed under."""
        subject = self._reference.subject
        if not subject.protocol.ours or subject.sizes.inputs > 4 * MOST_ELEMENTS:
            return ()
        if self._reference.cost > MOST_COST and not self._reference.device.emulated:
            return (_FAR,)
        with contextlib.suppress(workload.Enough, ReferenceFailed), workload.within(SECONDS, CPU_SECONDS):
            self.other = self._find_other(secret, seed)
        return (_FAR, *((_ARGUMENTS,) if self.other is not None else ()), _SPECIAL)

    def trial(self, secret: int, step: Step) -> Trial | None:
        """None where the step does not suit the problem."""
        reference = self._reference
        reference.device.allow_tf32(False)
        try:
            if step.arguments:
                return self._with_other_arguments(secret, step)
            if step.family == FAR_BELOW:
                return reference.trial(secret, step)
            with workload.within(SECONDS, CPU_SECONDS):
                tried = (self._not_finite(secret, form) for form in inputs.alternatives(step, in_half=False))
                return next((drawn for drawn in tried if drawn is not None), None)
        except workload.Enough:
            return None
        except ReferenceFailed:
            if reference.device.is_broken():
                raise
            return None
        finally:
            reference.device.release()

    def _with_other_arguments(self, secret: int, step: Step) -> Trial | None:
        assert self.other is not None
        reference, seed = self._reference, derive(secret, step.name)
        model = reference.device.place(copied(self.other.model))
        trial = reference.run(model, copied(model), reference.subject.draw(seed), seed, step, must_suit=True)
        return replace(trial, other_model=True) if trial is not None else None

    def _not_finite(self, secret: int, step: Step) -> Trial | None:
        reference, seed = self._reference, derive(secret, step.name)
        base = inputs.vary(trees.to_cpu(reference.subject.draw(seed)), step, seed)
        if trees.elements(base) > MOST_ELEMENTS:
            return None
        model = _on_cpu(reference)
        with unchanged(model):
            output = reference.forward(model, base, seed)
        if not _is_partly_finite(output):
            return None
        if not reference.device.emulated:
            with unchanged(reference.model):
                output = reference.forward(reference.model, reference.device.place(base), seed)
        drawn, expected = reference.subject.kept(base, trees.own(output, spare=False))
        return Trial(step.family, drawn, seed, expected)

    def _find_other(self, secret: int, seed: int) -> OtherModel | None:
        """The arguments changed one after the other, each where the reference bears it and reacts."""
        reference, subject = self._reference, self._reference.subject
        leaves = list(steady.leaves(subject.arguments))
        numbers = [place for place, leaf in enumerate(leaves) if steady.argument_kinds(leaf)][:MOST_ARGUMENTS]
        parameters = trees.elements(reference.model.state_dict())
        if not numbers or parameters > MOST_PARAMETERS or (parameters and reference.fresh_states is None):
            return None  # it has many parameters, or takes long to construct
        drawn, run_seed = trees.to_cpu(subject.draw(derive(secret, "trial 0"))), derive(secret, "arguments")
        if trees.elements(drawn) > MOST_ELEMENTS:
            return None
        found, arguments, output = None, subject.arguments, _output(reference, _on_cpu(reference), drawn, run_seed)
        if output is None:
            return None
        for place in numbers:
            for kind in steady.argument_kinds(leaves[place]):
                other = steady.replaced(arguments, place, kind, run_seed)
                model = _model(reference, other, seed, is_whole=isinstance(leaves[place], int))
                given = _output(reference, model, drawn, run_seed)
                if model is not None and _reacts(output, given):
                    found, arguments, output = OtherModel(other, model, trees.state_of(model)), other, given
                    break
        return found


def _on_cpu(reference: Reference) -> torch.nn.Module:
    model: torch.nn.Module = reference.model
    return model if reference.device.emulated else copied(model).cpu()


def _model(reference: Reference, arguments: Any, seed: int, is_whole: bool) -> torch.nn.Module | None:
    """The problem's model with these arguments, on the CPU, where its parameters keep their shapes."""
    shapes = _shapes(reference.model)
    if is_whole and not _keeps_shapes(reference.subject, arguments, shapes):
        return None
    with contextlib.suppress(ReferenceFailed):
        model = reference.subject.new_model(seed, arguments).cpu()
        return model if _shapes(model) == shapes else None
    return None


def _keeps_shapes(subject: Subject, arguments: Any, shapes: dict[str, Any]) -> bool:
    """Asked of a model without data: one more may be a size, and make a large one."""
    try:
        with torch.device("meta"), subject.device.active():
            return _shapes(subject.module.Model(*copy.deepcopy(arguments))) == shapes
    except workload.Enough:
        raise
    except BaseException:  # whatever the problem's code raises, such an argument is not for it
        return False


def _shapes(model: torch.nn.Module) -> dict[str, Any]:
    return {name: value.shape for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def _output(reference: Reference, model: torch.nn.Module | None, drawn: Any, seed: int) -> Any:
    """What the model answers; None where it fails."""
    if model is None:
        return None
    with contextlib.suppress(ReferenceFailed), unchanged(model):
        return reference.forward(model, drawn, seed)
    return None


def _reacts(output: Any, given: Any) -> bool:
    if given is None or trees.shape_of(given) != trees.shape_of(output) or not trees.is_finite(given):
        return False
    return not sampled.are_equal(output, given)


def _is_partly_finite(output: Any) -> bool:
    """Whether some tensor of it has values that are finite, and others that are not."""
    every = [near.wide(tensor) for tensor in transport.tensors(output)]
    floats = [tensor for tensor in every if tensor.is_floating_point() and tensor.numel()]
    return any(bool(tensor.isfinite().any()) and not bool(tensor.isfinite().all()) for tensor in floats)


def judge_special(trial: Trial, actual: Any) -> Comparison:
    """Whether an output has NaN and infinities where the reference's has them; other trials compare other values."""
    ours, theirs = (
        [near.wide(tensor.cpu()) for tensor in transport.tensors(value)] for value in (trial.expected, actual)
    )
    same_shapes = [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]
    if same_shapes and all(map(_specials_alike, ours, theirs)):
        return Comparison(True)
    return Comparison(False, "NaN or infinities are elsewhere than in the reference's output.")


def _specials_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point() or not other.is_floating_point():
        return True
    same = (one.isnan() == other.isnan()) & (one.isposinf() == other.isposinf()) & (one.isneginf() == other.isneginf())
    return bool(same.all())
