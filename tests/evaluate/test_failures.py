"""Failure analysis: messages lose what is particular, problems find their family, counts add up."""

from __future__ import annotations

import pytest
from made_runs import COMPILE, CORRECT, DECEPTIVE, TASKS, VERDICTS, WRONG, reference

from dice.evaluate.failures import analyse, message_class, operator_family
from dice.evaluate.run_folder import Judgement
from dice.verdict import Verdict


def judgements(protocol: str) -> list[Judgement]:
    return [Judgement(task.key, 0, verdict) for task, verdict in zip(TASKS, VERDICTS[protocol], strict=True)]


def test_counts_by_class_stage_family_and_level() -> None:
    found = analyse(TASKS, judgements("dice"))
    assert (found.judged, found.correct, found.failed) == (5, 1, 4)
    assert found.classes == {
        "generation failure": 0,
        "execution failure": 2,
        "functional incorrectness": 1,
        "deceptive": 1,
    }
    assert found.by_stage["compile"]["execution failure"] == 2
    assert found.by_stage["run"]["deceptive"] == 1
    assert found.by_family["reduce"]["execution failure"] == found.by_family["matmul"]["execution failure"] == 1
    assert found.by_level[1]["execution failure"] == 2 and found.by_level[2]["deceptive"] == 1
    assert found.judged_by_level == {1: 3, 2: 2}
    assert sum(sum(of.values()) for of in found.by_family.values()) == found.failed


def test_the_most_common_cause_is_first_and_has_an_example() -> None:
    first = analyse(TASKS, judgements("dice")).causes[0]
    assert (first.count, first.share, first.stage, first.task) == (2, 0.5, "compile", TASKS[1].key)
    assert first.text == "the CUDA source does not compile: error: NAME was not declared in this scope"
    assert "foo" in first.example


def test_ten_causes_at_most() -> None:
    words = "abcdefghijkl"
    many = [Judgement(TASKS[0].key, i, Verdict("wrong", "compare", f"it went {word}")) for i, word in enumerate(words)]
    assert len(analyse(TASKS, many).causes) == 10


def test_verdicts_that_are_not_about_the_kernel_are_left_out() -> None:
    told = [Judgement(TASKS[0].key, 0, Verdict("unsupported", "run")), Judgement(TASKS[1].key, 0, CORRECT)]
    found = analyse(TASKS, told)
    assert (found.judged, found.correct, found.failed, found.causes) == (1, 1, 0, ())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kernel relu, block (6,0,0), thread (64,0,0): 3 bytes", "kernel add, block (0,1,0), thread (1,0,0): 40 bytes"),
        ("trial 1 (zeros inputs): 9 of 10 values wrong", "trial 4 (centred inputs): 812 of 1600 values wrong"),
        ("ImportError: /tmp/a/b.so: no", "ImportError: /home/c/d/e.so: no"),
        (
            "1 of 2 values of output are wrong; the first is output[0]: expected 0, got inf (allowed 2e-05 + 1).",
            "3 of 9 values of output are wrong; the first is second[1, 2]: expected nan, got 7 (allowed 1e-05 + 1).",
        ),
        ("got nan (allowed 2e-05 + 1)", "got nan (allowed 1.25e-5 + 17)"),
        ("NameError: name 'x' is not defined", "NameError: name 'longer_name' is not defined"),
        ("LoadError: undefined symbol: f(at::Tensor)", "LoadError: undefined symbol: g()"),
        ("the file is not valid Python: bad, line 3.", "the file is not valid Python: bad, line 99."),
        ("illegal address 0x1", "illegal address 0xdeadBEEF"),
    ],
)
def test_the_same_failure_has_one_class(one: str, other: str) -> None:
    assert message_class(Verdict("wrong", "run", one)) == message_class(Verdict("wrong", "run", other))


def test_different_failures_keep_apart() -> None:
    texts = {message_class(verdict) for verdict in (COMPILE, DECEPTIVE, WRONG)}
    dtypes = Verdict("wrong", "compare", "expected torch.float32, got torch.float16")
    assert len(texts) == 3 and "torch.float16" in message_class(dtypes)
    assert message_class(DECEPTIVE).startswith("never_invoked: ")
    assert message_class(Verdict("timeout", "run")) == "timeout"


@pytest.mark.parametrize(
    ("body", "name", "family"),
    [
        ("torch.relu(x)", "", "activation"),
        ("nn.LSTM(3, 4)(x)", "", "rnn"),
        ("torch.softmax(x @ x.T, dim=-1)", "", "matmul"),
        ("nn.functional.scaled_dot_product_attention(x, x, x)", "", "attention"),
        ("nn.BatchNorm2d(3)(nn.ConvTranspose2d(1, 3, 3)(x))", "", "conv"),
        ("nn.functional.cross_entropy(x, x)", "", "loss"),
        ("nn.AdaptiveAvgPool2d(1)(x)", "", "pool"),
        ("nn.LayerNorm(100)(x)", "", "norm"),
        ("x / x.pow(2).mean().sqrt()", "36_RMSNorm_", "norm"),
        ("x.cumsum(dim=1)", "", "reduce"),
        ("x * 2", "", "other"),
    ],
)
def test_operator_family(body: str, name: str, family: str) -> None:
    assert operator_family(reference(body), name) == family


def test_text_that_is_not_python_is_other() -> None:
    assert operator_family("class Model(:") == "other"
