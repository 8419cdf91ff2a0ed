"""Is a candidate's output the reference's, and what does a forward without its kernels show?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dice.verify.execution import evidence, running
from dice.verify.execution.changes import HALVES
from dice.verify.execution.copying import copied
from dice.verify.execution.inputs import AWAY_FROM_ZERO
from dice.verify.execution.seldom import MEETING
from dice.verify.ipc.operator_counts import PART_SHARE
from dice.verify.reference import input_rounding, orders, precision, workload
from dice.verify.reference.precision import downgrade, is_suspicious, rounded
from dice.verify.reference.reference import TIED, Reference
from dice.verify.reference.trial import COUNTER, ReferenceFailed, Trial, blame, unchanged
from dice.verify.tensors import compare, near, sampled, transport, trees
from dice.verify.tensors.compare import Comparison

FEW = 0.2  # of an output: where no more is wrong, it is asked whether a rounding of the inputs does the same
BY_CHANCE = 0.01  # of the elements of a trial of halves, where a scale that follows from the inputs makes a few, too


def judge(
    reference: Reference,
    trial: Trial,
    actual: Any,
    changed: Iterable[int] = (),
    aliased: Iterable[int] = (),
    written: Iterable[str] = (),
    on_cpu: Iterable[int] = (),
    overlapping: Sequence[int] = (),
    left: Sequence[torch.Tensor] | None = None,
    kept: Iterable[str] | None = None,
) -> Comparison:
    """Whether `actual` is the trial's output.

    `changed`: the input tensors that the candidate wrote to; `aliased`: those that its output shares memory with;
    `written`: its parameters that changed; `on_cpu`: its output tensors that are not on the GPU; `overlapping`: pairs
    of them that have memory in common. What the reference does itself is allowed. Where `left` is told, what the
    reference writes to inputs is also asked for: `left` are the candidate's tensors that are `trial.asked_back`, and
    its buffers that `trial.kept` names. `kept`: its buffers that changed, where those were looked at.
    """
    if set(on_cpu) - set(trial.on_cpu):
        message = "forward returned a tensor on the CPU; the reference's is on the GPU."
        return Comparison(False, message, (message,))
    place = _place(reference, trial)
    expected, actual, exact = map(place, (trial.expected, actual, trial.exact))
    if orders.leaves_open(trial.work, trial.stable, expected):
        actual = orders.as_ordered(actual, expected, place(trial.inputs))
    known = (reference.protocol.name, exact, trial.effects, trial.roundings)
    result = compare.compare(expected, actual, *known, double=trial.double, tf32=trial.rounded)
    if not result.equal and result.share <= FEW and exact is None:
        exact = _late_exact(reference, trial)
        known = (reference.protocol.name, exact, trial.effects, trial.roundings)
        result = compare.compare(expected, actual, *known, double=trial.double) if exact is not None else result
    if result.equal and trial.rounded and not trees.is_as_exact(actual, expected, exact):
        message = "the output is less exact than the reference's under PyTorch's defaults."
        return Comparison(False, message, (message,))
    if result.equal or trial.other_model:  # whose inputs cannot be rounded here
        pass
    elif trial.double and any(leaf.dtype == torch.float64 for leaf in transport.tensors(expected)):
        slacks = place(list(_double_slacks(reference, trial)))
        result = compare.compare(expected, actual, *known, slacks, double=True)
    elif trial.family.startswith(MEETING) or (trial.family == HALVES and result.share > BY_CHANCE):
        pass  # a rounding less makes another number, as is meant
    elif (result.share <= FEW or _is_one_number(trial)) and trial.state is None and _has_room(trial):
        result = compare.compare(expected, actual, *known, place(list(_slacks(reference, trial))))
    if result.equal and reference.protocol.ours and trial.family == "given" and exact is not None:
        result = _judge_factor(result, expected, actual, exact)
    if result.equal and reference.protocol.ours:
        result = _judge_effects(
            reference, trial, result, set(changed), left, None if kept is None else {*written, *kept}
        )
    faults = _unasked(reference, trial, set(changed), set(aliased), set(written), _pairs(overlapping))
    if not result.equal or not faults:
        return result
    if not reference.protocol.ours:
        return replace(result, labels=tuple(label for label, _ in faults))
    message = f"{faults[0][1]}; the reference does not."
    return replace(result, equal=False, message=message, errors=(message,))


def _unasked(
    reference: Reference,
    trial: Trial,
    changed: set[int],
    aliased: set[int],
    written: set[str],
    overlapping: set[tuple[int, int]],
) -> list[tuple[str, str]]:
    """What the candidate did to memory that the reference does not do: labels, and what to say of it."""
    faults = []
    if inputs := changed - set(trial.changed):
        faults.append(("mutates_input", f"forward changed input {min(inputs)} in place"))
    if inputs := aliased - set(trial.aliased):
        faults.append(("aliases_input", f"forward returned memory of input {min(inputs)}, not a tensor of its own"))
    if reference.protocol.ours and (shared := overlapping - _pairs(trial.overlapping)):
        faults.append(("outputs_overlap", _in_common(*min(shared))))
    if names := written - set(reference.writes):
        faults.append(("writes_parameter", f"forward changed the parameter {min(names)}"))
    return faults


def _in_common(one: int, other: int) -> str:
    if one == running.STATE:
        return f"forward returned memory of the model's own as output {other}, so that writing to it changes the model"
    if one == other:
        return f"forward returned output {one} with elements that share memory, so that writing to one changes others"
    return f"forward returned outputs {one} and {other} in the same memory, where writing to one changes the other"


def _pairs(flat: Sequence[int]) -> set[tuple[int, int]]:
    return set(zip(flat[::2], flat[1::2], strict=False))


def _judge_factor(result: Comparison, expected: Any, actual: Any, exact: Any) -> Comparison:
    """A right output's comparison, or that all of its values are off by one factor, which no rounding does."""
    for leaf in zip(*map(transport.tensors, (expected, actual, exact)), strict=False):
        if factor := precision.common_factor(*leaf):
            message = f"nearly all values are {1 + factor:.7g} times what they should be, which no rounding does."
            return replace(result, equal=False, message=message, errors=(message,))
    return result


def _judge_effects(
    reference: Reference,
    trial: Trial,
    result: Comparison,
    changed: set[int],
    left: Sequence[torch.Tensor] | None,
    kept: Collection[str] | None,
) -> Comparison:
    """A right output's comparison, with what its caller finds beside it: changed inputs, and the model's own state. An
    input whose memory the reference returns is found in the output."""
    labels = list(result.labels)
    if kept is not None and set(reference.writes) - set(kept):
        labels.append("keeps_no_state")
    if left is not None:
        if missing := sorted(set(trial.must_change) - changed):
            message = f"forward left input {missing[0]} as it was; the reference changes it in place."
            return replace(result, equal=False, message=message, errors=(message,))
        names = [*(f"input {index}" for index in trial.asked_back), *(f"buffer {name}" for name in trial.kept)]
        let_be = {name for name, value in zip(names, left, strict=True) if _is_not_kept(trial, name, value)}
        counters = {name for name in names if name.endswith(COUNTER)}
        if {f"buffer {name}" for name in trial.kept} - let_be - counters:  # who keeps some of the state keeps all of it
            let_be &= counters
        for name, expected, actual in zip(names, (*trial.left, *trial.kept.values()), left, strict=True):
            found = compare.compare(*map(reference.device.place, (expected, actual)))
            if not found.equal and name not in let_be:
                message = f"after forward, {name} is not what it is after the reference's: {found.message}"
                return replace(found, message=message, errors=(message,))
        if set(trial.changed) - set(trial.must_change) - changed:
            labels.append("leaves_input")
    return replace(result, labels=tuple(labels))


def _is_not_kept(trial: Trial, name: str, value: torch.Tensor) -> bool:
    """Whether the candidate has no buffer of this name, or leaves it as it was given: a label says so."""
    name = name.removeprefix("buffer ")
    before = (trial.state or {}).get(name)
    return name in trial.kept and (not value.numel() or (before is not None and near.same_values(value.cpu(), before)))


def _place(reference: Reference, trial: Trial) -> Callable[[Any], Any]:
    """Where an output is compared: on the host where it is small, for a comparison looks at its own results dozens of
    times, and each look waits for a GPU that others use, too."""
    is_small = trees.elements(trial.expected) + trees.elements(trial.inputs) <= workload.AT_HAND
    return partial(transport.map_tensors, torch.Tensor.cpu) if is_small else reference.device.place


def _late_exact(reference: Reference, trial: Trial) -> Any:
    """The output in float64 of a heavy trial, which has none: nothing else tells how far the reference itself rounds.
    Only where few values are wrong, and where it is the same but for rounding; else None."""
    if trial.other_model or not reference.protocol.ours or not workload.is_heavy(trial.inputs, trial.expected):
        return None
    if reference.exact_model is None:
        return None
    exact = reference.exact_forward(_exact_model(reference, trial), reference.device.place(trial.inputs), trial.seed)
    return exact if input_rounding.is_nearly(reference.device.place(trial.expected), exact) else None


def _has_room(trial: Trial) -> bool:
    """Whether there is memory for second looks."""
    return not workload.is_heavy(trial.inputs, trial.expected)


def _is_one_number(trial: Trial) -> bool:
    """Whether the output is a single number of which other values may make nothing but rounding: the quotient of two
    sums that cancel."""
    return trees.elements(trial.expected) == 1 and trial.family not in ("given", *TIED)


def _slacks(reference: Reference, trial: Trial) -> tuple[torch.Tensor, ...]:
    """`input_rounding.slacks` from the output in float64, or from the reference's own where there is none."""
    reference.device.allow_tf32(False)
    truth = trial.expected if trial.exact is None else trial.exact
    drawn, exact = reference.device.place(trial.inputs), reference.device.place(truth)
    with unchanged(reference.model), contextlib.suppress(ReferenceFailed):
        return input_rounding.slacks(lambda other: reference.forward(reference.model, other, trial.seed), drawn, exact)
    return ()


def _double_slacks(reference: Reference, trial: Trial) -> tuple[torch.Tensor, ...]:
    """The same where all is computed in float64: by its roundings, also of inputs that come in a shorter format. Asked
    for however much is wrong, as the tolerance leaves no room for a badly conditioned problem."""
    if reference.exact_model is None:
        return ()
    model = _exact_model(reference, trial)
    drawn, expected = map(reference.device.place, (trial.inputs, trial.expected))
    drawn = transport.map_tensors(trees.widened, drawn)
    return input_rounding.slacks(lambda other: reference.exact_forward(model, other, trial.seed), drawn, expected)


def _exact_model(reference: Reference, trial: Trial) -> Any:
    """The model in float64, with the trial's parameters."""
    model = copied(reference.exact_model).double()
    model.load_state_dict(trial.state or {}, strict=False)
    return model


def judge_muted(
    reference: Reference,
    trial: Trial,
    actual: Any,
    witnesses: Sequence[evidence.ValueSample],
    seed: int,
    filled: bool,
) -> str:
    """What a forward shows in which the candidate's own kernels did nothing: a kind of `evidence.KINDS`, "honest",
    "mostly_right", or "tells_nothing". `actual`: its output, None for none; `witnesses`: samples, by `seed`, of what
    PyTorch computed in it. `filled`: what its kernels should fill held the inputs."""
    telling = [leaf for leaf in _traces(reference, trial, seed) if not leaf.tells_nothing]
    if not telling or (filled and telling[0].has_idle_step):
        return "tells_nothing"
    if actual is not None and _may_be_equal(reference, trial, actual) and judge(reference, trial, actual).equal:
        return "copies_inputs" if filled else "decoy"
    if filled:
        return "honest"
    if actual is not None and _is_mostly_right(*map(reference.device.place, (trial.expected, actual))):
        return "mostly_right"
    return "copies_result" if all(evidence.is_given_away(leaf, witnesses) for leaf in telling) else "honest"


def _may_be_equal(reference: Reference, trial: Trial, actual: Any) -> bool:
    """Whether a large output may be the trial's: of most muted ones a few elements tell that they are not. Only where
    nothing allows a right output more than its own size does."""
    more = trial.exact is not None or trial.double or any(trial.roundings)
    if more or not reference.protocol.ours or orders.leaves_open(trial.work, trial.stable, trial.expected):
        return True
    return sampled.are_alike(*map(reference.device.place, (trial.expected, actual)))


def _is_mostly_right(expected: Any, actual: Any) -> bool:
    """Whether all but a tenth of the elements of each tensor are right. Both are on the device: of gigabytes a CPU
    would make half a minute."""
    ours, theirs = transport.tensors(expected), transport.tensors(actual)
    if not ours or [(one.shape, one.dtype) for one in ours] != [(one.shape, one.dtype) for one in theirs]:
        return False
    return not any(sampled.stray_often(*pair, PART_SHARE) for pair in zip(ours, theirs, strict=True))


def _traces(reference: Reference, trial: Trial, seed: int) -> list[evidence.Traces]:
    leaves = [tensor for tensor in transport.tensors(trial.expected) if tensor.numel() and not tensor.is_complex()]
    sizes = {tensor.numel() for tensor in (*leaves, *transport.tensors(trial.inputs))}
    census = evidence.Census(sorted(sizes - {0}), seed)
    with unchanged(reference.model), blame("forward"):
        placed = reference.device.place(transport.map_tensors(torch.Tensor.clone, trial.inputs))
        running.forward(reference.model, placed, trial.seed, reference.device, census=census)
    found = zip(census.witnesses, census.computed, strict=True)
    results = tuple(witness for witness, computed in found if computed)
    given = tuple(
        evidence.samples(t, seed) for t in transport.tensors(trial.inputs) if not t.is_complex() and t.numel()
    )
    counts = evidence.counts(transport.tensors(trial.inputs))
    return [evidence.Traces(evidence.samples(leaf, seed), given, results, counts) for leaf in leaves]


def precision_label(reference: Reference, trial: Trial, actual: Any) -> str:
    """`precision_downgrade:bfloat16` and the like where a float32 output has the errors of a shorter format. Far from
    zero rounded inputs are other inputs, and only a result that lies on a shorter format's grid tells anything."""
    if not reference.protocol.ours or trial.exact is None or reference.exact_model is None:
        return ""
    far = trial.family in AWAY_FROM_ZERO
    values = map(reference.device.place, (trial.expected, actual, trial.exact))
    expected, actual, exact = map(transport.tensors, values)
    for index, leaf in enumerate(zip(expected, actual, exact, strict=False)):
        if is_suspicious(*leaf):
            return downgrade(*leaf, None if far else lambda name: _rounded(reference, trial, name, index))  # noqa: B023
    return ""


def _rounded(reference: Reference, trial: Trial, name: str, index: int) -> torch.Tensor | None:
    """The float64 output `index` for inputs and parameters rounded to a format."""
    model = _exact_model(reference, trial)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rounded(parameter, name))
    drawn = transport.map_tensors(lambda tensor: rounded(tensor, name), reference.device.place(trial.inputs))
    output = reference.exact_forward(model, drawn, trial.seed)
    tensors = transport.tensors(output)
    return tensors[index] if index < len(tensors) else None
