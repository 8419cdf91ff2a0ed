"""The backward of a region: derived by PyTorch, proven in float64, and written so that it does what autograd does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.optimize.backward.ask import order_for
from dice.optimize.backward.derive import NotDerived
from dice.optimize.backward.derived import Backward, sources_of
from dice.optimize.backward.differentiating import differentiated
from dice.optimize.backward.proof import draw, prove
from dice.optimize.graph import Graph, Malformed, Node
from dice.optimize.printing import function_of, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.report import Behind, Report, Row
from dice.optimize.templates.answer import kernel_of
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.training import may_want, problem_with_gradients
from dice.optimize.whole.gradients import FUNCTION, HELPERS, with_gradients
from dice.optimize.whole.inline import Inlined
from dice.optimize.whole.plan import Gradient, Part, Plan
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.execution.running import Device

CPU = torch.device("cpu")


class Layers(nn.Module):
    """Work whose backwards are each of another sort."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 4)
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1, dilation=2)
        self.table: torch.Tensor
        self.register_buffer("table", torch.randn(4))

    def forward(self, x: torch.Tensor, image: torch.Tensor, target: torch.Tensor, q: torch.Tensor) -> Any:
        y = F.gelu(self.linear(self.norm(x)))
        z = F.avg_pool2d(self.up(image), 2, ceil_mode=False)
        return {
            "softmax": F.softmax(y * self.table, -1),
            "loss": F.cross_entropy(y, target, ignore_index=1, weight=self.table.abs() + 1),
            "conv": F.relu(self.conv(image)),
            "up": z,
            "attention": F.scaled_dot_product_attention(q, q, q, is_causal=True),
            "largest": image.sum((2, 3)).amax(-1),
        }


@dataclass(frozen=True)
class Found:
    """A region with what may want gradients, and its backward."""

    region: Region
    wanted: list[bool]

    @cached_property
    def backward(self) -> Backward:
        raw = differentiated(order_for(self.region, problem_of(self.region), self.wanted), 0, CPU)
        assert not isinstance(raw, str), raw
        return Backward.from_json(raw, self.region)


@pytest.fixture(scope="module")
def regions() -> dict[str, Found]:
    inputs = (torch.randn(5, 6), torch.randn(2, 4, 7, 6), torch.randint(0, 4, (5,)), torch.randn(1, 2, 3, 4))
    unit = export_graph(Layers(), inputs, {}, Device("emulated"), own_file=__name__)
    found = tuple(cut(unit.graph))
    wanted = may_want(Plan(Problem("", name="net"), ((unit, found),), {}))
    return {region.title: Found(region, wanted[region.key]) for region in found}


@pytest.mark.slow  # the others hold three of them, and whole modules hold that they are right
def test_every_backward_is_proven_and_has_kernels(regions: dict[str, Found]) -> None:
    for title, found in regions.items():
        behind = cut(found.backward.graph) if any(found.wanted) else []
        assert behind or title in ("abs, add", "sum"), title
        for one in behind:
            kernel_of(one, problem_of(one))


def test_what_a_result_holds_is_not_computed_anew(regions: dict[str, Found]) -> None:
    softmax = regions["mul, softmax"].backward
    assert softmax.results == (0,) and all(node.base != "_softmax" for node in softmax.graph.nodes)
    largest = next(found.backward for title, found in regions.items() if "amax" in title)
    assert largest.results == ()  # it is looked for among what it was chosen from


def test_a_backward_that_is_not_right_is_refused(regions: dict[str, Found], monkeypatch: pytest.MonkeyPatch) -> None:
    region, backward = regions["linear, gelu"].region, regions["linear, gelu"].backward
    printed = problem_of(region)
    spoilt = replace(backward, graph=_with_constants(backward.graph, lambda number: number * (1 + 1e-6)))
    values = draw(printed.problem.source, printed.paths, 0)
    graph, sources = region.graph, sources_of(region)
    prove(graph, sources, backward, values, CPU)
    with pytest.raises(NotDerived, match="not what autograd gives in float64"):
        prove(graph, sources, spoilt, values, CPU)
    far = replace(backward, graph=_with_constants(backward.graph, lambda number: number * 1.1))
    monkeypatch.setattr("dice.optimize.backward.proof.CLOSE", 1e9)  # finite differences alone
    with pytest.raises(NotDerived, match="not the slope"):
        prove(graph, sources, far, values, CPU)


def _with_constants(graph: Graph, change: Callable[[float], float]) -> Graph:
    def changed(node: Node) -> Node:
        given = tuple(change(one) if isinstance(one, float) else one for one in node.arguments)
        return replace(node, arguments=given)

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def test_what_depends_on_buffers_alone_wants_no_gradient(regions: dict[str, Found]) -> None:
    assert regions["abs, add"].wanted == [False]
    loss = regions["cross_entropy_loss"]
    assert not loss.wanted[loss.region.inputs.index("add")] and sum(loss.wanted) == 2


def test_what_has_no_gradient_says_so(regions: dict[str, Found]) -> None:
    region = regions["linear, gelu"].region
    order = order_for(region, problem_of(region), [False] * 3)
    assert differentiated(order, 0, CPU) == "nothing of it has gradients"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda raw: raw | {"results": [7]}, "a result that the region does not have"),
        (lambda raw: raw | {"results": "all"}, "no list of places"),
        (lambda raw: raw | {"graph": raw["graph"] | {"output": {"tuple": []}}}, "not a gradient for each input"),
        (lambda raw: raw | {"gradients": []}, "an input that the region does not have"),
    ],
)
def test_what_comes_back_is_checked(regions: dict[str, Found], spoil: Callable[[Any], Any], said: str) -> None:
    found = regions["linear, gelu"]
    with pytest.raises(Malformed, match=said):
        Backward.from_json(spoil(found.backward.to_json()), found.region)


@pytest.fixture
def composed(regions: dict[str, Found]) -> tuple[Any, Any, Counter[str]]:
    """`linear, gelu` as a composed file has it, and as PyTorch does, with PyTorch in the place of its kernels: what was
    called of those, is counted."""
    region, backward = regions["linear, gelu"].region, regions["linear, gelu"].backward
    behind = tuple(cut(backward.graph))
    part: Any = Part(None, ())  # type: ignore[arg-type]
    gradient = Gradient(backward, behind, {one.key: part for one in behind})
    functions = {one.key: f"region_{number}" for number, one in enumerate(behind, 2)}
    calls: Counter[str] = Counter()
    texts = [HELPERS, FUNCTION]
    for one in behind:
        texts.append(function_of(one, functions[one.key], sources_of(one)))
    own = Inlined("region_1", "\n" + function_of(region, "region_1", ["x", "weight", "bias"]), ())
    texts.append(with_gradients(region, own, gradient, functions).text)
    space: dict[str, Any] = {"torch": torch, "F": F}
    exec("\n\n".join(texts), space)
    for one in behind:
        space[functions[one.key]] = _counted(calls, one.title, space[functions[one.key]])
    return space["region_1"], lambda x, w, b: F.gelu(F.linear(x, w, b)), calls


def _counted(calls: Counter[str], title: str, function: Any) -> Any:
    def call(*given: torch.Tensor) -> Any:
        calls[title] += 1
        assert all(one.is_contiguous() for one in given)
        return function(*given)

    return call


def _values(*needed: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    drawn = (torch.randn(5, 6), torch.randn(4, 6), torch.randn(4))
    return [one.double().requires_grad_(grad) for one, grad in zip(drawn, needed, strict=True)]


def test_gradients_are_those_of_autograd(composed: tuple[Any, Any, Counter[str]]) -> None:
    ours, theirs, calls = composed
    found = []
    for function in (ours, theirs):
        given = _values(True, True, True)
        function(*given).sum(0).square().sum().backward()
        found.append([one.grad for one in given])
    torch.testing.assert_close(*found)
    assert calls["mm"] == 2 and calls.total() == 4


def test_what_nobody_needs_is_not_computed(composed: tuple[Any, Any, Counter[str]]) -> None:
    ours, _, calls = composed
    x, weight, bias = _values(False, True, False)
    ours(x, weight, bias).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None and calls["mm"] == 1
    with torch.no_grad():
        assert not ours(x, weight, bias).requires_grad


def test_gradients_of_gradients_are_pytorchs(composed: tuple[Any, Any, Counter[str]]) -> None:
    ours, _, calls = composed
    assert torch.autograd.gradcheck(ours, _values(True, True, True))
    calls.clear()
    assert torch.autograd.gradgradcheck(ours, _values(True, True, True))
    same = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)  # one tensor in two places
    assert torch.autograd.gradgradcheck(lambda one: ours(one, one, one[0]), same)


def test_the_problem_with_gradients_gives_those_of_inputs_and_parameters() -> None:
    source = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super(Model, self).__init__()\n        self.a, self.unused = nn.Linear(3, 2), nn.Linear(1, 1)\n\n"
        "    def forward(self, pair):\n        return {'y': self.a(pair[0]), 'n': pair[1] + 1}\n"
    )
    space: dict[str, Any] = {}
    exec(problem_with_gradients(Problem(source, name="net")).source, space)
    model, x = space["Model"](), torch.randn(4, 3)
    with torch.no_grad():
        results, of_inputs, of_parameters = model((x, torch.arange(3)))
    weights = torch.arange(8.0).cos().reshape(4, 2)
    torch.testing.assert_close(of_inputs, [weights @ model.a.weight])
    torch.testing.assert_close(of_parameters[0], torch.cat([(weights.T @ x).reshape(-1), weights.sum(0)]))
    assert not of_parameters[1].any() and not results["y"].requires_grad and len(of_parameters) == 2


def test_the_report_says_who_computes_gradients() -> None:
    right = Behind("b", "mm", "templates", True, "", None)
    wrong = Behind("c", "sum", "", False, "it has no rule", None)
    row = Row("a", "linear", "product", 1, 1.0, 1, 1, "templates", True, "", None, None, 1, "", (right, wrong))
    other = replace(row, key="d", title="pool", backward=(), backward_why="it has none")
    verdict = Verdict("correct", "done", provenance="construction")
    report = Report("net", "emulated", "CPU", "CPU", "", (row, other), {}, verdict, 1.0, True, verdict)
    lines = "\n".join(report.lines())
    assert "1 of 2 kernels" in lines and "backward of linear: sum is PyTorch's: it has no rule" in lines
    assert "backward of pool is PyTorch's: it has none" in lines and "correct (construction)" in lines
    assert report.to_json()["verdict_on_gradients"]["outcome"] == "correct"  # type: ignore[index]
    assert "backward by" in report.html([]) and "1 of 2 kernels" in report.html([])
    assert "backward" not in "\n".join(replace(report, training=False, of_gradients=None).lines())
