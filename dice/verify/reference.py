"""The problem's reference: draws secret inputs, runs on them (also in float64), and judges a candidate's output.

Knows no process and no channel: `oracle.py` is the command loop over it. All that a trial needs is in its `Trial`,
so that one may be kept and used for another candidate of the same problem.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dice.verify import compare, evidence, execution, inputs, jitter, probing, scale, stopwatch, trees, wire, workload
from dice.verify.compare import Comparison
from dice.verify.execution import Device
from dice.verify.inputs import Step
from dice.verify.precision import downgrade, is_suspicious, rounded
from dice.verify.protocols import KERNELBENCH_SEED, protocol_named
from dice.verify.shortage import note as note_shortage
from dice.verify.trial import ReferenceFailed, State, Trial, blame, derive, kernelbench_seed, unchanged
from dice.verify.workload import HEAVY_ELEMENTS

# Above these, a second set of parameters costs more than it tells.
FRESH_CONSTRUCT_S, FRESH_ELEMENTS = 1.0, 30_000_000
CHEAP_ELEMENTS = {True: 1 << 15, False: 1 << 22}  # of inputs and outputs, emulated or not: extra trials are for free
FEW = 0.2  # of an output: where no more is wrong, it is asked whether a rounding of the inputs does the same
ULP_PART = 0.05  # of the distance from float64 must come from rounding, where that distance is large


class Reference:
    """One problem on one device. `folder` is scratch for its source. Raises `ReferenceFailed`, `scale.TooLarge`.

    `labels` say what is remarkable about the problem: `unused_input:1`, `weak_input:1` (no magnitude that we tried
    makes it matter).
    """

    def __init__(
        self,
        source: str,
        device: Device,
        folder: Path,
        *,
        protocol: str = "dice",
        shrink: float | None = None,
        limit_s: float = 60.0,
        large_bytes: int = 1 << 62,
    ):
        self.device, self.protocol, self.folder = device, protocol_named(protocol), folder
        self.large_bytes = large_bytes  # inputs of so much are drawn on the GPU, and trials of so much stay there
        self.scale: dict[str, Any] = {}  # how the inputs shrank
        self.labels: tuple[str, ...] = ()
        self.writes: tuple[str, ...] = ()  # parameters that the reference's forward changes
        if device.emulated:
            source, self.scale = scale.fit(source, folder, shrink, limit_s)
        self._source = source
        with blame("the file"), device.active():
            self.problem = execution.exec_file(source, folder, "problem")
        self.sizes = workload.sizes(self.problem, device)
        self.model: Any = None
        self._exact_model: Any = None
        self._fresh: tuple[State, State] | None = None
        self._careful = False
        self._ahead: dict[int, Any] = {}  # inputs drawn before their trial, by seed
        self._bench: Any = None

    def construct(self, seed: int) -> tuple[Any, State]:
        """Make the model; returns its constructor's arguments, and the parameters and buffers to copy."""
        seed = seed if self.protocol.ours else KERNELBENCH_SEED
        with blame("get_init_inputs()"), self.device.active():
            execution.seed_everything(seed)
            arguments = self.problem.get_init_inputs()
        if isinstance(arguments, dict) and arguments:  # which would give the constructor its names
            raise ReferenceFailed("get_init_inputs() returned a dict, not a list")
        self.arguments = self._cast(arguments)
        if not self.protocol.ours:
            self.arguments = self.device.place(self.arguments)
        started, model = time.monotonic(), self._new_model(seed)
        self._construct_s = time.monotonic() - started
        state = trees.state_of(model) if self.protocol.ours else {}
        self.model = self._cast(self.device.place(model))
        self._exact_model = copy.deepcopy(self.model)
        return self.arguments, state

    def construct_fresh(self, seed: int) -> tuple[State, State] | None:
        """A second set of parameters from another seed, and the same with those that are constant at construction
        (biases of 0, weights of 1, running means and variances) made random, for candidates that take parameters by
        the reference's names. None where the model has none, or many."""
        count = sum(value.numel() for _, value in trees.varying(self.model))
        if not self.protocol.ours or not 0 < count <= FRESH_ELEMENTS or self._construct_s > FRESH_CONSTRUCT_S:
            return None
        model = self._new_model(seed)
        plain = trees.state_of(model)
        varied = dict(plain)
        for name, parameter in trees.varying(model):
            if parameter.is_floating_point() and bool((parameter == parameter.reshape(-1)[:1]).all()):
                varied[name] = (parameter.detach() + torch.rand_like(parameter)).sub_(0.5)
        self._fresh = plain, varied
        return self._fresh

    def _new_model(self, seed: int) -> Any:
        arguments = copy.deepcopy(self.arguments)
        with blame("Model(...)"), self.device.active():
            execution.seed_everything(seed)
            model = self.problem.Model(*arguments)
        if not isinstance(model, torch.nn.Module):
            raise ReferenceFailed(f"Model(...) returned a {type(model).__name__}, not a torch.nn.Module")
        return model

    def plan(self, secret: int, trials: int, vary: bool = True, optional: Sequence[str] = ()) -> tuple[Step, ...]:
        """The trials of a verification, after a look at what the reference reacts to.

        Without `vary`, or under KernelBench's protocols, each is of the family `given` and in KernelBench's order; the
        reference then meets no values but those that its problem draws.
        """
        self._careful = not vary
        if not vary or not self.protocol.ours:
            return tuple(Step(f"trial {number}", "given", number=number) for number in range(trials))
        first = self._draw(derive(secret, "trial 0"))
        if self.sizes.inputs < self.large_bytes:  # drawn on the CPU, which takes its time
            self._ahead = {derive(secret, "trial 0"): first}
        drawn, seed = self.device.place(first), derive(secret, "plan")
        with unchanged(self.model):
            expected = self._forward(self.model, drawn, seed)
            forward = functools.partial(self._forward, self.model, seed=seed)
            amplified, labels = probing.weak_inputs(forward, drawn, expected, seed)
            if self._fresh is not None and not self._bears(self._fresh[True], drawn, seed):
                self._fresh = self._fresh[False], self._fresh[False]
        self.labels = tuple(labels)
        cheap = trees.elements(drawn) + trees.elements(expected) <= CHEAP_ELEMENTS[self.device.emulated]
        self.device.release()
        fresh = self._fresh is not None
        return inputs.plan(trials, seed, fresh=fresh, cheap=cheap, amplified=amplified, optional=optional)

    @property
    def fresh_states(self) -> tuple[State, State] | None:
        """What `construct_fresh` returned, less what the reference gives no finite answer for. After `plan`."""
        return self._fresh

    def _bears(self, state: State, drawn: Any, seed: int) -> bool:
        model = copy.deepcopy(self.model)
        model.load_state_dict(state, strict=False)
        try:
            return trees.is_finite(self._forward(model, drawn, seed))
        except ReferenceFailed:
            return False

    def trial(self, secret: int, step: Step, loadable: bool = True) -> Trial | None:
        """Draw the step's inputs, under a seed that follows from the secret and the step's name, and run on them.

        Where the family does not suit the problem, a core trial is of the family `given`, and another is None.
        `loadable`: the candidate takes all parameters by the reference's names.
        """
        self.device.allow_tf32(not self.protocol.ours)
        try:
            if not self.protocol.ours:
                return self._kernelbench_trial(step)
            drawn = self._try(secret, step, loadable)
            if drawn is None and step.core:
                drawn = self._try(secret, replace(step, family="given"), loadable)
            return drawn
        finally:
            self.device.release()

    def _try(self, secret: int, step: Step, loadable: bool) -> Trial | None:
        seed = derive(secret, step.name)
        must_suit = step.family not in ("given", *inputs.OPTIONAL)
        try:
            drawn = self._ahead.pop(seed, None) or self._draw(seed, step.family)
            model, exact_model = self._models(step, loadable)
            trial = self._run(model, exact_model, drawn, derive(secret, f"{step.name} forward"), step, must_suit)
            own = self._fresh[loadable] if step.fresh and self._fresh is not None else None
            return replace(trial, state=own) if trial is not None else None
        except ReferenceFailed:
            if step.family == "given" or self.device.is_broken():
                raise
            return None

    def _models(self, step: Step, loadable: bool) -> tuple[Any, Any]:
        if not step.fresh or self._fresh is None:
            return self.model, self._exact_model
        model = copy.deepcopy(self.model)
        model.load_state_dict(self._fresh[loadable], strict=False)
        return model, copy.deepcopy(model) if self._exact_model is not None else None

    def _kernelbench_trial(self, step: Step) -> Trial:
        """As KernelBench's `run_and_check_correctness` does it: one generator and one set of inputs for both models."""
        seed = kernelbench_seed(step.number)
        drawn = self._cast(self._draw(seed))
        with blame("forward"):
            placed = self.device.place(copy.deepcopy(drawn) if self.device.emulated else drawn)
            output = execution.forward(self.model, placed, seed, self.device)
            rng = execution.generator_states(self.device)
            on_cpu = tuple(self.device.on_cpu(output))
            spare = workload.is_heavy(placed, output) and not execution.aliased(output, placed)
            inputs_, expected = self._kept(placed, trees.own(output, spare))
            return Trial(step.family, inputs_, seed, expected, on_cpu=on_cpu, rng=rng)

    def _cast(self, value: Any) -> Any:
        """Modules, and tensors at the top of a list, in the protocol's dtype."""
        if not self.protocol.cast:
            return value
        dtype = getattr(torch, self.protocol.cast)
        if isinstance(value, torch.nn.Module):
            return value.to(dtype=dtype)
        return [item.to(dtype=dtype) if isinstance(item, torch.Tensor) else item for item in value]

    def _draw(self, seed: int, family: str = "") -> Any:
        problem = self._odd_problem() if family == "odd sizes" else self.problem
        with blame("get_inputs()"), self.device.active():
            drawn = self._draw_on_gpu(problem, seed) if self.sizes.inputs >= self.large_bytes else None
            if drawn is None:
                execution.seed_everything(seed)
                drawn = problem.get_inputs()
        if not isinstance(drawn, list | tuple):
            raise ReferenceFailed(f"get_inputs() returned a {type(drawn).__name__}, not a list")
        for tensor in wire.tensors(drawn):
            if what := inputs.unusable(tensor):
                raise ReferenceFailed(f"get_inputs() returned a tensor {what}, which no kernel can be given")
        return drawn

    def _draw_on_gpu(self, problem: Any, seed: int) -> Any:
        """A draw by the GPU's generator, which takes a hundredth of the time; None where the code wants the CPU's."""
        if self.device.emulated:
            return None
        try:
            with torch.device("cuda"):
                execution.seed_everything(seed)
                return problem.get_inputs()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            note_shortage(error)
            return None

    def _kept(self, *values: Any) -> tuple[Any, ...]:
        """On the CPU, or on the device where they are much. Nobody else writes to them."""
        size = sum(tensor.nbytes for value in values for tensor in wire.tensors(value))
        if size < self.large_bytes:
            return tuple(trees.to_cpu(value) for value in values)
        return tuple(wire.map_tensors(torch.Tensor.detach, self.device.place(value)) for value in values)

    def _odd_problem(self) -> Any:
        source = scale.odd(self._source)
        if source is None:
            raise ReferenceFailed("no size of its inputs is free")
        with blame("the file at odd sizes"), self.device.active():
            return execution.exec_file(source, self.folder, "problem_odd")

    def _forward(self, model: Any, drawn: Any, seed: int) -> Any:
        """The output, on the device, where the inputs are too; they are left as they are."""
        with blame("forward"):
            return execution.forward(model, wire.map_tensors(torch.Tensor.clone, drawn), seed, self.device)

    def _run(
        self,
        model: Any,
        exact_model: Any,
        drawn: Any,
        seed: int,
        step: Step,
        must_suit: bool = False,
        spare: bool = False,
    ) -> Trial | None:
        """One trial of these inputs, with the step's family applied; None where it must suit the reference and does
        not. Leaves the buffers of the model as a single forward does. `spare`: nobody needs the inputs afterwards."""
        base = inputs.vary(self.device.place(drawn), step)
        with blame("forward"):
            placed = base if spare else wire.map_tensors(torch.Tensor.clone, base)
            before = execution.fingerprints(model)
            census = evidence.Census()
            output = execution.forward(model, placed, seed, self.device, census=census)
            self.writes = tuple({*self.writes, *execution.written(model, before)})
            changed = trees.changed(placed, base)
            aliased = tuple(execution.aliased(output, placed))
            on_cpu = tuple(self.device.on_cpu(output))
            heavy = workload.is_heavy(base, output)
            del placed
            output = trees.own(output, heavy and not aliased)
        exact = None if heavy else self._exact(exact_model, base, seed)
        if must_suit and not jitter.is_well_posed(output, exact):
            return None
        effects: tuple[float | None, ...] = ()
        roundings: tuple[float | None, ...] = ()
        if step.family == "zeros" and not heavy:
            roundings = self._moved(model, inputs.nudge(base, self.device.place(drawn)), output, seed)
        elif not heavy:
            effects = self._effects(model, base, output, seed)
            exact = exact if self._is_believable(model, base, output, exact, seed) else None
        inputs_, expected, exact = self._kept(drawn if step.family == "given" else base, output, exact)
        known = (changed, aliased, on_cpu, effects, roundings)
        return Trial(step.family, inputs_, seed, expected, exact, *known, work=census.work)

    def _exact(self, model: Any, drawn: Any, seed: int) -> Any:
        """The same forward in float64, to know how exact the reference is; None where it cannot be had."""
        if model is None:
            return None
        try:
            widened = wire.map_tensors(trees.widened, drawn)
            return execution.forward(model.double(), widened, seed, self.device)
        except (RuntimeError, TypeError, ValueError) as error:  # written for one dtype, or too large in float64
            note_shortage(error)
            self._exact_model = None
            return None
        finally:
            self.device.release()

    def _effects(self, model: Any, drawn: Any, output: Any, seed: int) -> tuple[float | None, ...]:
        if self._careful:
            return ()
        execution.seed_everything(seed)
        return self._moved(model, inputs.disturb(drawn), output, seed)

    def _moved(self, model: Any, drawn: Any, output: Any, seed: int) -> tuple[float | None, ...]:
        """How far (rms) each tensor of the output is from that of other inputs; nothing where they do not suit."""
        with unchanged(model):
            try:
                other = self._forward(model, drawn, seed)
            except ReferenceFailed:
                return ()
        pairs = zip(wire.tensors(output), wire.tensors(other), strict=False)
        return tuple(compare.rms_difference(*pair) for pair in pairs)

    def _is_believable(self, model: Any, drawn: Any, output: Any, exact: Any, seed: int) -> bool:
        """Whether the float64 output is the same quantity. Where it is far from the reference's own, rounding of the
        inputs must move that too: else the model draws other random numbers in float64, or computes something else.
        Nearly the same is the same: where `x - tanh(x)` rounds is not moved by inputs that are off by a rounding."""
        if exact is None or trees.shape_of(exact) != trees.shape_of(output):
            return False
        pairs = list(zip(wire.tensors(output), wire.tensors(exact), strict=True))
        if all(compare.stray_share(*pair) == 0.0 or compare.is_near(*pair) for pair in pairs):
            return True
        offs, moved = [compare.rms_difference(*pair) for pair in pairs], [0.0] * len(pairs)
        with unchanged(model), contextlib.suppress(ReferenceFailed):
            for rounded in jitter.outputs(lambda other: self._forward(model, other, seed), drawn):
                found = map(compare.rms_difference, wire.tensors(output), wire.tensors(rounded))
                moved = [max(most, new or 0.0) for most, new in zip(moved, found, strict=False)]
        return all(off is None or most >= ULP_PART * off for off, most in zip(offs, moved, strict=False))

    def judge(
        self,
        trial: Trial,
        actual: Any,
        changed: Iterable[int] = (),
        aliased: Iterable[int] = (),
        written: Iterable[str] = (),
        on_cpu: Iterable[int] = (),
    ) -> Comparison:
        """Whether `actual` is the trial's output.

        `changed`: the input tensors that the candidate wrote to; `aliased`: those that its output shares memory with;
        `written`: its parameters that changed; `on_cpu`: its output tensors that are not on the GPU. What the reference
        does itself is allowed.
        """
        if set(on_cpu) - set(trial.on_cpu):
            message = "forward returned a tensor on the CPU; the reference's is on the GPU."
            return Comparison(False, message, (message,))
        expected, actual, exact = map(self.device.place, (trial.expected, actual, trial.exact))
        known = (self.protocol.name, exact, trial.effects, trial.roundings)
        result = compare.compare(expected, actual, *known)
        if result.equal and trial.rounded and not trees.is_as_exact(actual, expected, exact):
            message = "the output is less exact than the reference's under PyTorch's defaults."
            return Comparison(False, message, (message,))
        if not result.equal and result.share <= FEW and exact is not None and trial.state is None:
            result = compare.compare(expected, actual, *known, self._slacks(trial, exact))
        faults = []
        if unasked := sorted(set(changed) - set(trial.changed)):
            faults.append(("mutates_input", f"forward changed input {unasked[0]} in place"))
        if unasked := sorted(set(aliased) - set(trial.aliased)):
            faults.append(("aliases_input", f"forward returned memory of input {unasked[0]}, not a tensor of its own"))
        if names := sorted(set(written) - set(self.writes)):
            faults.append(("writes_parameter", f"forward changed the parameter {names[0]}"))
        if not result.equal or not faults:
            return result
        if not self.protocol.ours:
            return replace(result, labels=tuple(label for label, _ in faults))
        message = f"{faults[0][1]}; the reference does not."
        return replace(result, equal=False, message=message, errors=(message,))

    def _slacks(self, trial: Trial, exact: Any) -> tuple[torch.Tensor, ...]:
        self.device.allow_tf32(False)
        drawn = self.device.place(trial.inputs)
        with unchanged(self.model), contextlib.suppress(ReferenceFailed):
            return jitter.slacks(lambda other: self._forward(self.model, other, trial.seed), drawn, exact)
        return ()

    def judge_muted(
        self, trial: Trial, actual: Any, witnesses: Sequence[evidence.Sample], seed: int, filled: bool
    ) -> str:
        """What a forward shows in which the candidate's own kernels did nothing: a kind of `evidence.KINDS`, "honest",
        or "tells_nothing". `actual`: its output, None for none; `witnesses`: samples, by `seed`, of what PyTorch
        computed in it. `filled`: what its kernels should fill held the inputs."""
        telling = [leaf for leaf in self._traces(trial, seed) if not leaf.tells_nothing]
        if not telling or (filled and telling[0].has_idle_step):
            return "tells_nothing"
        if actual is not None and self.judge(trial, actual).equal:
            return "copies_inputs" if filled else "decoy"
        if filled:
            return "honest"
        return "copies_result" if all(evidence.is_given_away(leaf, witnesses) for leaf in telling) else "honest"

    def _traces(self, trial: Trial, seed: int) -> list[evidence.Traces]:
        leaves = [tensor for tensor in wire.tensors(trial.expected) if tensor.numel() and not tensor.is_complex()]
        sizes = {tensor.numel() for tensor in (*leaves, *wire.tensors(trial.inputs))}
        census = evidence.Census(sorted(sizes - {0}), seed)
        with unchanged(self.model), blame("forward"):
            placed = self.device.place(wire.map_tensors(torch.Tensor.clone, trial.inputs))
            execution.forward(self.model, placed, trial.seed, self.device, census=census)
        found = zip(census.witnesses, census.computed, strict=True)
        results = tuple(witness for witness, computed in found if computed)
        given = tuple(evidence.samples(t, seed) for t in wire.tensors(trial.inputs) if not t.is_complex() and t.numel())
        counts = evidence.counts(wire.tensors(trial.inputs))
        return [evidence.Traces(evidence.samples(leaf, seed), given, results, counts) for leaf in leaves]

    def precision_label(self, trial: Trial, actual: Any) -> str:
        """`precision_downgrade:bfloat16` and the like where a float32 output has the errors of a shorter format."""
        if not self.protocol.ours or trial.exact is None or self._exact_model is None:
            return ""
        values = map(self.device.place, (trial.expected, actual, trial.exact))
        expected, actual, exact = map(wire.tensors, values)
        for index, leaf in enumerate(zip(expected, actual, exact, strict=False)):
            if is_suspicious(*leaf):
                return downgrade(*leaf, lambda name: self._rounded(trial, name, index))  # noqa: B023
        return ""

    def _rounded(self, trial: Trial, name: str, index: int) -> torch.Tensor | None:
        """The float64 output `index` for inputs and parameters rounded to a format."""
        model = copy.deepcopy(self._exact_model).double()
        model.load_state_dict(trial.state or {}, strict=False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(rounded(parameter, name))
        drawn = wire.map_tensors(lambda tensor: rounded(tensor, name), self.device.place(trial.inputs))
        output = self._exact(model, drawn, trial.seed)
        tensors = wire.tensors(output)
        return tensors[index] if index < len(tensors) else None

    def start_timing(self, inputs: Any, warm_up_s: float) -> dict[str, Any]:
        """Make ready to be timed on these inputs."""
        self.device.allow_tf32(True)  # the reference as its users run it
        with blame("forward"), torch.no_grad():
            placed = self.device.place(inputs)
            salted = stopwatch.continuous(placed)
            self._bench = stopwatch.Bench(self.model, placed, salted, stopwatch.CudaStopwatch(), frugal=True)
            self.device.timing = True
            answer: dict[str, Any] = self._bench.warm_up(warm_up_s)
            return answer | {"salted": salted, "flushes": self._bench.hide_launches(answer["call_ms"])}

    def time(self, step: str, seed: int, calls: int) -> dict[str, Any]:
        """One step of timing: `round`, `block` or `empty_block` of `calls` calls, or what `workload.py` measures."""
        self.device.allow_tf32(True)
        with blame("forward"), torch.no_grad():
            bench = self._bench
            if step == "work":
                return workload.describe(self.model, bench.fill(0, 0))
            if step == "needed":
                return {"bytes": workload.needed_bytes(self.model, bench.fill(0, 0))}
            if step == "ceilings":
                return workload.measure_ceilings(bench.stopwatch)
            if step == "compiled":
                return stopwatch.time_compiled(self.model, bench, self.folder)
            measure = {"round": bench.round, "block": bench.block, "empty_block": bench.empty_block}[step]
            answer: dict[str, Any] = measure(seed, calls)
            return answer

    def end_timing(self) -> None:
        """Give back the device memory that timing took: copies of the inputs, and outputs."""
        if self._bench is not None:
            self._bench = None
            self.device.timing = False
            self.device.release()

    def timed_trial(self, seed: int, call: int) -> Trial:
        """One of the candidate's timed calls as a trial: its own inputs, and the reference's output for them."""
        self.device.allow_tf32(not self.protocol.ours)
        (drawn,) = self._kept(self._bench.fill(seed, call))
        forward_seed = stopwatch.call_seed(seed, call)
        exact_model = self._exact_model if self.protocol.ours else None
        spare = trees.elements(drawn) > HEAVY_ELEMENTS
        trial = self._run(self.model, exact_model, drawn, forward_seed, Step("timing", "given"), spare=spare)
        assert trial is not None
        return trial

    def as_timed(self, trial: Trial) -> Trial | None:
        """The same with the output that PyTorch's defaults give, under which both sides are timed (convolutions in
        TF32), and the one in full precision to tell how exact that is. None where it is no other."""
        if not self.protocol.ours or "contraction" not in trial.work.elements:
            return None
        self.device.allow_tf32(True)
        with unchanged(self.model):
            expected = self._forward(self.model, self.device.place(trial.inputs), trial.seed)
        if trees.identical(expected, self.device.place(trial.expected)):
            return None
        return replace(trial, expected=expected, exact=trial.expected, rounded=True)
