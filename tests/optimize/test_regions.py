"""How a graph is cut, and how a region is printed as a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.optimize.cost import flops_of
from dice.optimize.graph import Node, Ref, Spec, Term
from dice.optimize.printing import problem_of
from dice.optimize.python_text import expression
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.run import _without_hopeless
from dice.optimize.trace.capture_graph import export_graph
from dice.verify.execution.running import Device
from dice.verify.roofline import Ceilings


class Layers(nn.Module):
    """Some layers, and what is done with them."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.run(self, *inputs)


def regions_of(module: nn.Module, *inputs: torch.Tensor) -> list[Region]:
    return cut(export_graph(module, inputs, {}, Device("emulated"), own_file=__name__).graph)


def titles(module: nn.Module, *inputs: torch.Tensor) -> list[str]:
    return [region.title for region in regions_of(module, *inputs)]


def test_what_follows_a_product_joins_it_and_rows_begin_anew() -> None:
    module = Layers(lambda m, x: F.softmax(F.relu(m.a(x)) * 2, -1), a=nn.Linear(8, 16))
    assert titles(module, torch.randn(4, 8)) == ["linear, relu, mul", "softmax"]


def test_a_sum_that_others_read_stays_outside_of_the_product() -> None:
    """The product's own result is read twice, so that nothing may take its place."""
    module = Layers(lambda m, x: (y := m.a(x), F.relu(y)), a=nn.Linear(8, 8))
    assert titles(module, torch.randn(4, 8)) == ["linear", "relu"]


def test_a_written_out_normalisation_is_one_region() -> None:
    def rms(module: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    assert titles(Layers(rms), torch.randn(4, 8)) == ["pow, mean, add, rsqrt, mul"]


def test_written_out_attention_is_one_region() -> None:
    def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.softmax(q @ k.transpose(1, 2) / 4, -1) @ v

    (region,) = regions_of(Layers(attend), *(torch.randn(2, 12, 16) for _ in range(3)))
    assert region.kind == "attention"


def test_no_path_leaves_a_region_and_comes_back() -> None:
    """x + layer(x) may not be one region with what made x: the layer lies between."""
    module = Layers(lambda m, x: (y := torch.tanh(x) * 2) + m.a(y).cumsum(-1), a=nn.Linear(8, 8))
    assert titles(module, torch.randn(4, 8)) == ["tanh, mul", "linear", "cumsum", "add"]


def test_regions_that_wait_for_each_other_are_taken_apart() -> None:
    """Two chains that feed each other by turns, at places which no path joins within one of them."""

    def crossed(module: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = F.softmax(x, -1), F.softmax(y, 0)
        return F.softmax(a.exp() + b, -1), F.softmax(b.exp() + a, 0)

    regions = regions_of(Layers(crossed), torch.randn(4, 4), torch.randn(4, 4))
    made: set[str] = set()
    waiting = list(regions)
    while ready := [
        one
        for one in waiting
        if not {name for other in waiting if other is not one for name in other.outputs} & set(one.inputs)
    ]:
        made.update(name for one in ready for name in one.outputs)
        waiting = [one for one in waiting if one not in ready]
    assert not waiting


def test_equal_work_is_one_problem() -> None:
    layers = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}
    module = Layers(lambda m, x: F.gelu(m.b(F.gelu(m.a(x)))), **layers)
    first, other = regions_of(module, torch.randn(4, 8))
    assert first.key == other.key and problem_of(first) == problem_of(other)
    assert first.states != other.states
    wider, _ = regions_of(module, torch.randn(5, 8))
    assert wider.key != first.key


def test_a_region_prints_as_a_problem_that_computes_the_same() -> None:
    module = Layers(lambda m, x: F.gelu(m.conv(x)) + 1, conv=nn.Conv2d(3, 8, 3, stride=2, padding=1))
    (region,) = regions_of(module, torch.randn(2, 3, 8, 8))
    printed = problem_of(region)
    assert "self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)" in printed.problem.source
    assert printed.paths == ("conv.weight", "conv.bias")
    space: dict[str, Any] = {}
    exec(printed.problem.check().source, space)
    model = space["Model"](*space["get_init_inputs"]())
    model.load_state_dict(module.state_dict())
    (x,) = space["get_inputs"]()
    assert x.shape == (2, 3, 8, 8)
    torch.testing.assert_close(model(x), module(x))


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (lambda x: x.sum(1, True), "torch.sum(x, dim=1, keepdim=True)"),
        (lambda x: x.var(0, unbiased=False), "torch.var(x, dim=0, unbiased=False)"),
        (lambda x: torch.logsumexp(x, (1, 2), keepdim=True), "torch.logsumexp(x, dim=[1, 2], keepdim=True)"),
        (lambda x: (x * 3 - 1.5).clamp(max=1.25), "torch.clamp(sub, max=1.25)"),
        (lambda x: torch.add(x, -1.5), "x - 1.5"),
        (lambda x: F.max_pool1d(x, 3, 2, 1), "F.max_pool1d(x, 3, stride=2, padding=1)"),
        (lambda x: F.avg_pool2d(x, (2, 3), 1, count_include_pad=False), "stride=1, count_include_pad=False)"),
        (lambda x: F.batch_norm(x, None, None, training=True, eps=0.5), "None, None, training=True, eps=0.5)"),
    ],
)
def test_numbers_are_told_by_their_names(run: Callable[..., Any], line: str) -> None:
    """What is meant by `torch.sum(x, [1], True)` nobody can see."""
    x = torch.randn(4, 6, 12)
    module = Layers(lambda m, x: run(x))
    (region,) = regions_of(module, x)
    space = _executed(problem_of(region).problem.source)
    assert line in problem_of(region).problem.source
    torch.testing.assert_close(space["Model"]()(x), module(x))


def _executed(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(source, space)
    return space


def test_layers_that_hold_a_tensor_are_layers() -> None:
    layers = {"conv": nn.Conv2d(3, 8, 3, padding="same", dilation=2), "act": nn.PReLU(8)}
    sources = [
        problem_of(region).problem.source
        for region in regions_of(Layers(lambda m, x: m.act(m.conv(x).cumsum(-1)), **layers), torch.randn(2, 3, 8, 8))
    ]
    assert any("self.conv = nn.Conv2d(3, 8, 3, padding=2, dilation=2)" in source for source in sources)
    assert any("self.prelu = nn.PReLU(8)" in source for source in sources)


def test_inputs_stand_in_the_order_in_which_operators_take_them() -> None:
    """However the module's own lines turn them before."""

    def attend(module: Any, k: torch.Tensor, v: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        turned = k.transpose(1, 2)
        return F.softmax(q @ turned / 4, -1) @ v

    (region,) = regions_of(Layers(attend), *(torch.randn(2, 12, 16) for _ in range(3)))
    source = problem_of(region).problem.source
    assert "transpose = torch.transpose(y, 1, 2)" in source and "matmul = x @ transpose" in source


def test_an_input_that_is_given_twice_is_two_inputs() -> None:
    """Another caller may give two."""
    x = torch.randn(4, 8)
    (region,) = regions_of(Layers(lambda m, x, y: torch.relu(x) - y), x, x)
    one, other = torch.randn(4, 8), torch.randn(4, 8)
    found = _executed(problem_of(region).problem.source)["Model"]()(one, other)
    torch.testing.assert_close(found, torch.relu(one) - other)


def test_what_is_asked_for_its_shape_alone_may_be_negative() -> None:
    x = torch.randn(4, 8)
    (region,) = regions_of(Layers(lambda m, x: F.normalize(x, dim=1)), x)
    source = problem_of(region).problem.source
    assert "return [torch.randn(4, 8)]" in source and "expand" not in source
    torch.testing.assert_close(_executed(source)["Model"]()(x), F.normalize(x, dim=1))


def test_indices_are_drawn_within_what_they_index() -> None:
    module = Layers(lambda m, i: m.table(i) * 2, table=nn.Embedding(7, 4))
    (region,) = regions_of(module, torch.randint(0, 7, (3, 5)))
    assert "torch.randint(0, 7, (3, 5))" in problem_of(region).problem.source


def test_training_statistics_are_handed_on() -> None:
    (region,) = regions_of(nn.BatchNorm2d(4), torch.randn(3, 4, 5, 6))
    assert [update.output for update in region.updates] == [1, 2]
    assert region.outputs[1:] == ("", "")


def test_a_state_may_have_the_name_that_an_input_gets() -> None:
    module = Layers(lambda m, a, b, c: (a + b * c) * m.w + m.x)
    module.w, module.x = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
    (region,) = regions_of(module, *(torch.randn(3, 4) for _ in range(3)))
    names = [node.name for node in region.graph.nodes]
    assert len(set(names)) == len(names)


def test_what_was_computed_in_half_precision_is_handed_on_in_half_precision() -> None:
    module = Layers(lambda m, x: F.relu(m.a(x)).float() * 2, a=nn.Linear(8, 8).half())
    assert titles(module, torch.randn(4, 8).half()) == ["linear, relu", "to, mul"]


def test_long_transforms_stay_pytorchs_and_what_follows_them_does_not() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs().log1p().mean(-1)

    unit = export_graph(Spectrum(), (torch.randn(4, 4096),), {}, Device("emulated"), own_file=__name__)
    assert [region.title for region in cut(unit.graph)] == ["mul x2, add, sqrt, log1p, mean"]


def test_shares_come_from_the_median_of_runs_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sigmoid(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x)

    took = iter((9.0, 0.001, 0.5, 0.001, 0.003))  # seconds: of the first run, and of one that was held up
    clock = iter([stamp for seconds in took for stamp in (0.0, seconds)])
    monkeypatch.setattr("dice.optimize.trace.capture_graph.time.perf_counter", lambda: next(clock))
    unit = export_graph(Sigmoid(), (torch.randn(4),), {}, Device("emulated"), own_file=__name__, measure=True)
    assert [node.ms for node in unit.graph.nodes if node.base == "sigmoid"] == [pytest.approx(2.0)]


@pytest.mark.parametrize("named", [(), (None, None, 1e-05, False)])
def test_defaults_are_left_out_whether_or_not_the_tracer_names_them(named: tuple[Term, ...]) -> None:
    node = Node("y", "aten.layer_norm.default", (Ref("x"), [3], *named), {}, Spec((2, 3), "float32"))
    assert expression(node, {"x": "x"}) == "F.layer_norm(x, [3])"


def test_a_convolution_that_no_rule_makes_as_fast_stays_pytorchs() -> None:
    layers = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU())
    unit = export_graph(layers, (torch.randn(2, 8, 12, 12),), {}, Device("emulated"), own_file=__name__)
    ceilings = Ceilings(bandwidth=1e12, fp32=1e12, tf32=4e12, bf16=8e12, l2_bytes=1 << 20)
    at_best_ms = 2 * (2 * 16 * 10 * 10) * (8 * 9) / 1e9

    def regions(ms: float, known: Ceilings | None = ceilings) -> list[str]:
        nodes = [replace(node, ms=ms if "conv" in node.operator else 0.0) for node in unit.graph.nodes]
        timed = replace(unit, graph=replace(unit.graph, nodes=tuple(nodes)))
        ((_, found),) = _without_hopeless(((timed, tuple(cut(timed.graph))),), known)
        return [region.title for region in found]

    whole = regions(0.0)
    assert len(whole) == 1 and "conv" in whole[0]
    assert regions(1.1 * at_best_ms) == whole == regions(0.5 * at_best_ms, None)
    assert regions(0.5 * at_best_ms) == ["relu"]


def test_what_is_made_of_numbers_alone_is_made_where_it_is_read() -> None:
    """Such as a causal mask: PyTorch would make it in each call."""

    def masked(module: Any, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(6)
        return x.masked_fill(place[None] > place[:, None] * 2, -1e9) * (place * 2).sum()

    (region,) = regions_of(Layers(masked), torch.randn(6, 6))
    assert region.nodes == ("masked_fill", "mul_2")
    assert {"gt", "sum"} <= {node.base for node in region.graph.nodes}


def test_indices_of_a_region_are_drawn_in_bounds_through_what_is_done_with_them() -> None:
    def chosen(module: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return x.gather(1, torch.where(label == -100, 0, label)[:, None])

    (region,) = regions_of(Layers(chosen), torch.randn(5, 3), torch.randint(0, 3, (5,)))
    assert "torch.randint(0, 3, (5,))" in problem_of(region).problem.source


def test_what_an_einsum_without_an_arrow_costs() -> None:
    nodes = {name: Node(name, "input", (name,), {}, Spec((4, 5), "float32")) for name in "xy"}
    einsum = Node("z", "aten.einsum.default", ("ij,kj", [Ref("x"), Ref("y")]), {}, Spec((4, 4), "float32"))
    assert flops_of(einsum, nodes) == 2 * 16 * 5


@pytest.mark.parametrize("form", ["index", "unbind", "later"])
def test_the_steps_of_a_loop_are_one_region(form: str) -> None:
    """Where a step's place were part of its region, each step would be another one."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            x = torch.exp(x)
            steps = x.unbind(0) if form == "unbind" else [x[t] if form == "index" else x[:, t] for t in range(20)]
            for step in steps:
                h = torch.tanh(self.own(h) + step)
            return h

    x = torch.randn((4, 20, 8) if form == "later" else (20, 4, 8))
    graph = export_graph(Loop(), (x, torch.randn(4, 8)), {}, Device("emulated"), own_file=__name__).graph
    regions = cut(graph)
    assert len(regions) == 21
    assert len({region.key for region in regions}) == 2


def test_few_parts_of_a_tensor_are_read_where_they_are() -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[0] * torch.sigmoid(x[1]) + x[2]

    graph = export_graph(Parts(), (torch.randn(3, 4),), {}, Device("emulated"), own_file=__name__).graph
    (region,) = cut(graph)
    assert len(region.inputs) == 1
