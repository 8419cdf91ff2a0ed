"""The reference's own judgement, in one process: which draws suit, what it reacts to, what it accepts and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import problem_texts as texts
import pytest
import torch

from dice.verify.execution import changes
from dice.verify.execution.inputs import ROTATED
from dice.verify.execution.running import Device
from dice.verify.ipc.messages import Step
from dice.verify.reference.judge import judge
from dice.verify.reference.timing import as_timed
from dice.verify.reference.trial import ReferenceFailed, Trial
from tests.verify.reference.conftest import GIVEN, SECRET, Make, draw


def test_the_reference_accepts_its_own_output_in_every_family(make: Make) -> None:
    for source in (texts.RELU, texts.LINEAR, texts.GATHER, texts.TWO_OUTPUTS, texts.BIASED_NETWORK, texts.MATMUL):
        reference = make(source)
        for step in reference.plan(SECRET, 5):
            trial = reference.trial(SECRET, step)
            assert trial is None or judge(reference, trial, trial.expected).equal, (source, step)


@pytest.mark.parametrize("family", ["ties", "zeros"])
def test_an_order_among_equal_values_is_asked_of_nobody(make: Make, family: str) -> None:
    sorts = "values, order = x.sort(dim=1)\n"
    step = Step(f"extra {family}", family, core=False)
    inputs = "[torch.rand(batch_size, 40)]"
    assert make(texts.problem(sorts + "return values, order", inputs)).trial(SECRET, step) is None
    assert make(texts.problem(sorts + "return values", inputs)).trial(SECRET, step) is not None
    assert make(texts.problem("return x.argmax(dim=1) + x.sum(1)", inputs)).trial(SECRET, step) is not None


@pytest.mark.parametrize("family", ["zeros", "ties"])
def test_what_follows_from_an_order_among_equal_values_is_asked_of_nobody(make: Make, family: str) -> None:
    """Of experts that a router finds equally good any may be taken: what comes out tells which."""
    inputs = "[torch.randn(8, 16), torch.randn(16, 12)]"
    mixed = texts.problem("v, i = (x @ inputs[1]).topk(2); return v.sum(-1) + i.sum(-1)", inputs)
    summed = texts.problem("return (x @ inputs[1]).topk(2)[0].sum(-1)", inputs)
    step = Step("extra", family, core=False)
    assert make(summed).trial(SECRET, step) is not None
    reference = make(mixed)
    if family == "zeros":
        assert reference.trial(SECRET, step) is None
    assert reference.trial(SECRET, Step("trial 0", "given")) is not None


@pytest.mark.parametrize("family", [changes.BELOW, changes.ABOVE])
def test_scores_that_saturate_are_equal_too(make: Make, family: str) -> None:
    """Where a sigmoid is one for all of them, no place is the best; of the scores themselves one is."""
    step = Step("extra", family, core=False)
    chosen = "i = {}.topk(3, dim=1)[1]\nreturn x.gather(1, i)"
    inputs = "[torch.randn(batch_size, 40)]"
    assert make(texts.problem(chosen.format("torch.sigmoid(x * 1e4)"), inputs)).trial(SECRET, step) is None
    assert make(texts.problem(chosen.format("x"), inputs)).trial(SECRET, step) is not None


def test_another_order_of_equal_values_is_right_and_of_others_is_not(make: Make) -> None:
    inputs = "[torch.randint(0, 4, (batch_size, 30)).float()]"
    reference = make(texts.problem("values, order = x.topk(9, dim=1)\nreturn values, order", inputs))
    trial = draw(reference)
    values, order = trial.expected
    stable = torch.sort(trial.inputs[0], dim=1, descending=True, stable=True).indices[:, :9]
    backwards = 29 - torch.sort(trial.inputs[0].flip(1), dim=1, descending=True, stable=True).indices[:, :9]
    assert not torch.equal(stable, backwards)
    for right in (stable, backwards):
        assert judge(reference, trial, (values, right)).equal
    assert not judge(reference, trial, (values, order[:, :1].expand(-1, 9).contiguous())).equal  # one place nine times
    assert not judge(reference, trial, (values, order.roll(1, 0))).equal
    assert (
        not judge(reference, trial, (values, order + 30)).equal and not judge(reference, trial, (values, -order)).equal
    )


def test_a_statistic_that_the_reference_keeps_may_be_written_to(make: Make) -> None:
    reference = make(
        texts.problem("return self.norm(x)", "[torch.rand(batch_size, 8)]", "self.norm = nn.BatchNorm1d(8)")
    )
    trial = draw(reference)
    assert judge(reference, trial, trial.expected, written=["norm.running_mean"]).equal
    assert not judge(reference, trial, trial.expected, written=["norm.weight"]).equal


def test_an_error_of_rounding_is_accepted_and_a_larger_one_is_not(make: Make) -> None:
    for source in (texts.MATMUL, texts.LINEAR, texts.WIDE_SOFTMAX, texts.WIDE_LAYER_NORM, texts.OFFSET):
        reference = make(source)
        trial = draw(reference)
        assert judge(reference, trial, trial.exact.float()).equal
        assert not judge(reference, trial, trial.expected * 1.001 + 0.001 * trial.expected.std()).equal


@pytest.mark.parametrize(
    "source",
    [texts.WIDE_SOFTMAX, texts.OFFSET, texts.BIASED_NETWORK, texts.WIDE_LAYER_NORM],
    ids=["softmax over 20,000", "common offset", "biases outweigh the input", "wide layer norm"],
)
def test_answers_that_ignore_the_input_fail(make: Make, source: str) -> None:
    """Each is a cheat that passes a fixed tolerance somewhere: the mean, one element, another draw's answer, zeros."""
    reference = make(source)
    trial, other = draw(reference), draw(reference, Step("trial 9", "given"))
    mean = trial.expected.mean(dim=0, keepdim=True).expand_as(trial.expected).clone()
    overall = torch.full_like(trial.expected, float(trial.expected.mean()))
    for cheat in (mean, overall, other.expected, torch.zeros_like(mean)):
        assert not judge(reference, trial, cheat).equal
    half = torch.cat([trial.expected[: len(mean) // 2], other.expected[len(mean) // 2 :]])
    assert not judge(reference, trial, half).equal


def test_constants_that_kernelbench_lets_through_fail_here(make: Make, tmp_path: Path) -> None:
    ours, theirs = make(texts.WIDE_SOFTMAX), make(texts.WIDE_SOFTMAX, "kernelbench")
    trial = draw(theirs, Step("trial 0", "given", number=0))
    assert judge(theirs, trial, torch.zeros_like(trial.expected)).equal
    assert not judge(ours, draw(ours), torch.zeros_like(trial.expected)).equal


def test_a_constant_is_right_where_the_reference_really_is_constant(make: Make) -> None:
    reference = make(texts.MEAN_SOFTMAX)
    trial = draw(reference)
    assert judge(reference, trial, torch.full_like(trial.expected, 1 / 50)).equal
    assert not judge(reference, trial, torch.full_like(trial.expected, 1 / 49)).equal


def test_cancellation_to_nothing_asks_no_more_than_pytorch_gives(make: Make) -> None:
    reference = make(texts.CANCELLING)
    trial = draw(reference)
    assert float(trial.expected.abs().max()) > 0  # pure rounding
    assert judge(reference, trial, torch.zeros_like(trial.expected)).equal  # the true answer
    assert judge(reference, trial, -trial.expected).equal  # rounding of another order
    assert not judge(reference, trial, trial.expected + 0.001).equal


def test_strays_at_a_threshold_are_forgiven_where_the_reference_has_them_too(make: Make) -> None:
    reference = make(texts.THRESHOLD)
    trial = draw(reference)
    strays = trial.exact.clone()
    strays.view(-1)[0] += 1  # as if float64 and float32 fell on different sides once
    noisy = Trial(trial.family, trial.inputs, trial.seed, trial.expected, strays)
    flipped = trial.expected.clone()
    flipped.view(-1)[7] = 1 - flipped.view(-1)[7]
    assert not judge(reference, trial, flipped).equal
    assert judge(reference, noisy, flipped).equal
    assert not judge(reference, noisy, 1 - trial.expected).equal


def test_float64_is_not_believed_where_it_computes_something_else(make: Make) -> None:
    """Random numbers differ by dtype: the distance from float64 must not become a tolerance."""
    reference = make(texts.NOISY_IN_FLOAT64)
    trial = draw(reference)
    assert trial.exact is None
    assert not judge(reference, trial, torch.zeros_like(trial.expected)).equal


ON_CANCELLATION = {
    "cosines of large sums": ("return torch.cos(x @ x.mT)", "[torch.randn(5, 300)]"),
    "softsign of small differences": (
        "h = (x + x.mT) @ inputs[1].mT; return h / (1 + h.abs())",
        "[30 * torch.randn(48, 48), 30 * torch.randn(80, 48)]",
    ),
}


@pytest.mark.parametrize("name", ON_CANCELLATION)
def test_a_sum_taken_one_by_one_is_no_error(make: Make, name: str) -> None:
    """PyTorch sums in blocks and comes out nearer to float64; where that shows, it is luck, and nothing to ask for."""
    reference = make(texts.problem(*ON_CANCELLATION[name]))
    for number in range(30):
        trial = draw(reference, Step(f"trial {number}", "given"))
        if len(trial.inputs) == 1:
            left = right = trial.inputs[0]
        else:
            left, right = trial.inputs[0] + trial.inputs[0].mT, trial.inputs[1]
        total = torch.zeros(len(left), len(right))
        for k in range(left.shape[1]):
            total += left[:, k : k + 1] * right[:, k]
        actual = torch.cos(total) if left is right else total / (1 + total.abs())
        assert judge(reference, trial, actual).equal, number
        off = actual.clone()
        off[2, 3] += 0.05
        assert not judge(reference, trial, off).equal, number


def test_rounding_that_the_inputs_do_not_move_is_known_all_the_same(make: Make) -> None:
    """`x - tanh(x)` of small numbers rounds by how fine numbers are there, to the same side for all neighbours of x."""
    source = texts.problem("h = x - torch.tanh(x); h = 0.2 * h; return h - torch.tanh(h)", "[0.7 * torch.rand(24, 92)]")
    reference = make(source)
    for number in range(10):
        trial = draw(reference, Step(f"trial {number}", "given"))
        h = trial.inputs[0] * (1 + torch.finfo(torch.float32).eps)
        h = 0.2 * (h - torch.tanh(h))
        away = torch.nextafter(torch.tanh(h), torch.zeros(()))  # another library's tanh
        assert judge(reference, trial, h - away).equal, number
        assert not judge(reference, trial, 1.05 * (h - torch.tanh(h))).equal


def test_a_family_is_used_only_where_the_reference_stays_finite(make: Make) -> None:
    reference = make(texts.LOG)
    assert draw(reference, Step("trial 1", "centred")).family == "given"
    assert reference.trial(SECRET, Step("extra centred", "centred", core=False)) is None
    assert draw(make(texts.RELU), Step("trial 1", "centred")).family == "centred"


def test_inputs_that_hardly_matter_are_amplified_until_they_do(make: Make) -> None:
    reference = make(texts.WEAK_INPUT)
    plan = reference.plan(SECRET, 5)
    (step,) = [step for step in plan if step.index >= 0]
    assert step.index == 1 and step.factor > 10 and reference.labels == ()
    given, amplified = draw(reference), draw(reference, step)
    assert judge(reference, given, given.inputs[0]).equal  # ignoring input 1 does not show
    assert not judge(reference, amplified, amplified.inputs[0]).equal


@pytest.mark.parametrize("cap", ["1e5 + torch.rand(())", "1e5 * torch.rand(batch_size, 1) + 1e5"])
def test_caps_that_no_draw_reaches_are_made_small_until_they_matter(make: Make, cap: str) -> None:
    reference = make(texts.problem("return torch.minimum(x, inputs[1])", f"[torch.rand(batch_size, 40), {cap}]"))
    (step,) = [step for step in reference.plan(SECRET, 5) if step.index >= 0]
    assert step.index == 1 and step.factor < 1
    trial = draw(reference, step)
    assert not judge(reference, trial, trial.inputs[0]).equal


def normed(x: torch.Tensor, variance: str, one_by_one: bool) -> torch.Tensor:
    """A layer normalisation, its variance by squares about the mean or as a difference of two means."""

    def mean(values: torch.Tensor) -> torch.Tensor:
        total = values.cumsum(1)[:, -1:] if one_by_one else values.sum(1, keepdim=True)
        return total / values.shape[1]

    spread = mean((x - mean(x)) ** 2) if variance == "two passes" else mean(x * x) - mean(x) ** 2
    return (x - mean(x)) * torch.rsqrt(spread + 1e-5)


@pytest.mark.parametrize("width", [64, 4096])
def test_a_variance_by_difference_is_told_far_from_zero_and_sums_one_by_one_are_not(make: Make, width: int) -> None:
    norm = f"self.norm = nn.LayerNorm({width})"
    reference = make(texts.problem("return self.norm(x)", f"[torch.rand(4, {width})]", norm))
    for family, difference_is_right in (("offset", True), ("far below zero", False)):
        trial = draw(reference, Step(f"extra {family}", family, core=False))
        assert trial.family == family
        for one_by_one in (False, True):
            assert judge(reference, trial, normed(trial.inputs[0], "two passes", one_by_one)).equal
        assert judge(reference, trial, normed(trial.inputs[0], "difference", False)).equal == difference_is_right
    badly = "return (x * x).mean(1) - x.mean(1) ** 2"
    far = Step("extra far", "far below zero", core=False)
    assert make(texts.problem(badly, f"[torch.rand(4, {width})]")).trial(SECRET, far) is None


DISTINCT = {  # the index, and whether equal ones are another draw of it
    "by randint": ("torch.randint(0, 5000, (16,))", True),
    "of another type": ("torch.randint(5000, (4, 4)).int().view(16)", True),
    "repeats itself": ("torch.randint(0, 6, (16,))", False),
    "permutation": ("torch.randperm(5000)[:16]", False),
    "sorted": ("torch.randint(0, 5000, (16,)).sort().values", False),
    "changed": ("torch.randint(0, 2500, (16,)).mul_(2)", False),
}


@pytest.mark.parametrize("name", DISTINCT)
def test_indices_that_are_different_by_chance_are_equal_in_a_trial(make: Make, name: str) -> None:
    index, crowds = DISTINCT[name]
    forward = "return torch.zeros(5000, 4, dtype=x.dtype).index_add(0, inputs[1], x)"
    reference = make(texts.problem(forward, f"[torch.rand(16, 4), {index}]"))
    steps = [step for step in reference.plan(SECRET, 3) if step.kind.startswith("crowded")]
    assert len(steps) == crowds
    for step in steps:
        trial = draw(reference, step)
        where = trial.inputs[1]
        assert len(where.unique()) <= 4 and int(where.min()) == 0 and int(where.max()) == 4999
        last_wins = torch.zeros(5000, 4)
        last_wins[where.long()] = trial.inputs[0]
        assert judge(reference, trial, trial.expected).equal and not judge(reference, trial, last_wins).equal


def test_where_the_last_of_equal_indices_wins_none_are_equal(make: Make) -> None:
    for forward in ("torch.zeros(5000, 4).index_copy(0, inputs[1], x)", "x.new_zeros(5000).put(inputs[1], x[:, 0])"):
        reference = make(texts.problem(f"return {forward}", "[torch.rand(16, 4), torch.randint(0, 5000, (16,))]"))
        assert not any(step.kind.startswith("crowded") for step in reference.plan(SECRET, 3))


def test_an_input_of_which_only_the_sign_matters_is_used(make: Make) -> None:
    for other in ("torch.rand(batch_size, 40)", "torch.randn(batch_size, 40)"):
        reference = make(texts.problem("return x * torch.sign(inputs[1])", f"[torch.rand(batch_size, 40), {other}]"))
        plan = reference.plan(SECRET, 5)
        assert reference.labels == ()
        trials = [draw(reference, step) for step in plan if step.core]
        assert not all(judge(reference, trial, trial.inputs[0]).equal for trial in trials)


def test_large_values_overflow_whatever_the_draws_are(make: Make) -> None:
    small = make(texts.problem("return torch.softmax(x, -1)", "[0.01 * torch.rand(batch_size, 40)]"))
    trial = draw(small, Step("extra", "large", core=False))
    assert trial.family == "large" and bool(torch.isinf(trial.inputs[0].exp()).any())
    positive = make(texts.problem("return torch.tanh(torch.sqrt(x))", "[torch.rand(batch_size, 40)]"))
    trial = draw(positive, Step("extra", "large", core=False))
    assert trial.family == "large as drawn" and float(trial.inputs[0].min()) >= 0 and float(trial.inputs[0].max()) > 100
    half = make(texts.problem("return x.mean(-1)", "[torch.rand(batch_size, 400).half()]"))
    half.plan(SECRET, 3)
    trial = draw(half, Step("extra", "large", core=False))
    overflow = trial.inputs[0].cumsum(-1, dtype=torch.float16)[..., -1]
    assert bool(torch.isinf(overflow).any()) and bool(torch.isfinite(trial.expected).all())


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_a_layer_that_keeps_what_it_computes_of_its_parameters_is_a_reference(make: Make, norm: str) -> None:
    """PyTorch refuses to copy such layers."""
    layer = f"self.layer = nn.utils.{norm}(nn.Linear(40, 8))"
    reference = make(texts.problem("return self.layer(x)", "[torch.rand(batch_size, 40)]", layer))
    trials = [draw(reference, step) for step in reference.plan(SECRET, 5)]
    assert all(judge(reference, trial, trial.expected).equal for trial in trials)
    assert not judge(reference, trials[0], trials[0].expected * 1.01).equal


def test_complex_inputs_have_families_too(make: Make) -> None:
    inputs = "[torch.complex(torch.rand(batch_size, 40), torch.rand(batch_size, 40))]"
    trial = draw(make(texts.problem("return x.angle()", inputs)), Step("trial 1", "centred"))
    assert (
        trial.family == "centred" and bool((trial.inputs[0].real < 0).any()) and bool((trial.inputs[0].imag < 0).any())
    )


def test_inputs_without_influence_are_labelled(make: Make) -> None:
    reference = make(texts.UNUSED_INPUT)
    reference.plan(SECRET, 5)
    assert reference.labels == ("unused_input:1", "unused_input:2")
    for source in (texts.GATHER, texts.CROSS_ENTROPY, texts.MATMUL):
        reference = make(source)
        plan = reference.plan(SECRET, 5)
        assert reference.labels == () and all(step.index < 0 for step in plan)


def test_indices_keep_their_range_in_every_family(make: Make) -> None:
    reference = make(texts.GATHER)
    for step in reference.plan(SECRET, 9):
        index = draw(reference, step).inputs[1]
        assert index.dtype == torch.int64 and int(index.min()) >= 0 and int(index.max()) < 30


def test_plans_differ_by_secret_and_hold_each_family_once(make: Make) -> None:
    reference = make(texts.RELU)
    plans = {tuple(step.family for step in reference.plan(secret, 5)) for secret in range(12)}
    assert len(plans) > 4
    for families in plans:
        assert {"given", "centred", "scaled", *ROTATED} <= set(families)
    steps = reference.plan(3, 5)
    assert sum(step.core for step in steps) == 5 and len({step.name for step in steps}) == len(steps)
    assert reference.plan(3, 5) == steps


def test_trials_of_one_secret_repeat_and_of_another_do_not(make: Make) -> None:
    reference = make(texts.RELU)
    first, again = draw(reference), draw(reference)
    assert torch.equal(first.inputs[0], again.inputs[0]) and torch.equal(first.expected, again.expected)
    other = reference.trial(SECRET + 1, GIVEN)
    assert other is not None and not torch.equal(first.inputs[0], other.inputs[0])


def test_probing_leaves_no_trace_in_running_statistics(make: Make) -> None:
    reference = make(texts.BATCH_NORM)
    reference.plan(SECRET, 5)
    draw(reference)
    assert int(reference.model.norm.num_batches_tracked) == 1


def test_mutation_and_aliasing_are_refused_unless_the_reference_does_it(make: Make) -> None:
    reference = make(texts.RELU)
    trial = draw(reference)
    assert "input 0 in place" in judge(reference, trial, trial.expected, changed=[0]).message
    assert "memory of input 0" in judge(reference, trial, trial.expected, aliased=[0]).message
    assert "parameter w" in judge(reference, trial, trial.expected, written=["w"]).message
    in_place, view = make(texts.IN_PLACE), make(texts.VIEW)
    trial = draw(in_place)
    assert trial.changed == (0,) and judge(in_place, trial, trial.expected, changed=[0], aliased=[0]).equal
    trial = draw(view)
    assert trial.aliased == (0,) and judge(view, trial, trial.expected, aliased=[0]).equal
    assert not judge(view, trial, trial.expected, changed=[0]).equal


@pytest.mark.parametrize(
    ("forward", "inputs"), [("return x.nope()", "[torch.rand(4)]"), ("return x", "7"), ("return x", "[1 / 0]")]
)
def test_broken_problems_say_why(make: Make, forward: str, inputs: str) -> None:
    with pytest.raises(ReferenceFailed):
        draw(make(texts.problem(forward, inputs)))


def test_a_norm_of_equal_values_may_be_off_by_its_own_rounding(make: Make) -> None:
    """On zeros this reference's mean is exact and its output zero; a right kernel that adds in another order, or to
    another constant, has a mean that is off by a rounding, which the norm blows up."""
    normed = "(x + 1.5 - (x + 1.5).mean(dim=0)) / torch.sqrt((x + 1.5).var(dim=0, unbiased=False) + 1e-5)"
    reference = make(texts.RELU.replace("torch.relu(x)", normed))
    trial = draw(reference, Step("extra zeros", "zeros"))
    assert trial.family == "zeros" and not trial.expected.any()
    assert judge(reference, trial, torch.full_like(trial.expected, -3.8e-5)).equal
    assert not judge(reference, trial, torch.full_like(trial.expected, -3.8e-3)).equal
    plain = make(texts.RELU)
    trial = draw(plain, Step("extra zeros", "zeros"))
    assert not judge(plain, trial, torch.full_like(trial.expected, -3.8e-5)).equal


PLAIN = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.randn(4)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("import torch\n", "raise SystemExit(0)\n", "the file raised SystemExit: 0"),
        ("return x + 1", "raise KeyboardInterrupt", "forward raised KeyboardInterrupt"),
        ("return [torch.randn(4)]", "raise BaseException('no')", r"get_inputs\(\) raised BaseException: no"),
        ("torch.randn(4)", "torch.randn(4, device='meta')", "a tensor without values"),
        ("torch.randn(4)", "torch.eye(4).to_sparse()", "a tensor of layout torch.sparse_coo"),
        ("torch.randn(4)", "torch.ones(4).to(torch.uint16)", "a tensor of dtype torch.uint16"),
        ("torch.randn(4)", "torch.randn(4), b'x'", r"get_inputs\(\) returned a bytes, which is neither"),
        ("return x + 1", "return x, {1}", "forward returned a set, which is neither"),
        ("return x + 1", "return (x + 1).numpy()", "forward returned a ndarray, which is neither"),
        ("(nn.Module)", "", r"Model\(...\) returned a Model, not a torch.nn.Module"),
    ],
)
def test_what_a_problem_does_wrong_is_told_of_it(make: Make, old: str, new: str, words: str) -> None:
    with pytest.raises(ReferenceFailed, match=words):
        draw(make(PLAIN.replace(old, new)))


# As convolutions in TF32 are: of 24 bits of each product's factors, 11 are left.
TF32 = """
import torch

def cut(x):
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(16, 16, 3)
    def forward(self, x):
        if torch.backends.cudnn.allow_tf32 and x.dtype == torch.float32:
            return torch.nn.functional.conv1d(cut(x), cut(self.conv.weight), self.conv.bias)
        return self.conv(x)

def get_inputs():
    return [torch.randn(8, 16, 64)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    usual = torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(Device, "allow_tf32", lambda _, on: setattr(torch.backends.cudnn, "allow_tf32", on))
    yield
    torch.backends.cudnn.allow_tf32 = usual


def test_what_is_timed_may_be_as_exact_as_the_reference_is_then(make: Make, tf32: None) -> None:
    reference = make(TF32)
    trial = draw(reference)
    reference.device.allow_tf32(True)
    with torch.no_grad():
        timed = reference.model(*trial.inputs)
    assert not judge(reference, trial, timed).equal
    other = as_timed(reference, trial)
    assert other is not None
    for right in (timed, trial.expected, trial.exact.float()):
        assert judge(reference, other, right).equal
    for wrong in (timed * 1.02, timed.bfloat16().float(), timed.roll(1, 0), torch.zeros_like(timed)):
        assert not judge(reference, other, wrong).equal


def test_where_nothing_is_rounded_what_is_timed_is_judged_as_ever(make: Make, tf32: None) -> None:
    for source in (texts.RELU, texts.MATMUL):
        reference = make(source)
        assert as_timed(reference, draw(reference)) is None


def test_inputs_of_eight_bit_floats_are_tried_as_they_are(make: Make) -> None:
    inputs = "[torch.randn(batch_size, 40).to(torch.float8_e4m3fn), torch.rand(batch_size, 1) + 0.5]"
    reference = make(texts.problem("return x.float() * inputs[1]", inputs))
    families = {step.family: reference.trial(SECRET, step) for step in reference.plan(SECRET, 8)}
    assert families["given"] is not None and families["scaled"] is not None
