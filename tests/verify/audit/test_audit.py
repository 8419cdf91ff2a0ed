"""The problem audit as a user meets it: one hand-written problem for every kind of finding, and healthy ones."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dice.data.sources import read_problems
from dice.errors import UserError
from dice.verify.audit.findings import KINDS, Audit, Finding
from dice.verify.audit.report import to_markdown
from dice.verify.audit.run import AuditSettings
from dice.verify.sandbox import landlock
from tests.conftest import PATIENCE_S, ROOT
from tests.verify.audit.audited_problems import CASES, LIMITS, Result, inspect, problem

pytestmark = [pytest.mark.xdist_group("audit"), pytest.mark.usefixtures("lasting_zygote")]

KERNELBENCH = {"kernelbench-v0", "kernelbench"}


def one_sentence(result: Result, words: str) -> None:
    assert result.returncode == 2 and words in result.stderr and "Traceback" not in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problems")
    for name, (source, _, _) in CASES.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "twin_of_gelu.py").write_text(CASES["healthy_gelu"][0])
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    result = inspect(folder, "--json", *LIMITS, "--workers", "2", "-o", folder / "r.md")
    assert result.returncode == 1, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def audits(report: dict[str, Any]) -> dict[str, Audit]:
    return {row["name"]: Audit.from_json(row) for row in report["audits"]}


@pytest.fixture
def known(report: dict[str, Any], folder: Path, tmp_path: Path) -> tuple[str | Path, ...]:
    """Options under which all of `CASES` is audited already."""
    shutil.copy(folder / "r.jsonl", tmp_path / "known.jsonl")
    return (*LIMITS, "-o", tmp_path / "known")


@pytest.mark.parametrize("name", CASES)
def test_a_problem_of_every_kind(report: dict[str, Any], name: str) -> None:
    _, kinds, severity = CASES[name]
    audit = audits(report)[name]
    assert kinds <= set(audit.kinds()), audit
    if not kinds:
        assert not audit.findings, audit
    if severity is not None:
        assert audit.severity == severity, audit
    assert all(found.message.endswith(".") and "\n" not in found.message for found in audit.findings)


def test_every_kind_has_a_problem() -> None:
    assert set().union(*(kinds for _, kinds, _ in CASES.values())) | {"duplicate", "audit_failed"} == set(KINDS)


def test_what_passes_and_by_whose_comparison(report: dict[str, Any]) -> None:
    passes = {name: {answer: set(by) for answer, by in audit.passes.items()} for name, audit in audits(report).items()}
    assert passes["healthy_gelu"] == passes["healthy_linear"] == {}
    assert passes["mean_of_softmax"]["input_free"] == {*KERNELBENCH, "dice"}
    assert passes["wide_softmax"]["zeros"] == KERNELBENCH  # ours asks that the output follows the inputs
    assert passes["relu_of_positive"] == {"identity 0": KERNELBENCH}  # ours tries negative numbers too
    assert passes["true_identity"]["identity 0"] == {*KERNELBENCH, "dice"}
    assert passes["fixed"]["input_free"] == KERNELBENCH  # ours changes the values
    assert passes["fixed_counts"]["input_free"] == KERNELBENCH  # and the order of whole numbers that no draw changes
    assert passes["hardly_varies"]["input_free"] == {"kernelbench-v0"}


def test_the_time_limit_leaves_earlier_findings(report: dict[str, Any]) -> None:
    found = {one.kind: one.message for one in audits(report)["hangs"].findings}
    assert "forward" in found["too_slow"]


def test_large_problems_say_how_they_shrank(report: dict[str, Any]) -> None:
    audit = audits(report)["large_but_shrinks"]
    (before, after) = audit.facts["scale"]["input 0"]
    assert before == [1024, 1 << 20] and after[0] < 1024 and after[1] == 1 << 20
    assert audit.facts["full"]["bytes"] == 2 * 4 * 1024 * (1 << 20)


def test_equal_problems_are_told(report: dict[str, Any]) -> None:
    found = audits(report)["twin_of_gelu"].findings
    assert [one.kind for one in found] == ["duplicate"] and "healthy_gelu" in found[0].message


def test_the_report_files(report: dict[str, Any], folder: Path) -> None:
    assert json.loads((folder / "r.json").read_text()) == report
    page = (folder / "r.md").read_text()
    assert all(f"| {name} |" in page for name, (_, kinds, _) in CASES.items() if kinds)
    assert report["summary"]["passes"]["dice"]["zeros"] == ["times_zero"]
    assert report["summary"]["problems"] == len(CASES) + 1 == sum(report["summary"]["severity"].values())


def test_the_protocol_decides_what_to_reject(folder: Path) -> None:
    names = ("relu_of_positive", "returns_a_pair")
    files = [folder / f"{name}.py" for name in names]
    found = audits(json.loads(inspect(*files, "--json", "--protocol", "kernelbench").stdout))
    assert {audit.severity for audit in found.values()} == {"reject"}


def test_a_terminal_summary(folder: Path, known: tuple[str | Path, ...]) -> None:
    result = inspect(folder / "relu_of_positive.py", folder / "not_python.py", *known)
    assert result.returncode == 1 and "1 to reject, 1 with warnings" in result.stdout
    assert "Returning input 0" in result.stdout and "identity" in result.stdout


def test_tables_of_problems(tmp_path: Path, known: tuple[str | Path, ...]) -> None:
    healthy, twin = CASES["healthy_linear"][0], CASES["true_identity"][0]
    rows = [{"id": "a", "pytorch_code": healthy, "level": "2"}, {"id": "b", "pytorch_code": twin, "level": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "t.json").write_text(json.dumps({row["id"]: row for row in rows}))
    (tmp_path / "odd.json").write_text(json.dumps([{"source": healthy}]))
    for name in ("t.parquet", "t.jsonl", "t.json"):
        found = read_problems([tmp_path / name])
        assert [(one.name, one.level, one.source) for one in found] == [("a", 2, healthy), ("b", None, twin)]
    assert read_problems([tmp_path / "odd.json"], "source")[0].source == healthy
    with pytest.raises(UserError, match="has no column of source text .* its columns are: source"):
        read_problems([tmp_path / "odd.json"])
    result = inspect(tmp_path / "t.parquet", "--json", *known)
    assert {row["name"]: row["severity"] for row in json.loads(result.stdout)["audits"]} == {"a": "", "b": "reject"}


@pytest.mark.slow
def test_an_interrupted_audit_resumes(tmp_path: Path) -> None:
    problems, out = tmp_path / "problems", tmp_path / "out.json"
    problems.mkdir()
    for number in range(3):
        (problems / f"{number}.py").write_text(problem(f"return torch.sin(x + {number})", "torch.randn(64, 256)"))
    (problems / "9.py").write_text(CASES["hangs"][0])
    command = ["env", "--default-signal=INT", sys.executable, "-m", "dice", "data", "inspect", str(problems)]
    process = subprocess.Popen([*command, "-o", str(out)], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    record = tmp_path / "out.jsonl"
    while not (record.exists() and record.read_text().count("\n") >= 2):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "interrupted" in stderr and "Traceback" not in stderr, stderr
    assert not out.exists()
    done = record.read_text()
    record.write_text(done + done[:40])  # a line cut short, as a crash leaves it
    (problems / "9.py").unlink()
    result = inspect(problems, "-o", out, "--json")
    assert result.returncode == 0, result.stderr
    assert record.read_text().startswith(done)  # what was done is kept,
    rows = [line for line in record.read_text().splitlines() if line.endswith("}")]
    assert len(rows) == 3  # and not done again
    assert [row["name"] for row in json.loads(out.read_text())["audits"]] == ["0", "1", "2"]


def test_other_settings_are_audited_anew(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(CASES["not_python"][0])
    for seed in ("0", "1", "1"):
        inspect(tmp_path / "p.py", "-o", tmp_path / "r", "--seed", seed)
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2


def test_a_quick_audit_leaves_out_the_looks_one_by_one(folder: Path) -> None:
    files = [folder / f"{name}.py" for name in ("ignores_second", "unused_parameter", "mean_of_softmax")]
    quick = audits(json.loads(inspect(*files, "--json", "--quick", "--workers", "2").stdout))
    assert not {"dead_input", "dead_parameter"} & set(
        quick["ignores_second"].kinds() + quick["unused_parameter"].kinds()
    )
    assert {"input_free", "constant"} <= set(quick["mean_of_softmax"].kinds())


def test_misuse_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text("{")
    (tmp_path / "bad.parquet").write_text("PAR")
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "p.py").write_text(CASES["true_identity"][0])
    one_sentence(inspect(), "at least one PATH")
    one_sentence(inspect(tmp_path / "nowhere"), "no file or folder")
    one_sentence(inspect(tmp_path / "empty"), "no problem in")
    one_sentence(inspect(tmp_path / "bad.jsonl"), "cannot be read as jsonl")
    one_sentence(inspect(tmp_path / "bad.parquet"), "cannot be read as parquet")
    one_sentence(inspect(tmp_path / "note.txt"), "is no set of problems")
    one_sentence(inspect(tmp_path / "p.py", "--workers", "0"), "--workers must be at least 1, not 0")
    one_sentence(inspect(tmp_path / "p.py", "--timeout", "0"), "must be positive")
    one_sentence(inspect(tmp_path / "p.py", "--memory-mb", "1"), "at least 256 MiB")
    one_sentence(inspect(tmp_path / "p.py", "-o", tmp_path / "empty"), "is a folder")


def test_a_problem_cannot_reach_the_machine(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode and not landlock.version():
        pytest.skip("this host refuses namespaces and Landlock: nothing hides files from a child")
    secret, spoils = tmp_path / "secret.txt", tmp_path / "spoils.txt"
    secret.write_text("the secret")
    code = f"""
        try:
            text = open({str(secret)!r}).read()
        except OSError:
            text = "hidden"
        try:
            open({str(spoils)!r}, "w").write(text)
        except OSError:
            pass
        raise RuntimeError(text)"""
    (tmp_path / "p.py").write_text(problem("pass" + code))
    (row,) = json.loads(inspect(tmp_path / "p.py", "--json").stdout)["audits"]
    assert "hidden" in row["findings"][-1]["message"] and not spoils.exists()


def test_findings_are_checked() -> None:
    with pytest.raises(ValueError, match="no such finding"):
        Finding("made_up", "note", "Text.")
    audit = Audit("a|b", "0", 1, (Finding("broken", "reject", "It fails | <here>."),))
    assert Audit.from_json(audit.to_json()) == audit
    assert "It fails \\| &lt;here>." in to_markdown([audit], AuditSettings())
