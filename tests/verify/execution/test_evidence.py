"""What PyTorch computes is seen wherever it runs, and what follows from the counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch._C._autograd import _disable_profiler
from torch.utils._python_dispatch import _disable_current_modes

from dice.verify.candidate.profiler_census import recording, works
from dice.verify.execution import evidence
from dice.verify.ipc.operator_counts import OperatorCounts, census_kind, family, taken_apart
from dice.verify.tensors import near

X = torch.rand(12, 70, generator=torch.Generator().manual_seed(1))


@torch.library.custom_op("dice_test::hidden", mutates_args=())
def hidden(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=1)


def in_thread() -> None:
    thread = threading.Thread(target=lambda: torch.softmax(X, dim=1))
    thread.start()
    thread.join()


def without_modes() -> None:
    with _disable_current_modes():
        torch.softmax(X, dim=1)


@pytest.mark.parametrize("compute", [in_thread, without_modes, lambda: hidden(X), lambda: torch.softmax(X, dim=1)])
def test_work_is_recorded_wherever_it_runs(compute: Callable[[], object]) -> None:
    work = OperatorCounts()
    with recording(work, pytest.fail), evidence.Census():
        compute()
    assert work.elements == {"softmax": X.numel()}


def test_parts_of_an_operator_count_once_and_views_never() -> None:
    work = OperatorCounts()
    with recording(work, pytest.fail):
        torch.nn.functional.cross_entropy(X.view(70, 12).t(), torch.zeros(12, dtype=torch.int64)).reshape(1)
        X.chunk(2)
    assert work.elements["log_softmax"] == X.numel()
    assert not {"view", "t", "chunk", "split", "narrow", "slice", "as_strided"} & set(work.elements)


def test_recorded_work_never_lowers_a_count() -> None:
    work = OperatorCounts(Counter(softmax=10**6, relu=5))
    with recording(work, pytest.fail), pytest.raises(ZeroDivisionError):
        torch.softmax(X, dim=1)
        raise ZeroDivisionError
    assert work.elements == {"softmax": 10**6, "relu": 5}


def test_whether_the_profiler_runs_is_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert works() and works()
    monkeypatch.setattr("dice.verify.candidate.profiler_census._note", lambda mark: None)
    assert not works()


def stop_it() -> None:
    _disable_profiler()


def start_it_again() -> None:
    _disable_profiler()
    torch.autograd.profiler.profile().__enter__()


@pytest.mark.parametrize("disturb", [stop_it, start_it_again])
def test_a_record_with_a_gap_is_told_of(disturb: Callable[[], None]) -> None:
    told: list[str] = []
    with recording(OperatorCounts(), lambda: told.append("disturbed")):
        disturb()
        torch.softmax(X, dim=1)
    assert told == ["disturbed"]


def test_both_parts_of_a_complex_result_are_looked_at() -> None:
    with evidence.Census([X.numel()], seed=1) as census:
        torch.polar(torch.ones_like(X), X)
    expected = evidence.samples(X.cos(), 1)
    assert any(evidence.is_equal(witness, expected) for witness in census.witnesses)


@pytest.mark.parametrize(
    ("elements", "calls", "kind"),
    [
        (940, 1, "replaced_nothing"),  # all rows but a few
        (940, 0, ""),  # one of two calls is gone
        (995, 0, "replaced_nothing"),  # as good as nothing is
        (600, 1, ""),
    ],
)
def test_a_few_rows_are_no_replacement(elements: int, calls: int, kind: str) -> None:
    reference = OperatorCounts(Counter(softmax=1000), Counter(softmax=1))
    assert census_kind(reference, OperatorCounts(Counter(softmax=elements), Counter(softmax=calls)), 1000) == kind


def given_away(witness: torch.Tensor, expected: torch.Tensor, earlier: tuple[torch.Tensor, ...] = ()) -> bool:
    first, last = evidence.samples(X.reshape(-1), 1), evidence.samples(expected, 1)
    traces = evidence.Traces(
        last, (first,), (*(evidence.samples(tensor, 1) for tensor in earlier), last), evidence.counts([X])
    )
    return evidence.is_given_away(traces, [evidence.samples(witness, 1)])


def test_attention_by_one_call_is_what_a_reference_spells_out() -> None:
    q, k, v = torch.randn(3, 2, 4, 48, 16).unbind(0)
    with evidence.Census() as spelt:
        torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1) @ v
    with evidence.Census() as fused:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    apart = taken_apart(fused.work, spelt.work)
    assert census_kind(spelt.work, fused.work, 0) == "" and census_kind(spelt.work, apart, 0) == "replaced_nothing"
    assert taken_apart(fused.work, fused.work) is fused.work and taken_apart(spelt.work, spelt.work) is spelt.work


def test_a_sum_gives_its_mean_away_unless_the_reference_has_it_too() -> None:
    mean, total = X.double().square().mean(dim=1)[:3], X.double().square().sum(dim=1)[:3]
    assert given_away(total, mean)
    assert not given_away(total * 1.01, mean) and not given_away(total.flip(0), mean)
    assert not given_away(total, mean, earlier=(total,))


@pytest.mark.parametrize("repeats", [1, 40])  # samples are of all elements, and of some
def test_another_order_gives_the_answer_away_unless_the_reference_has_it_too(repeats: int) -> None:
    answer = torch.softmax(X.repeat(1, repeats) * torch.linspace(1, 2, X.shape[1] * repeats), dim=1)
    for reordered in (answer.flip(0), answer.roll(3, dims=1), answer.t().contiguous()):
        assert given_away(reordered, answer)
        assert not given_away(reordered * 1.001, answer)
        assert not given_away(reordered, answer, earlier=(answer.flip(1),))
    assert not given_away(answer.flip(0) + 0.01 * X.repeat(1, repeats), answer)


def test_counts_are_those_of_means() -> None:
    assert evidence.counts([torch.empty(3, 5), torch.empty(1, 7)]) == {3, 5, 15, 7}


def test_a_profiler_that_cannot_be_stopped_twice_is_missed_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is on a GPU."""

    def refuse() -> object:
        _disable_profiler()
        raise RuntimeError("Can't disable Kineto profiler when it's not running")

    monkeypatch.setattr(torch.autograd.profiler, "_disable_profiler", refuse)
    missed: list[bool] = []
    with recording(OperatorCounts(), lambda: missed.append(True)):
        torch.softmax(X, dim=1)
    assert missed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_what_is_told_of_a_tensor_is_told_of_it_as_a_whole(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    tensor = torch.randn(50, 41).mul(9).to(dtype)
    monkeypatch.setattr(near, "STRETCH", 1000)
    values = tensor.double()
    rms, size = values.square().mean().sqrt(), values.abs().mean()
    expected = torch.stack([values.mean(), rms, size, values.min(), values.max()])
    assert torch.allclose(evidence.samples(tensor, 1).moments, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operator", ["aten.as_strided.default", "aten.clone.default", "aten::_to_copy"])
def test_another_look_at_the_same_elements_is_no_work(operator: str) -> None:
    """A contiguous copy of an output in another layout is nothing that PyTorch computes for a file."""
    assert family(operator) == ""
