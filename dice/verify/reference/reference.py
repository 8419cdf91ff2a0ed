"""The problem's reference: plans the trials, draws secret inputs and runs on them, also in float64.

Knows no process and no channel: `server.py` is the command loop over it. All that a trial needs is in its `Trial`,
so that one may be kept and used for another candidate of the same problem. `judge.py` holds a candidate's output
against it, `timing.py` has it timed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dice.verify.execution import changes, evidence, gathered, idle, inputs, pairs, running, seldom, steady
from dice.verify.execution.copying import copied
from dice.verify.ipc.messages import OWN_NUMBERS, Step
from dice.verify.ipc.out_of_memory import note as note_shortage
from dice.verify.reference import input_rounding, orders, parameters, probing, thresholds, workload
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import (
    ReferenceFailed,
    State,
    Trial,
    blame,
    buffers_of,
    derive,
    kernelbench_seed,
    put_back,
    unchanged,
)
from dice.verify.tensors import compare, transport, trees

FRESH_CONSTRUCT_S = 1.0  # a model that takes longer to construct gets no second set of parameters
FRESH_ELEMENTS = 30_000_000  # nor does one with more parameters: both cost more than they tell
MOST_SEARCHED = 1 << 26  # of `operator_cost.estimated`: some hundredths of a second of a processor
FEW_WOKEN, MOST_KEPT = 2, 8  # of them, where trials are not cheap; of numbers that a model keeps
FEW_GATHERED = 2  # families of them, where trials are not cheap
LOOKED_AT = 24  # draws, where no input holds whole numbers
DRAWING_S = 0.1  # of the processor, at most, for inputs that are gathered of many draws
KEPT_ELEMENTS = 1 << 20  # of buffers that candidates hand back
CHEAP_ELEMENTS = {True: 1 << 15, False: 1 << 22}  # of inputs and outputs, emulated or not: extra trials are for free
# Families with many equal values.
TIED = (
    *("ties", "zeros", changes.HALVES, changes.EVEN, changes.REARRANGED, changes.BELOW, changes.ABOVE),
    *(pairs.NEARLY_EQUAL, *seldom.FAMILIES),
)


class Reference:
    """The model of a `Subject`, on its device. Raises `ReferenceFailed`.

    `labels` say what is remarkable about the problem: `unused_input:1`, `weak_input:1` (no magnitude that we tried
    makes it matter). `writes`: parameters that the reference's forward changes. `fresh_states`: a second set of
    parameters, plain and varied, see `construct_fresh`, and `stretched_state` the same and large, where the reference
    bears that. `signature`: of the inputs that the problem draws.
    """

    def __init__(self, subject: Subject):
        self.subject, self.device, self.protocol = subject, subject.device, subject.protocol
        self.labels: tuple[str, ...] = ()
        self.writes: tuple[str, ...] = ()
        self.signature: object = None
        self.model: Any = None
        self.exact_model: Any = None
        self.fresh_states: tuple[State, State] | None = None
        self.stretched_state: State | None = None
        self._fresh_attributes: dict[tuple[str, str], Any] = {}  # what else the other seed makes, as it was made
        # Once trials are planned: whether another one costs next to nothing; `operator_cost.estimated` of a forward.
        self.cheap, self.cost = False, 0
        self._construct_s, self._careful, self._in_half = 0.0, False, False  # the last: inputs are float16
        self._ahead: dict[int, Any] = {}  # inputs drawn before their trial, by seed

    def construct(self, seed: int) -> tuple[Any, State]:
        """Make the model; returns its constructor's arguments, and the parameters and buffers to copy."""
        arguments = self.subject.choose_arguments(seed)
        started, model = time.monotonic(), self.subject.new_model(seed)
        self._construct_s = time.monotonic() - started
        state = trees.state_of(model) if self.protocol.ours else {}
        self.model = self.subject.cast(self.device.place(model))
        self.exact_model = copied(self.model)
        return arguments, state

    def construct_fresh(self, seed: int) -> tuple[State, State] | None:
        """A second set of parameters from another seed, and the same with those made random that no seed changes
        (biases of 0, weights of 1, identities, running means and variances, tables), for candidates that take
        parameters by the reference's names. None where the model has none, or many."""
        own = self.model.state_dict()  # only looked at, so no copy: it may be large
        count = sum(value.numel() for _, value in (*trees.taken(self.model, own), *parameters.codes(self.model, own)))
        if not self.protocol.ours or not 0 < count <= FRESH_ELEMENTS or self._construct_s > FRESH_CONSTRUCT_S:
            return None
        model = self.subject.new_model(seed)
        self._fresh_attributes = trees.attributes_of(model)
        plain = trees.state_of(model)
        self.fresh_states = plain, parameters.varied(model, plain, own, self.subject.looks_up)
        return self.fresh_states

    def plan(self, secret: int, trials: int, vary: bool = True) -> tuple[Step, ...]:
        """The trials of a verification, after a look at what the reference reacts to.

        Without `vary`, or under KernelBench's protocols, each is of the family `given` and in KernelBench's order; the
        reference then meets no values but those that its problem draws.
        """
        self._careful = not vary
        if not vary or not self.protocol.ours:
            return tuple(Step(f"trial {number}", "given", number=number) for number in range(trials))
        first = self.subject.draw(derive(secret, "trial 0"))
        self.signature = transport.signature(first)
        self._in_half = any(tensor.dtype == torch.float16 for tensor in transport.tensors(first))
        second = None
        if self.subject.sizes.inputs < self.subject.large_bytes:  # drawn on the CPU, which takes its time
            second = self.subject.draw(derive(secret, "trial 1"))
            self._ahead = {derive(secret, f"trial {number}"): draw for number, draw in enumerate((first, second))}
        drawn, seed = self.device.place(first), derive(secret, "plan")
        with unchanged(self.model):
            with evidence.Census() as census:
                expected = self.forward(self.model, drawn, seed)
            forward = functools.partial(self.forward, self.model, seed=seed)
            again = self.device.place(second) if second else None
            amplified, labels = probing.weak_inputs(forward, drawn, again, expected, seed)
            varied = probing.steady_inputs(forward, drawn, again, expected, seed, self.subject)
            decisive = probing.decisive(forward, drawn, census.work.calls, self.subject, trees.tensors_of(self.model))
            fresh = self.fresh_states
            if fresh is not None:
                bears = functools.partial(_bears, self, drawn=drawn, seed=seed)
                self.fresh_states = fresh[False], parameters.borne(*fresh, bears)
        self.labels = tuple(probing.react_otherwise(labels, drawn, varied))
        self.cost = sum(map(sum, census.work.costs.values()))
        cheap = self.cheap = trees.elements(drawn) + trees.elements(expected) <= CHEAP_ELEMENTS[self.device.emulated]
        self.stretched_state = _stretched(self, drawn, seed) if cheap else None
        self.device.release()
        measured = sum(map(inputs.is_free, transport.tensors(drawn)))
        more = (amplified, varied, (*inputs.beyond_sentinels(census.work.calls, measured), *decisive))
        rare = inputs.rare(drawn, cheap) if cheap or second is not None else ()
        is_stretched = self.stretched_state is not None
        planned = functools.partial(
            inputs.plan, trials, seed, *more, fresh=fresh is not None, stretched=is_stretched, cheap=cheap
        )
        if second is None or trees.elements(drawn) > workload.AT_HAND:
            return planned(rare=rare)
        found = _gathered(self.subject, secret, first, gathered.MOST_GATHERED if cheap else FEW_GATHERED)
        found |= _woken(self, secret, first, planned(rare=rare))
        self._ahead |= {derive(secret, f"extra {family}"): one for family, one in found.items()}
        return planned(rare=(*rare, *found))

    def _state(self, step: Step, loadable: bool) -> State | None:
        """The parameters that a step is for; None for the model's own."""
        if not step.fresh or self.fresh_states is None:
            return None
        return self.stretched_state if step.stretched and loadable else self.fresh_states[loadable]

    def trial(self, secret: int, step: Step, loadable: bool = True) -> Trial | None:
        """Draw the step's inputs, under a seed that follows from the secret and the step's name, and run on them.

        Where the family does not suit the problem, a core trial is of the family `given`, and another is None.
        `loadable`: the candidate takes all parameters by the reference's names.
        """
        self.device.allow_tf32(not self.protocol.ours)
        try:
            if not self.protocol.ours:
                return _kernelbench_trial(self, step)
            forms = inputs.alternatives(step, self._in_half)
            last = (replace(step, family="given"),) if step.core and step.family != "given" else ()
            tried = (self._try(secret, form, loadable) for form in (*forms, *last))
            return next((drawn for drawn in tried if drawn is not None), None)
        finally:
            self.device.release()

    def _try(self, secret: int, step: Step, loadable: bool) -> Trial | None:
        seed = derive(secret, step.name)
        must_suit = step.family != "given" or step.stretched
        try:
            draws = [self.subject.draw(derive(secret, name)) for name in step.mixes]
            drawn = inputs.mixed(step, seed, draws) if draws else self._ahead.pop(seed, None) or self.subject.draw(seed)
            model, exact_model = self._models(step, loadable)
            seed = derive(secret, f"{step.name} forward")
            if must_suit and _ends_context(self, model, drawn, step, seed):
                return None
            run = functools.partial(self.run, model, exact_model, drawn, seed, step)
            trial = _without_trace([model, exact_model], functools.partial(run, must_suit=must_suit))
            return replace(trial, state=self._state(step, loadable)) if trial is not None else None
        except ReferenceFailed:
            if not must_suit or self.device.is_broken():
                raise
            return None

    def _models(self, step: Step, loadable: bool) -> tuple[Any, Any]:
        state = self._state(step, loadable)
        if state is None:
            return self.model, self.exact_model
        model = _with_state(self.model, self._fresh_attributes, state)
        return model, copied(model) if self.exact_model is not None else None

    def forward(self, model: Any, drawn: Any, seed: int) -> Any:
        """The output, on the device, where the inputs are too; they are left as they are."""
        with blame("forward"):
            return readable(running.forward(model, transport.map_tensors(torch.Tensor.clone, drawn), seed, self.device))

    def run(
        self,
        model: Any,
        exact_model: Any,
        drawn: Any,
        seed: int,
        step: Step,
        *,
        must_suit: bool = False,
        spare: bool = False,
    ) -> Trial | None:
        """One trial of these inputs in the step's family. Leaves the model's buffers as a single forward does.

        `must_suit`: None where the reference is not well-posed on the inputs. `spare`: the inputs may be written to,
        as nobody needs them afterwards.
        """
        base = _varied(drawn, step, seed, self.device)
        if step.own and (self.writes or not trees.changed(base, self.device.place(drawn))):
            return None  # what one candidate alone meets leaves nothing behind for others, and is another input
        with blame("forward"):
            placed = base if spare else transport.map_tensors(torch.Tensor.clone, base)
            before, census = running.fingerprints(model, buffers=True), evidence.Census()
            output = readable(running.forward(model, placed, seed, self.device, census=census))
            writes = running.written(model, before)
            self.writes = tuple({*self.writes, *writes})
            changed, aliased = trees.changed(placed, base), tuple(running.aliased(output, placed))
            heavy, overlapping = workload.is_heavy(base, output), running.overlapping(output, model)
            written = trees.picked(placed, () if heavy else set(changed) - set(aliased))
            del placed
            output = trees.own(output, heavy and not aliased)
        again = functools.partial(self.forward, model, base, seed)
        tied = step.family in TIED or step.family.startswith((gathered.GATHERED, idle.WOKEN, OWN_NUMBERS))
        if must_suit and _is_open(again, model, output, census, tied or bool(step.kind)):
            return None
        exact = None if heavy else self.exact_forward(exact_model, base, seed)
        if must_suit and not input_rounding.is_well_posed(output, exact, step.family in inputs.AWAY_FROM_ZERO):
            return None
        sensed = (exact, (), ()) if heavy else self._sensitivity(model, base, drawn, output, exact, seed, step.family)
        exact, effects, roundings = sensed
        own = drawn if step.family == "given" else base
        inputs_, expected, exact, left = self.subject.kept(own, output, exact, written)
        return Trial(
            step.family,
            inputs_,
            seed,
            expected,
            exact,
            changed=changed,
            left=tuple(left),
            kept=_kept(model, writes, self.fresh_states if step.fresh else None),
            aliased=aliased,
            overlapping=overlapping,
            on_cpu=tuple(self.device.on_cpu(output)),
            effects=effects,
            roundings=roundings,
            work=census.work,
            stable=census.stable,
            double=not census.short,
            evolves=bool(writes) and not heavy and _evolves(model, again, output),
        )

    def _sensitivity(
        self, model: Any, base: Any, usual: Any, output: Any, exact: Any, seed: int, family: str
    ) -> tuple[Any, tuple[float | None, ...], tuple[float | None, ...]]:
        """The output in float64 where it is to be believed; how far other inputs move each tensor of the output; and
        how far roundings do, where the inputs are zeros in place of the `usual` ones, far from zero, or alike."""
        if family == "zeros":
            return exact, (), _moved(self, model, inputs.nudge(base, self.device.place(usual)), output, seed)
        if family in inputs.AWAY_FROM_ZERO:
            return exact, (), input_rounding.roundings(output, input_rounding.FAR_ROUNDING)
        with unchanged(model):
            forward = functools.partial(self.forward, model, seed=seed)
            believable = input_rounding.is_believable(forward, base, output, exact)
        roots = input_rounding.roundings(output, input_rounding.ROOT_ROUNDING) if family == seldom.ALIKE else ()
        return exact if believable else None, self._effects(model, base, output, seed), roots

    def exact_forward(self, model: Any, drawn: Any, seed: int) -> Any:
        """The same forward in float64, to know how exact the reference is; None where it cannot be had."""
        if model is None:
            return None
        try:
            widened = transport.map_tensors(trees.widened, drawn)
            return running.forward(model.double(), widened, seed, self.device)
        except Exception as error:  # code written for one type may raise anything; or it is too large in float64
            note_shortage(error)
            self.exact_model = None
            return None
        finally:
            self.device.release()

    def _effects(self, model: Any, drawn: Any, output: Any, seed: int) -> tuple[float | None, ...]:
        if self._careful:
            return ()
        running.seed_everything(seed)
        return _moved(self, model, inputs.disturb(drawn), output, seed)


def _moved(reference: Reference, model: Any, drawn: Any, output: Any, seed: int) -> tuple[float | None, ...]:
    """How far (rms) each tensor of the output is from that of other inputs; nothing where they do not suit."""
    with unchanged(model), contextlib.suppress(ReferenceFailed):
        other = reference.forward(model, drawn, seed)
        pairs = zip(transport.tensors(output), transport.tensors(other), strict=False)
        return tuple(compare.rms_difference(*pair) for pair in pairs)
    return ()


def _kernelbench_trial(reference: Reference, step: Step) -> Trial:
    """As KernelBench's `run_and_check_correctness` does it: one generator and one set of inputs for both models."""
    seed = kernelbench_seed(step.number)
    drawn = reference.subject.cast(reference.subject.draw(seed))
    with blame("forward"):
        placed = reference.device.place(copy.deepcopy(drawn) if reference.device.emulated else drawn)
        output = readable(running.forward(reference.model, placed, seed, reference.device))
        rng = running.generator_states(reference.device)
        on_cpu = tuple(reference.device.on_cpu(output))
        spare = workload.is_heavy(placed, output) and not running.aliased(output, placed)
        inputs_, expected = reference.subject.kept(placed, trees.own(output, spare))
        return Trial(step.family, inputs_, seed, expected, on_cpu=on_cpu, rng=rng)


def _gathered(subject: Subject, secret: int, first: Any, most: int) -> dict[str, Any]:
    """At most so many inputs that are put together of many draws, by their family. A few draws tell whether there is
    anything that is rare."""
    draws, begun, rare = [first], time.process_time(), any(map(gathered.is_counted, transport.tensors(first)))
    while len(draws) < gathered.draws_of(first) and time.process_time() - begun < DRAWING_S:
        rare = rare or not all(map(gathered.is_finite, transport.tensors(draws[-1])))
        if len(draws) == LOOKED_AT and not rare:
            return {}
        draws.append(subject.draw(derive(secret, f"draw {len(draws)}")))
    return gathered.gathered(draws, most)


def _woken(reference: Reference, secret: int, first: Any, steps: Sequence[Step]) -> dict[str, Any]:
    """Inputs on which operators do something that are idle in all these steps, by their family. Looked for on the host:
    a place outside a table would end a GPU's context."""
    if reference.cost > MOST_SEARCHED:
        return {}
    subject, seed = reference.subject, derive(secret, "idle")
    model = reference.model if reference.device.emulated else copied(reference.model).cpu()
    forward = functools.partial(_on_host, reference, model, seed)
    planned = (_drawn_for(reference, secret, step) for step in steps if not step.mixes)
    draws = (subject.draw(derive(secret, f"draw {number}")) for number in itertools.count())
    decided = (*subject.numbers, *_numbers_of(model))
    leaves = (place for place, leaf in enumerate(steady.leaves(first)) if isinstance(leaf, torch.Tensor))
    independent = [index for index, place in enumerate(leaves) if place in subject.ranges]
    search = idle.Search(forward, subject.path, decided, trees.tensors_of(model), independent)
    return search.waking(first, planned, draws, seed, idle.MOST_WOKEN if reference.cheap else FEW_WOKEN)


def _drawn_for(reference: Reference, secret: int, step: Step) -> Any:
    """The inputs of a step's trial, which is still to come: what is there by chance, is there by its own."""
    seed = derive(secret, step.name)
    drawn = reference._ahead.get(seed) or reference.subject.draw(seed)
    return inputs.vary(drawn, step, derive(secret, f"{step.name} forward"))


def _numbers_of(model: Any) -> list[float]:
    """That a model keeps as attributes, such as the code of an end."""
    kept = (one for name, one in vars(model).items() if not name.startswith("_") and name != "training")
    return [float(one) for one in kept if isinstance(one, int | float) and not isinstance(one, bool)][:MOST_KEPT]


def _ends_context(reference: Reference, model: Any, drawn: Any, step: Step, seed: int) -> bool:
    """Whether a step has whole numbers beyond those that are drawn, which the reference does not bear on the host
    either: a place outside a table would end a GPU's context."""
    if reference.device.emulated or trees.elements(drawn) > workload.AT_HAND:
        return False
    varied = inputs.vary(drawn, step, seed)
    if not beyond_drawn(varied, drawn):
        return False
    return _on_host(reference, copied(model).cpu(), seed, varied) is None


def beyond_drawn(varied: Any, drawn: Any) -> bool:
    """Whether whole numbers are less than the least, or more than the greatest, of those that are drawn there."""
    for one, own in zip(transport.tensors(varied), transport.tensors(drawn), strict=True):
        if one is not own and seldom.is_integer(own) and own.numel():
            (least, greatest), (low, high) = one.aminmax(), own.aminmax()
            if bool(least < low) or bool(greatest > high):
                return True
    return False


def _on_host(reference: Reference, model: Any, seed: int, drawn: Any) -> Any:
    """The output of a model that is there, which stays as it is; None where these inputs do not suit."""
    with unchanged(model), contextlib.suppress(ReferenceFailed), blame("forward"):
        own = transport.map_tensors(lambda tensor: tensor.detach().cpu().clone(), drawn)
        return readable(running.forward(model, own, seed, reference.device))
    return None


def readable(output: Any) -> Any:
    """The output. Raises `ReferenceFailed` where something in it could not be compared."""
    if what := transport.unreadable(output):
        raise ReferenceFailed(f"forward returned {what}")
    return output


def _bears(reference: Reference, state: State, drawn: Any, seed: int) -> bool:
    model = _with_state(reference.model, reference._fresh_attributes, state)
    if not reference.device.emulated and _has_other_codes(reference, model, state):
        # They may be places outside a table, which would end the GPU's context.
        few = trees.elements(drawn) <= workload.AT_HAND
        if not few or _on_host(reference, copied(model).cpu(), seed, drawn) is None:
            return False
    with contextlib.suppress(ReferenceFailed):
        return trees.is_finite(reference.forward(model, drawn, seed))
    return False


def _has_other_codes(reference: Reference, model: Any, state: State) -> bool:
    own = reference.model.state_dict()
    return any(not torch.equal(value.cpu(), own[name].cpu()) for name, value in parameters.codes(model, state))


def _stretched(reference: Reference, drawn: Any, seed: int) -> State | None:
    """The second set of parameters, and large, as far as the reference stays finite."""
    if reference.fresh_states is None:
        return None
    model, state = reference.model, reference.fresh_states[True]
    periods = reference.subject.periods
    forms = (parameters.stretched(model, state, factor, periods) for factor in parameters.STRETCHES)
    with unchanged(model):
        return next((one for one in forms if _bears(reference, one, drawn, seed)), None)


def _with_state(model: Any, attributes: Mapping[tuple[str, str], Any], state: State) -> Any:
    """A copy of the model with other tensors, those that are neither parameters nor buffers among them."""
    model = copied(model)
    for (path, name), value in attributes.items():
        setattr(model.get_submodule(path), name, copy.deepcopy(value))
    model.load_state_dict(state, strict=False)
    return model


def _without_trace(models: Sequence[Any], run: Callable[[], Trial | None]) -> Trial | None:
    """The trial; where none comes of it, the models' buffers are what they were, as those of a candidate are, which
    meets kept trials alone."""
    before = [(model, buffers_of(model)) for model in models if model is not None]
    trial = None
    try:
        trial = run()
    finally:
        if trial is None:
            for model, buffers in before:
                put_back(model, buffers)
    return trial


def _varied(drawn: Any, step: Step, seed: int, device: running.Device) -> Any:
    """The inputs as the step's family has them, on the device. Few are varied on the host: what looks at their values
    then waits for no GPU."""
    return device.place(
        inputs.vary(drawn if trees.elements(drawn) <= workload.AT_HAND else device.place(drawn), step, seed)
    )


def _is_open(again: Callable[[], Any], model: Any, output: Any, census: evidence.Census, tied: bool) -> bool:
    """Whether the order of equal values decides, or, of inputs that are `tied`, the rounding of a sum. What a module
    makes of inputs may be equal where they are not: scores of which a sigmoid is one."""
    asked = (orders.decides, thresholds.decide) if tied else (orders.decides,)
    return any(one(again, model, output, census) for one in asked)


def _evolves(model: Any, again: Callable[[], Any], output: Any) -> bool:
    """Whether the next forward on the same inputs gives another output."""
    with unchanged(model):
        return not trees.identical(again(), output)


def _kept(model: Any, writes: Container[str], states: tuple[State, State] | None) -> State:
    """What a forward left in those of the model's buffers that it writes to, of which candidates are given the values:
    statistics for later, counters, caches. Nothing where they are many elements."""
    given = states[0] if states else {}
    kept = {name: value for name, value in model.named_buffers() if name in writes and name in given and value.numel()}
    return trees.to_cpu(kept) if trees.elements(kept) <= KEPT_ELEMENTS else {}
