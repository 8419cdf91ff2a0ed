"""Difficulty labels: what a forward is made of decides, seen while it runs in a jail, or read where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dice.cli import main
from dice.data import difficulty
from dice.data.difficulty import LEVELS, Difficulty, levels
from dice.data.sample import Sample, read_samples, write_samples
from dice.problem import Problem
from dice.verify.audit.findings import Audit
from dice.verify.audit.run import AuditSettings, audit_all
from dice.verify.audit.torch_calls import Census
from dice.verify.audit.watch_calls import Watch
from tests.endpoint.server import serving

pytestmark = [
    pytest.mark.usefixtures("lasting_zygote"),  # where verifiers are started
    pytest.mark.xdist_group("difficulty"),  # one process labels them all
]


def problem(forward: str, inputs: str = "torch.rand(8, 16)", init: str = "pass", before: str = "") -> str:
    return f"""import torch
import torch.nn as nn
import torch.nn.functional as F

{before}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


OWN = """class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        return x + self.two(self.one(x)).relu()
"""
LOOP = "for _ in range(4): x = torch.tanh(x @ self.w) + x\n        return x"
# name -> (source, level, operators that are seen)
CASES: dict[str, tuple[str, str, dict[str, int]]] = {
    "one_function": (problem("return torch.sigmoid(x)"), "single", {"sigmoid": 1}),
    "one_layer": (problem("return self.l(x)", init="self.l = nn.Linear(16, 4)"), "single", {"Linear": 1}),
    "made_of_many": (problem("return F.normalize(x, dim=1)"), "single", {"normalize": 1}),
    "views_are_free": (problem("return x.view(16, 8).t().contiguous().exp()[0:2]"), "single", {"exp": 1}),
    "sizes_are_free": (problem("return x.softmax(x.dim() - 1).to(torch.float64)"), "single", {"softmax": 1}),
    "needs_data": (problem("return x * float(x.max())"), "fusion", {"max": 1, "mul": 1}),
    "two": (problem("return torch.relu(x) + 1"), "fusion", {"relu": 1, "add": 1}),
    "gemm_and_tail": (
        problem("return F.gelu(self.n(self.l(x)))", init="self.l, self.n = nn.Linear(16, 8), nn.LayerNorm(8)"),
        "fusion",
        {"Linear": 1, "LayerNorm": 1, "gelu": 1},
    ),
    "mlp": (
        problem(
            "return self.net(x)",
            init="self.net = nn.Sequential(nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))",
        ),
        "model",
        {"Linear": 3, "ReLU": 2},
    ),
    "recurrent": (problem("return self.r(x)[0]", init="self.r = nn.LSTM(16, 8)"), "model", {"LSTM": 1}),
    "blocks": (problem("return self.b(x)", init="self.b = Block()", before=OWN), "model",
               {"Linear": 1, "LayerNorm": 1, "relu": 1, "add": 1}),
    "attention": (
        problem("q = x @ x.t(); return (q.softmax(-1) @ x) @ x.t()"), "model", {"matmul": 3, "softmax": 1}
    ),
    "loop": (problem(LOOP, init="self.w = nn.Parameter(torch.randn(16, 16))"), "model",
             {"matmul": 4, "tanh": 4, "add": 4}),
    "raises": (problem("raise RuntimeError('no'); return torch.relu(F.softmax(x, -1)) + x"), "fusion",
               {"relu": 1, "softmax": 1, "add": 1}),
    "exits": (problem("import os; os._exit(3); return torch.cumsum(x, 0)"), "single", {"cumsum": 1}),
}  # fmt: skip
BY_TEXT = ("raises", "exits")


@pytest.fixture(scope="module")
def labels() -> dict[str, Difficulty]:
    problems = [Problem(source, name) for name, (source, _, _) in CASES.items()]
    return dict(zip(CASES, difficulty.label_all(problems, workers=2), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_levels_and_operators(labels: dict[str, Difficulty], name: str) -> None:
    _, level, operators = CASES[name]
    found = labels[name]
    assert (found.level, found.operators) == (level, operators), found
    assert found.by == ("text" if name in BY_TEXT else "run") and 0 <= found.score < 1 and found.why.endswith(".")


def test_the_order_within_and_between_levels(labels: dict[str, Difficulty]) -> None:
    def before(*names: str) -> None:
        assert [labels[name].order for name in names] == sorted(labels[name].order for name in names)

    before("one_function", "one_layer", "two", "gemm_and_tail", "mlp")
    before("one_function", "made_of_many", "one_layer")  # a norm is more than a pointwise operation, a product more yet
    assert labels["one_layer"].parameters == 16 * 4 + 4


def test_one_problem() -> None:
    assert difficulty.label(CASES["two"][0]).level == "fusion"


def test_an_audit_takes_the_census_in_the_same_run(labels: dict[str, Difficulty]) -> None:
    problems = [Problem(CASES[name][0], name) for name in ("gemm_and_tail", "needs_data")]
    for one, audit in zip(problems, audit_all(problems, AuditSettings(limit_s=20, depth="quick")), strict=True):
        assert difficulty.from_audit(one.source, audit) == labels[one.name] and audit.facts["output"]


@pytest.mark.parametrize(
    "told", [None, 3, {}, {"operators": 1}, {"operators": {"a": -1}, "modules": {}, "layers": 0, "parameters": 0},
             {"operators": {"a": True}, "modules": {}, "layers": 0, "parameters": 0},
             {"operators": {"a": 1 << 70}, "modules": {}, "layers": 0, "parameters": 0}]
)  # fmt: skip
def test_a_census_that_makes_no_sense_is_not_believed(told: object) -> None:
    source = CASES["two"][0]
    found = difficulty.from_audit(source, Audit("p", "id", facts={"census": told}))
    assert found.by == "text" and found.level == "fusion"


def test_a_watch_leaves_nothing_behind() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with Watch(model) as watch:
        model(torch.rand(2, 4))
    torch.relu(model(torch.rand(2, 4)))
    assert watch.census == Census({"Linear": 1, "ReLU": 1}, {}, 1, 20)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_control_flow_and_repetition_raise_the_score() -> None:
    census = Census({"relu": 1, "add": 1})
    plain, looped = (
        problem("return torch.relu(x) + 1"),
        problem("for _ in range(3): x = torch.relu(x) + 1\n        return x"),
    )
    assert levels.branches(plain) == 0 and levels.branches(looped) == 1
    assert levels.judge(census, looped).score > levels.judge(census, plain).score
    assert levels.judge(Census({"relu": 9, "add": 1}), plain).score > levels.judge(census, plain).score


def test_the_command_orders_a_set_and_keeps_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("mlp", "one_function", "raises")
    rows = [Sample(problem=CASES[name][0], name=name, licence="MIT", meta={"from": name}) for name in names]
    write_samples(tmp_path / "set.parquet", rows)
    line = ["data", "difficulty", str(tmp_path / "set.parquet"), "-o", str(tmp_path / "labelled.parquet"), "--json"]
    assert main(line) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["levels"] == {"single": 1, "fusion": 1, "model": 1} and report["by_text"] == 1
    found = list(read_samples(tmp_path / "labelled.parquet"))
    assert [(one.name, one.difficulty) for one in found] == [
        ("one_function", "single"), ("raises", "fusion"), ("mlp", "model")
    ]  # fmt: skip
    assert found[0].licence == "MIT" and found[0].meta["from"] == "one_function"
    assert found[0].meta["difficulty"]["operators"] == {"sigmoid": 1}
    first = (tmp_path / "labelled.parquet").read_bytes()
    record = (tmp_path / "labelled.jsonl").read_text()
    assert main(line) == 0 and (tmp_path / "labelled.parquet").read_bytes() == first
    assert (tmp_path / "labelled.jsonl").read_text() == record  # nothing was run again


def test_a_teacher_labels_is_asked_again_and_disagrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("httpx", reason="the endpoint client needs httpx")
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("one_function", "two", "mlp", "one_layer"):
        (folder / f"{name}.py").write_text(CASES[name][0])
    asked: dict[str, int] = {}

    def answer(prompt: str) -> str:
        name = next(name for name, (source, _, _) in CASES.items() if source.strip() in prompt)
        asked[name] = asked.get(name, 0) + 1
        if name == "one_layer":
            return "It is hard to say."
        if name == "two" and asked[name] == 1:
            return "single, or perhaps fusion"
        return {"one_function": "A sigmoid.\n\n**Single**", "two": "fusion.", "mlp": "Two layers.\nfusion"}[name]

    with serving(answer=answer) as server:
        line = ["data", "difficulty", str(folder), "--base-url", server.url, "--model", "mercury", "--json"]
        line += ["-o", str(tmp_path / "out.parquet")]
        assert main(line) == 0
        report = json.loads(capsys.readouterr().out)
        assert asked == {"one_function": 1, "two": 2, "mlp": 1, "one_layer": 3}
        received = len(server.received)
        assert main(line) == 0 and len(server.received) == received  # what was answered is not asked again
    assert report["taught"] == 3 and report["unparsed"] == 4
    assert [(row["name"], row["teacher"], row["offline"]) for row in report["disagreements"]] == [
        ("mlp", "fusion", "model")
    ]
    assert main([word for word in line if word != "--json"]) == 0
    said = capsys.readouterr().out
    assert "it differs from the offline labeller on 1\n  mlp: teacher fusion, offline model (3 matrix" in said
    found = {one.name: one for one in read_samples(tmp_path / "out.parquet")}
    assert found["mlp"].difficulty == "fusion" and found["mlp"].meta["difficulty"]["by"] == "mercury"
    assert found["one_layer"].difficulty == "single" and found["one_layer"].meta["difficulty"]["by"] == "run"


def test_levels_are_the_papers() -> None:
    assert LEVELS == ("single", "fusion", "model")
