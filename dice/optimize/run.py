"""`optimize`: trace, cut, price, ask the library, search, put together, verify, report. The one loop of this room."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import dice
from dice.errors import UserError
from dice.files.atomic import write_json, write_text
from dice.files.journal import Journal
from dice.generation import Attempt, Prompt, Writer
from dice.kernel import Kernel
from dice.optimize.cost import cost_of, flops_of, shares
from dice.optimize.library import Library
from dice.optimize.operators import LEFT, OWN_KERNEL, kind_of
from dice.optimize.printing import Printed, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.report import GraphCut, Listed, Report, Row, Tell, tell_nobody
from dice.optimize.search import Policy, Search, journal_path
from dice.optimize.trace.tracer import Trace, Tracer
from dice.optimize.training import Trained, Training
from dice.optimize.tuning.tune import NEEDS_GPU, gain, tune
from dice.optimize.unit import Unit
from dice.optimize.whole.builds import Builds
from dice.optimize.whole.choose import LEAST, Chooser, Keep, Whole
from dice.optimize.whole.plan import Part, Plan
from dice.optimize.writers import Checkpoint, KernelWriter, Templates
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier
from dice.verify.ipc import out_of_memory
from dice.verify.options import probe_cuda
from dice.verify.roofline import Ceilings, device_key, known_ceilings
from dice.verify.sandbox.cancel import Cancellation

Show = Callable[[str, int, int], None]
TRIES_BY_RULE = 2  # on tensor cores, and without them
Units = tuple[tuple[Unit, tuple[Region, ...]], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """`kernel`: the whole module's file; None where nothing could be replaced. `plan`: what it was cut into, and the
    kernels that are part of it, those of backwards too where training was asked for and is right."""

    kernel: Kernel | None
    verdict: Verdict | None
    report: Report
    plan: Plan
    folder: Path


def optimize_module(
    problem: Problem,
    verifier: Verifier,
    writers: Sequence[KernelWriter],
    folder: Path,
    *,
    policy: Policy | None = None,
    library: Library | None = None,
    training: bool = False,
    tracer: Tracer | None = None,
    show: Show = lambda what, done, total: None,
    tell: Tell = tell_nobody,
    cancellation: Cancellation | None = None,
) -> Result:
    """Replace what can be replaced in a module by verified kernels. `folder`: the run's; what a killed run of the same
    module had verified there is not done again. `training`: gradients flow through the kernels, by kernels for the
    backward where those are right, and no slower, and by PyTorch's autograd elsewhere. `tracer`: who follows modules,
    so that several share its start; by default one of its own. `show` is told how far it is, `tell` what became of each
    region.

    Raises `UserError` for a module that cannot be run or followed, `MachineError` where this machine cannot verify,
    `Cancelled` soon after another thread has told the `cancellation`.
    """
    began, policy, off = time.monotonic(), policy or Policy(), cancellation or Cancellation()
    device = str(probe_cuda()["device"]) if verifier.backend == "cuda" else "CPU"
    _begin(folder, problem, verifier.backend, writers, policy)
    _require_runnable(verifier, problem, off)
    with (
        Tracer(verifier.backend) if tracer is None else nullcontext(tracer) as tracer,
        Journal(journal_path(folder), "run of dice optimize") as journal,
    ):
        by_rule = all(writer.is_certain for writer in writers)
        trace = _followed(problem, verifier, tracer, by_rule, lambda stage: show(stage, 0, 0), off)
        units = _cut(trace, verifier, device, policy, writers)
        tell(_graph(units, trace.reason))
        search = Search(verifier, device, policy, library, journal, tell, off)
        search.resume()
        search.run(_in_order(units), writers, show)
        tune(search, _in_order(units), _shares(units), show)
        if policy.keep == "faster" and (finer := _cut_finer(units, search)) != units:
            units = finer
            tell(_graph(units, trace.reason))
            search.run(_in_order(units), writers, show)
            tune(search, _in_order(units), _shares(units), show)
        order = _in_order(units)
        parts = _parts(order, search)
        speedups = {key: best.speedup for key in parts if (best := search.best(key)) and best.verdict.timing}
        chooser = Chooser(verifier, Plan(problem, units, parts), journal, show, policy.keep, speedups, tell, off)
        whole = chooser.choose([region.key for region, _ in order if region.key in parts])
        plan, kernel, verdict = _chosen(chooser.plan, whole)
        trained = None
        if training and kernel is not None:
            trained = Training(verifier, tracer, search, writers, show, off).train(plan)
            if trained.kernel is not None:
                plan, kernel, verdict = trained.plan, trained.kernel, trained.verdict
    seconds = time.monotonic() - began
    report = _report(problem, verifier.backend, device, trace, units, search, chooser, whole, seconds)
    report = _with_gradients(replace(report, verdict=verdict), trained) if trained is not None else report
    _end(folder, report, units, kernel or (whole.kernel if whole else None))
    return Result(kernel, verdict, report, plan, folder)


def _followed(
    problem: Problem, verifier: Verifier, tracer: Tracer, by_rule: bool, at: Callable[[str], None], off: Cancellation
) -> Trace:
    """The module's graph; operators without a rule are taken apart where rules alone write, for models know them as
    they are. Where other modules of this verifier left too little of the GPU's memory, it is asked once
    more with all of it."""
    try:
        return tracer.trace(problem, take_apart=by_rule, at=at, cancellation=off.single_job())
    except UserError as error:
        if verifier.backend != "cuda" or not out_of_memory.is_named(str(error)):
            raise
    with verifier.devices.all_memory() as gpu:
        return tracer.trace(problem, take_apart=by_rule, gpu=gpu, at=at, cancellation=off.single_job())


def _chosen(plan: Plan, whole: Whole | None) -> tuple[Plan, Kernel | None, Verdict | None]:
    """The plan with the kernels that are part of the module, its file where that is right, and its verdict."""
    if whole is None:
        return replace(plan, parts={}), None, None
    is_right = whole.verdict.correct
    kept = {key: part for key, part in plan.parts.items() if is_right and key in whole.keys}
    return replace(plan, parts=kept, apart=whole.apart), whole.kernel if is_right else None, whole.verdict


def _with_gradients(report: Report, trained: Trained) -> Report:
    rows = [
        replace(row, backward=trained.pieces.get(row.key, ()), backward_why=trained.why.get(row.key, ""))
        for row in report.rows
    ]
    is_right = trained.kernel is not None
    return replace(report, rows=tuple(rows), training=is_right, of_gradients=trained.of_gradients)


def attempt_by_regions(
    problem: Problem,
    name: str,
    writer: Writer,
    verifier: Verifier,
    *,
    samples: int,
    prompt: Prompt,
    seed: int,
    show: Show = lambda what, done, total: None,
) -> tuple[Attempt | None, str]:
    """What `dice generate` has a model write where nothing right came of the module's own text: regions in canonical
    form, so that it does not matter how the module is spelt. PyTorch may keep a part of it; the verdict says how much.

    The module is put together from what was right of `samples` kernels for each region; None, and why, where nothing
    was, or it cannot be followed. `name`: of the model. Raises `MachineError` where this machine cannot verify."""
    checkpoint = Checkpoint(name, writer, prompt, seed)
    found, why = _attempt(problem, verifier, checkpoint, samples, show)
    drafts = tuple(draft for own in checkpoint.drafts.values() for draft in own)
    return (Attempt(drafts, *found, "canonical"), "") if found is not None and drafts else (None, why)


def attempt_by_rules(
    problem: Problem, verifier: Verifier, show: Show = lambda what, done, total: None
) -> tuple[Attempt | None, str]:
    """What `dice generate` gives where the model wrote nothing right: the same regions with kernels by rule, for which
    no model is asked. Gives and raises what `attempt_by_regions` does."""
    found, why = _attempt(problem, verifier, Templates(), TRIES_BY_RULE, show)
    return (Attempt((), *found, "rules"), "") if found is not None else (None, why)


def _attempt(
    problem: Problem, verifier: Verifier, writer: KernelWriter, samples: int, show: Show
) -> tuple[tuple[Kernel | None, Verdict] | None, str]:
    """The module put together from what one writer had right, with its verdict: from what makes it faster where that
    is measured and anything does, else from all of it. None, and why, where nothing was right."""
    keeps: tuple[Keep, ...] = ("faster", "right") if verifier.backend == "cuda" else ("right",)
    with tempfile.TemporaryDirectory() as folder, Tracer(verifier.backend) as tracer:
        for keep in keeps:  # the second time all verdicts are in the folder
            policy = Policy(samples=samples, keep=keep)
            try:
                result = optimize_module(
                    problem, verifier, [writer], Path(folder), policy=policy, tracer=tracer, show=show
                )
            except UserError as error:
                return None, str(error)
            if result.verdict is not None:
                break
    if result.verdict is not None:
        return (result.kernel, result.verdict), ""
    reasons = [row.why for row in result.report.rows if row.why]
    none = "nothing that it returns is computed by an operator that a kernel could be written for"
    return None, reasons[0] if reasons else none


def _in_order(units: Units) -> list[tuple[Region, Printed]]:
    """One problem for each distinct region, those that take most of the module's time first."""
    found: dict[str, Region] = {}
    for _, regions in units:
        for region in regions:
            found.setdefault(region.key, region)
    share = _shares(units)
    return [(found[key], problem_of(found[key])) for key in sorted(found, key=lambda key: (-share[key], key))]


def _graph(units: Units, reason: str) -> GraphCut:
    share, places = _shares(units), _places(units)
    listed = (Listed(one.key, one.title, one.kind, places[one.key], share[one.key]) for one, _ in _in_order(units))
    return GraphCut(tuple(listed), reason)


def _places(units: Units) -> Counter[str]:
    """How often each region occurs in the module."""
    return Counter(region.key for unit, regions in units for region in regions for _ in unit.paths)


def _shares(units: Units) -> dict[str, float]:
    return shares([unit for unit, _ in units], {index: regions for index, (_, regions) in enumerate(units)})


def _parts(order: Sequence[tuple[Region, Printed]], search: Search) -> dict[str, Part]:
    parts = {}
    for region, printed in order:
        best = search.best(region.key)
        if best is not None and best.kernel is not None:
            parts[region.key] = Part(best.kernel, printed.paths, printed.constants)
    return parts


def _cut(trace: Trace, verifier: Verifier, device: str, policy: Policy, writers: Sequence[KernelWriter]) -> Units:
    units: Units = tuple((unit, tuple(cut(unit.graph))) for unit in trace.units)
    if policy.keep == "right" or not all(writer.is_certain for writer in writers):
        return units
    return _without_hopeless(units, known_ceilings(verifier.options.cache_dir, device_key(device)))


def _without_hopeless(units: Units, ceilings: Ceilings | None) -> Units:
    """Products that rules cannot write as fast as PyTorch's stay PyTorch's from the start: with float32's precision a
    product by rule takes what the device needs in float32, where PyTorch convolves in TF32."""
    if ceilings is None:
        return units
    found = []
    for unit, regions in units:
        known, left = unit.graph.by_name(), list[str]()
        for region in regions:
            products = [name for name in region.nodes if kind_of(known[name]) in ("product", "convolution")]
            floats = [name for name in products if known[name].spec.dtype == "float32"]
            at_best_ms = sum(1e3 * flops_of(known[name], known) / ceilings.fp32 for name in floats)
            if at_best_ms * LEAST > sum(known[name].ms for name in region.nodes) > 0:
                left += products
        found.append((unit, tuple(cut(unit.graph, left)) if left else regions))
    return tuple(found)


def _cut_finer(units: Units, search: Search) -> Units:
    """Where PyTorch's own product, convolution or attention is faster than a region around it, it stays, and what
    follows it is a region of its own. Known only where kernels are timed."""
    finer = []
    for unit, regions in units:
        left = []
        for region in regions:
            best = search.best(region.key)
            if best is None or not best.verdict.timing or best.speedup >= LEAST:
                continue
            left += [name for name in region.nodes if kind_of(unit.graph[name]) in OWN_KERNEL]
        finer.append((unit, tuple(cut(unit.graph, left)) if left else regions))
    return tuple(finer)


def _begin(folder: Path, problem: Problem, backend: str, writers: Sequence[KernelWriter], policy: Policy) -> None:
    """Note what is run. A folder may hold runs of several modules, whose regions have one another's verdicts; raises
    `UserError` for one of another backend."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "module": problem.id,
        "name": problem.name,
        "backend": backend,
        "writers": [writer.name for writer in writers],
        "policy": asdict(policy),
        "torch": importlib.metadata.version("torch"),
        "dice": dice.__version__,
    }
    path = folder / "run.json"
    if path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            known = {}
        if known.get("backend", backend) != backend:
            raise UserError(f"{folder} holds a run on the {known['backend']} backend; give another --run folder.")
    write_json(path, config)


def _require_runnable(verifier: Verifier, problem: Problem, cancellation: Cancellation) -> None:
    (fault,) = verifier.find_faults([problem], cancellation=cancellation.single_job())
    if fault is not None:
        what = "cannot run" if fault.own else "cannot be optimised here"
        said = fault.message.replace("check it at a smaller size with --scale, or on a GPU", "draw less, or use a GPU")
        if "ModuleNotFoundError" in said:
            said += "; files beside the module cannot be seen, so put all of it into one file"
        raise UserError(f"{problem.name} {what}: {said.rstrip('.')}.")


def _report(
    problem: Problem,
    backend: str,
    device: str,
    trace: Trace,
    units: Units,
    search: Search,
    chooser: Chooser,
    whole: Whole | None,
    seconds: float,
) -> Report:
    places, share = _places(units), _shares(units)
    known = {region.key: region for _, regions in units for region in regions}
    is_right = whole is not None and whole.verdict.correct
    alone = _alone(chooser.plan, whole) if whole is not None else {}
    rows = []
    for key in sorted(known, key=lambda key: -share[key]):
        region, best = known[key], search.best(key)
        cost = cost_of(region)
        timing = best.verdict.timing if best else None
        replaced = whole is not None and is_right and key in whole.keys
        rows.append(
            Row(
                key,
                region.title,
                region.kind,
                places[key],
                share[key],
                cost.flops,
                cost.bytes_moved,
                best.writer if best else "",
                replaced,
                "" if replaced else chooser.dropped.get(key) or (_of_whole(whole) if best else search.why_not(key)),
                timing.speedup if timing else None,
                timing.roofline_share if timing and timing.ceiling_ms else None,
                len(search.kept.get(key, [])),
                alone.get(key, ""),
                tuned=gain(search, key),
            )
        )
    measured = "each operator run alone on the GPU" if backend == "cuda" else "each operator run alone on the CPU"
    left = Counter(node.base.strip("_") for unit, _ in units for node in unit.graph.nodes if kind_of(node) in LEFT)
    verdict = whole.verdict if whole else None
    report = Report(
        problem.name, backend, device, measured, trace.reason, tuple(rows), left, verdict, round(seconds, 1)
    )
    return replace(report, untuned=NEEDS_GPU if search.policy.tune and backend != "cuda" else "")


def _alone(plan: Plan, whole: Whole) -> dict[str, str]:
    """Why kernels have builds of their own, by region."""
    if whole.apart:
        return dict.fromkeys(whole.keys, "is not right, or is slower, in one build with the others")
    kernels = {key: part.kernel for key, part in plan.parts.items() if key in whole.keys}
    return dict(Builds.of(plan.problem, kernels).alone)


def _of_whole(whole: Whole | None) -> str:
    if whole is None:
        return "no composition was verified"
    return f"the whole module is {whole.verdict.outcome}: {whole.verdict.message}".rstrip(": ")


def _end(folder: Path, report: Report, units: Units, kernel: Kernel | None) -> None:
    write_json(folder / "report.json", report.to_json())
    write_text(folder / "report.html", report.html(units))
    if kernel is not None:
        write_text(folder / "whole.py", kernel.source)
