"""What is asked beside values near to the reference's: float64, orders, effects on inputs, kept statistics."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import problem_texts as texts
import pytest
import torch

from dice.verify.execution import changes
from dice.verify.ipc.messages import Step
from dice.verify.reference import probing, workload
from dice.verify.reference.judge import judge, judge_muted
from dice.verify.tensors import compare, sampled
from tests.verify.reference.conftest import GIVEN, Make, draw

IN_DOUBLE = {  # forward, inputs, and the same in another order and in the inputs' dtype
    "long sum": ("return x.sum(1)", "[torch.randn(8, 100003).double()]", lambda x: x.flip(1).cumsum(1)[:, -1]),
    "matmul": (
        "return x @ inputs[1]",
        "[torch.randn(32, 2000).double(), torch.randn(2000, 32).double()]",
        lambda x, y: sum(x[:, part :: 7] @ y[part::7] for part in range(7)),
    ),
    "softmax": (
        "return torch.softmax(30 * x, 1)",
        "[torch.randn(8, 3000).double()]",
        lambda x: (30 * x).exp() / (30 * x).exp().flip(1).cumsum(1)[:, -1:],
    ),
    "variance": (
        "return x.var(1)",
        "[torch.randn(8, 3000).double() + 5]",
        lambda x: (x.square().mean(1) - x.mean(1).square()) * 3000 / 2999,
    ),
    "cancelling": ("return x.sin().sum(1) - x.cos().sum(1)", "[torch.randn(8, 9000).double() * 1000]",
                   lambda x: (x.sin() - x.cos()).flip(1).cumsum(1)[:, -1]),
    "of single": ("return x.sum(1, dtype=torch.float64)", "[torch.rand(8, 9000)]",
                  lambda x: x.flip(1).cumsum(1)[:, -1]),
    "with parameters": (
        "return self.linear(x)", "[torch.rand(64, 512).double()]", lambda x, w, b: x.flip(1) @ w.flip(1).T + b,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_DOUBLE)
def test_outputs_in_float64_are_right_in_any_order_and_wrong_in_float32(make: Make, name: str) -> None:
    forward, inputs, other = IN_DOUBLE[name]
    reference = make(texts.problem(forward, inputs, "self.linear = nn.Linear(512, 64).double()"))
    for step in (GIVEN, Step("trial 1", "scaled"), Step("trial 2", "centred"), Step("trial 3", "given", fresh=True)):
        trial = draw(reference, step)
        values = [*trial.inputs]
        if "linear" in forward:
            values += [(trial.state or reference.model.state_dict())[f"linear.{part}"] for part in ("weight", "bias")]
        assert judge(reference, trial, other(*[value.double() for value in values])).equal, step
        assert not judge(reference, trial, other(*[value.float() for value in values]).double()).equal, step


def test_an_output_in_float64_of_arithmetic_in_float32_asks_for_no_more(make: Make) -> None:
    reference = make(texts.problem("return torch.softmax(x, 1).double()", "[torch.rand(batch_size, 1000)]"))
    trial = draw(reference)
    exponents = trial.inputs[0].exp()
    assert judge(reference, trial, (exponents / exponents.flip(1).cumsum(1)[:, -1:]).double()).equal


@pytest.mark.parametrize("call", ["x.sort(dim=1, stable=True)", "x, x.argsort(dim=1, stable=True)"])
def test_the_order_that_a_stable_sort_keeps_is_asked_for(make: Make, call: str) -> None:
    inputs = "[torch.randint(0, 4, (batch_size, 30)).float()]"
    for source, right in ((call, False), (call.replace("True", "False"), True)):
        reference = make(texts.problem(f"values, order = {source}\nreturn values, order", inputs))
        trial = draw(reference)
        values, _ = trial.expected
        stable = torch.sort(trial.inputs[0], dim=1, stable=True)
        backwards = (trial.inputs[0] * 100 - torch.arange(30)).argsort(1)
        assert judge(reference, trial, (values, stable.indices)).equal
        assert judge(reference, trial, (values, backwards)).equal is right
    mixed = make(texts.problem("return x.sort(dim=1, stable=True).values, x.topk(9, dim=1).indices", inputs))
    trial = draw(mixed)
    other = (trial.inputs[0] * 100 - torch.arange(30)).argsort(1, descending=True)[:, :9]
    assert judge(mixed, trial, (trial.expected[0], other)).equal  # one of the two leaves it open


def test_what_the_reference_writes_to_an_input_is_asked_for(make: Make) -> None:
    body = "inputs[1][:, 0].copy_(x)\nreturn inputs[1].sum(1)"
    reference = make(texts.problem(body, "[torch.rand(batch_size, 8), torch.rand(batch_size, 5, 8)]"))
    trial = draw(reference)
    assert trial.changed == trial.asked_back == (1,)
    left = trial.inputs[1].clone()
    left[:, 0] = trial.inputs[0]
    told = {"changed": [1], "aliased": (), "written": (), "on_cpu": ()}
    assert judge(reference, trial, trial.expected, **told, left=[left]).equal
    assert judge(reference, trial, trial.expected, **told, left=[left * (1 + 1e-6)]).equal
    assert judge(reference, trial, trial.expected).equal  # nobody was asked
    for wrong in (trial.inputs[1], left * 1.01, left[:, :4]):
        found = judge(reference, trial, trial.expected, **told, left=[wrong])
        assert not found.equal and "input 1" in found.message
    untouched = judge(reference, trial, trial.expected, left=[left])
    assert not untouched.equal and "left input 1 as it was" in untouched.message


def test_an_input_that_is_returned_need_not_be_written_to(make: Make) -> None:
    reference = make(texts.IN_PLACE)
    trial = draw(reference)
    assert trial.changed == (0,) and trial.asked_back == ()
    assert judge(reference, trial, trial.expected, changed=[0], aliased=[0], left=[]).labels == ()
    assert judge(reference, trial, trial.expected, left=[]).labels == ("leaves_input",)


def test_statistics_that_are_not_kept_are_a_label(make: Make) -> None:
    reference = make(texts.BATCH_NORM)
    trial = draw(reference)
    names = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert judge(reference, trial, trial.expected, kept=names).labels == ()
    assert judge(reference, trial, trial.expected).labels == ()  # nobody looked
    for kept in ([], names[:2]):
        found = judge(reference, trial, trial.expected, kept=kept)
        assert found.equal and found.labels == ("keeps_no_state",)


def test_a_large_output_that_is_plainly_another_is_not_compared_whole(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make(texts.problem("return x * 2 + 1", "[torch.rand(batch_size, 900)]"))
    trial = replace(draw(reference), exact=None, roundings=())  # as of heavy problems
    monkeypatch.setattr(sampled, "LEAST", trial.expected.numel())
    assert judge_muted(reference, trial, trial.expected.clone(), (), 0, filled=False) == "decoy"
    wholes: list[str] = []
    for name in ("compare", "stray_share"):
        monkeypatch.setattr(compare, name, lambda *_, name=name, **__: wholes.append(name))
    for other in (torch.zeros_like(trial.expected), torch.full_like(trial.expected, torch.nan)):
        assert judge_muted(reference, trial, other, (), 0, filled=False) == "honest"
    assert wholes == []
    forward, drawn = partial(reference.forward, reference.model, seed=3), trial.inputs
    found = probing.weak_inputs(forward, drawn, None, forward(drawn), 4)
    assert (found, wholes) == (([], []), [])


@pytest.mark.parametrize("steps", [GIVEN, Step("trial 1", "given", fresh=True)], ids=["own", "fresh"])
def test_a_heavy_problem_rounds_as_much_as_another(make: Make, monkeypatch: pytest.MonkeyPatch, steps: Step) -> None:
    """It gets no float64 beforehand; where a few of millions of values are off, it tells how exact they can be."""
    monkeypatch.setattr(workload, "HEAVY_ELEMENTS", 1000)
    reference = make(texts.problem("return torch.cos(self.linear(x))", "[torch.rand(100, 768)]", TALL))
    trial = draw(reference, steps)
    assert trial.exact is None
    weight = (trial.state or reference.model.state_dict())["linear.weight"]
    total = torch.zeros(100, 80)
    for k in range(768):
        total += trial.inputs[0][:, k : k + 1] * weight[:, k]
    found = compare.compare(trial.expected, total.cos())
    assert not found.equal and found.share < 0.2  # by the tolerance alone
    assert judge(reference, trial, total.cos()).equal
    off = total.cos()
    off[5, 7] += 0.01
    assert not judge(reference, trial, off).equal
    assert not judge(reference, trial, total.cos() * (1 + 1e-3)).equal


TALL = "self.linear = nn.Linear(768, 80, bias=False); nn.init.normal_(self.linear.weight, std=3)"


def test_what_is_lost_on_the_way_is_rounding_though_rounded_inputs_do_not_show_it(make: Make) -> None:
    """One plus a small number has few of its bits left, and a norm makes them large again."""
    body = "return F.layer_norm(torch.softmax(self.linear(x), 1).square().exp(), (128,))"
    reference = make(texts.problem(body, "[torch.rand(100, 48)]", "self.linear = nn.Linear(48, 128)"))
    for number in range(8):
        trial = draw(reference, Step(f"trial {number}", "given"))
        assert trial.exact is not None, number
        layer = reference.model.linear
        powers = (trial.inputs[0] @ layer.weight.T + layer.bias).exp()
        shares = powers / powers.flip(1).cumsum(1)[:, -1:]
        other = torch.nn.functional.layer_norm(shares.square().exp(), (128,)).detach()
        assert judge(reference, trial, other).equal, number
        off = other.clone()
        off[3, 4] += 0.01
        assert not judge(reference, trial, off).equal, number


def test_a_sum_that_cancels_may_be_added_up_in_another_order(make: Make) -> None:
    """Also where the reference gives nothing in float64: what it adds to is float32 whatever it is given."""
    body = "return torch.zeros(64).scatter_add(0, inputs[1], x)"
    reference = make(texts.problem(body, "[torch.randn(6000), torch.randint(0, 64, (6000,))]"))
    trial = draw(reference, Step("extra", "given"))
    assert trial.exact is None
    values, keys = trial.inputs[0] - trial.inputs[0].mean(), torch.zeros_like(trial.inputs[1])
    alone = replace(trial, inputs=[values, keys], expected=torch.zeros(64).scatter_add(0, keys, values))
    backwards = alone.expected.clone()
    backwards[0] = values.flip(0).cumsum(0)[-1]
    assert judge(reference, alone, backwards).equal
    assert not judge(reference, alone, backwards + 0.01).equal


def test_a_number_that_is_nothing_but_rounding_is_asked_of_nobody(make: Make) -> None:
    """The weights of a mean, moved to have none, leave a rounding to divide by."""
    body = "return (inputs[1] * x.square()).sum() / inputs[1].sum().clamp(min=1e-6)"
    reference = make(texts.problem(body, "[torch.randn(90, 60), torch.rand(90, 60)]"))
    step = Step("extra", "centred", core=False)
    trial = next(filter(None, (reference.trial(secret, step) for secret in range(40))))
    x, weights = trial.inputs
    weights[-1, -1] -= weights.double().sum() - 1e-6
    expected = (weights * x.square()).sum() / 1e-6
    alone = replace(trial, expected=expected, exact=expected.double(), effects=())
    assert judge(reference, alone, expected * 2 / 3).equal
    given = draw(reference)
    assert not judge(reference, given, given.expected * 1.01).equal


def test_a_product_in_the_exponent_may_be_rounded_once(make: Make) -> None:
    """As a GPU does that multiplies and adds in one step."""
    body = "z = x * 0.6931471805599453\nreturn torch.exp(z - z.max(1, keepdim=True).values)"
    reference = make(texts.problem(body, "[torch.randn(batch_size, 40)]"))
    trial = draw(reference, Step("extra", changes.BELOW, core=False))
    assert trial.family == changes.BELOW
    (x,) = trial.inputs
    factor = torch.tensor(0.6931471805599453)
    greatest = (x * factor).max(1, keepdim=True).values
    fused = torch.exp((x.double() * factor.double() - greatest.double()).float())
    assert judge(reference, trial, fused).equal
    sentinel = torch.exp((x * factor) - (x * factor).clamp_min(-1e4).max(1, keepdim=True).values)
    assert not judge(reference, trial, sentinel).equal
