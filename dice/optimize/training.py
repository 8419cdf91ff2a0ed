"""Gradients of a whole module: the backward of each of its regions is derived, written, verified and put into it.

What verifies them is a problem like any other: the module, whose `forward` also gives the gradients of all inputs and
parameters, which autograd computes. So a composed file is asked for them on fresh weights and inputs, in float64's
company, and its regions are chosen by halving and by time as those of the module are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dice.kernel import Kernel
from dice.optimize.backward.ask import backwards_of
from dice.optimize.backward.derived import Backward
from dice.optimize.printing import Printed, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.report import Behind, GraphCut, Listed
from dice.optimize.search import Search
from dice.optimize.trace.tracer import Tracer
from dice.optimize.tuning.tune import tune
from dice.optimize.whole.choose import LEAST, Chooser, Whole
from dice.optimize.whole.compose import compose
from dice.optimize.whole.inline import NotInlined, inlined
from dice.optimize.whole.plan import Gradient, Part, Plan
from dice.optimize.writers import KernelWriter
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier
from dice.verify.sandbox.cancel import Cancellation

Show = Callable[[str, int, int], None]

# What comes behind a file so that its module also gives gradients. The class stays the one that its own code names.
_WITH_GRADIENTS = '''

def _giving_gradients(forward):
    """`forward`, and the gradients of its inputs and parameters where each result has other weights.

    Those of one layer's parameters are one tensor: a bias before a normalisation has a gradient of rounding alone,
    which is compared as what is small beside its weight's.
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    def floats(one):
        return isinstance(one, torch.Tensor) and one.is_floating_point()

    def both(self, *inputs):
        with torch.enable_grad():
            given = tree_map(lambda one: one.detach().requires_grad_() if floats(one) else one, inputs)
            results = forward(self, *given)
            ends = [one for one in tree_leaves(results) if floats(one) and one.requires_grad]
            leaves = [one for one in tree_leaves(given) if floats(one)]
            owned = [[one for one in part.parameters(recurse=False) if one.requires_grad] for part in self.modules()]
            asked = list(dict.fromkeys([*leaves, *(one for group in owned for one in group)]))
            if not ends or not asked:
                return results
            weights = [
                torch.arange(one.numel(), dtype=torch.float32, device=one.device).cos().to(one.dtype).reshape(one.shape)
                for one in ends
            ]
            found = torch.autograd.grad(ends, asked, weights, allow_unused=True)
        known = {one: torch.zeros_like(one) if other is None else other for one, other in zip(asked, found)}
        joined = [torch.cat([known[one].reshape(-1) for one in group]) for group in owned if group]
        results = tree_map(lambda one: one.detach() if isinstance(one, torch.Tensor) else one, results)
        return results, [known[one] for one in leaves], joined

    return both


CLASS.forward = _giving_gradients(CLASS.forward)
'''


def problem_with_gradients(problem: Problem) -> Problem:
    """The module as one that also gives the gradients of its inputs and parameters."""
    source = problem.source.rstrip("\n") + "\n" + _WITH_GRADIENTS.replace("CLASS", "Model")
    return replace(problem, source=source, name=f"{problem.name}_with_gradients")


def kernel_with_gradients(kernel: Kernel) -> Kernel:
    """A composed file as an answer to that."""
    return replace(kernel, source=kernel.source + _WITH_GRADIENTS.replace("CLASS", "ModelNew"))


@dataclass(frozen=True, slots=True)
class Trained:
    """`plan`: with the gradients that are right; `kernel` and `verdict`: its file, and that on the module; None where
    nothing through which gradients flow is right. `of_gradients`: the verdict on them. `pieces`: of each region that is
    replaced, what became of its backward; `why`: it is PyTorch's."""

    plan: Plan
    kernel: Kernel | None
    verdict: Verdict | None
    of_gradients: Verdict | None
    pieces: Mapping[str, tuple[Behind, ...]]
    why: Mapping[str, str]


@dataclass
class _BackwardChooser(Chooser):
    """Chooses by region whether its backward is by kernels or PyTorch's; the regions themselves stay."""

    @property
    def problem(self) -> Problem:
        return problem_with_gradients(self.plan.problem)

    def composed(self, keys: Sequence[str] | frozenset[str], apart: bool) -> Kernel:
        return kernel_with_gradients(compose(with_kernels(self.plan, keys, apart)))

    def why_not_inlined(self, key: str) -> str:
        for part in self.plan.gradients[key].parts.values():
            try:
                inlined(part.kernel, part.paths, 0, part.constants)
            except NotInlined as error:
                return f"a kernel of its backward cannot be put into another file: {error}"
        return ""

    def choose_or_none(self, keys: Sequence[str]) -> Whole:
        """The best choice; without any backward kernels where none is right, or faster."""
        best = self.choose(keys) if keys else None
        if best is not None and best.verdict.correct:
            return best
        with self._beside_each_other():
            return self._verified((), apart=self.plan.apart)


def with_kernels(plan: Plan, keys: Sequence[str] | frozenset[str], apart: bool) -> Plan:
    """The plan with backward kernels for these regions alone."""
    return replace(plan, gradients={key: one for key, one in plan.gradients.items() if key in keys}, apart=apart)


@dataclass
class Training:
    """Gradients for a plan whose regions are chosen."""

    verifier: Verifier
    tracer: Tracer
    search: Search
    writers: Sequence[KernelWriter]
    show: Show
    cancellation: Cancellation
    why: dict[str, str] = field(default_factory=dict)

    def train(self, plan: Plan) -> Trained:
        backwards = self._derived(plan)
        regions = {key: tuple(cut(backward.graph)) for key, backward in backwards.items()}
        self._search(plan, regions)
        gradients = {
            key: Gradient(backward, regions[key], parts)
            for key, backward in backwards.items()
            # What no kernel is written for is PyTorch's operators as they were derived: nothing is computed anew.
            if (parts := self._parts(key, regions[key])) or not regions[key]
        }
        plan = replace(plan, training=True, gradients=gradients)
        search = self.search
        chooser = _BackwardChooser(
            self.verifier,
            plan,
            search.journal,
            self.show,
            search.policy.keep,
            tell=search.tell,
            cancellation=self.cancellation,
        )
        whole = chooser.choose_or_none(list(gradients))
        plan = with_kernels(plan, whole.keys, whole.apart)
        self.why |= {key: why for key, why in chooser.dropped.items() if key not in whole.keys}
        pieces = {key: self._pieces(key, one, key in whole.keys) for key, one in regions.items()}
        kernel = compose(plan)
        verdict = self.verifier.verify(plan.problem, kernel, cancellation=self.cancellation.single_job())
        is_right = whole.verdict.correct and verdict.correct
        return Trained(plan, kernel if is_right else None, verdict, whole.verdict, pieces, self.why)

    def _derived(self, plan: Plan) -> dict[str, Backward]:
        regions = [(region, problem_of(region)) for region in plan.replaced.values()]
        found = backwards_of(
            self.tracer,
            plan.problem,
            regions,
            may_want(plan),
            at=lambda stage: self.show(stage, 0, 0),
            cancellation=self.cancellation.single_job(),
        )
        self.why |= {key: one for key, one in found.items() if isinstance(one, str)}
        return {key: one for key, one in found.items() if isinstance(one, Backward)}

    def _search(self, plan: Plan, regions: Mapping[str, Sequence[Region]]) -> None:
        """Kernels for the regions of all backwards, as for any others."""
        distinct = {region.key: region for own in regions.values() for region in own}
        printed: list[tuple[Region, Printed]] = [(region, problem_of(region)) for region in distinct.values()]
        places = [region.key for own in regions.values() for region in own]
        self.search.tell(
            GraphCut(
                tuple(Listed(key, one.title, one.kind, places.count(key), 0.0) for key, one in distinct.items()), ""
            )
        )
        self.search.run(printed, self.writers, self.show)
        tune(self.search, printed, {}, self.show)

    def _parts(self, key: str, regions: Sequence[Region]) -> dict[str, Part]:
        found = {}
        for region in regions:
            best = self.search.best(region.key)
            is_slow = best is not None and best.verdict.timing is not None and best.speedup < LEAST
            if best is None or best.kernel is None or (is_slow and self.search.policy.keep == "faster"):
                continue
            printed = problem_of(region)
            found[region.key] = Part(best.kernel, printed.paths, printed.constants)
        if not found:
            self.why[key] = (
                "none of it has a kernel that is right and no slower"
                if regions
                else "nothing in it is what kernels are written for"
            )
        return found

    def _pieces(self, key: str, regions: Sequence[Region], is_chosen: bool) -> tuple[Behind, ...]:
        pieces = []
        for region in regions:
            best = self.search.best(region.key)
            timing = best.verdict.timing if best else None
            why = self.search.why_not(region.key) if best is None else ""
            if timing is not None and timing.speedup < LEAST and self.search.policy.keep == "faster":
                why = f"slower than PyTorch ({timing.speedup:.2f}x)"
            replaced = is_chosen and best is not None and not why
            speedup = timing.speedup if timing else None
            pieces.append(Behind(region.key, region.title, best.writer if best else "", replaced, why, speedup))
        return tuple(pieces)


def may_want(plan: Plan) -> dict[str, list[bool]]:
    """Of each region that is replaced, the inputs and states that may want a gradient somewhere: what depends on an
    input or a parameter of the module, and not on buffers alone."""
    found: dict[str, list[bool]] = {}
    for unit, regions in plan.units:
        flowing: set[str] = set()
        for node in unit.graph.nodes:
            is_source = node.operator == "input" or (node.operator == "state" and not node.options.get("buffer"))
            if is_source or flowing.intersection(node.uses):
                flowing.add(node.name)
        for region in regions:
            own = [name in flowing for name in (*region.inputs, *region.states)]
            known = found.get(region.key, own)
            found[region.key] = [one or other for one, other in zip(known, own, strict=True)]
    return found
