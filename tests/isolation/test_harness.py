"""What runs the probes notices what is not kept: else their silence would mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dice.commands import doctor
from dice.verify.probes import runner
from dice.verify.probes.files import all_probes, read
from dice.verify.probes.leftovers import Footprint, discard, late_descendants, named
from dice.verify.probes.runner import Result, run
from dice.verify.sandbox.jail import WITHOUT

HEADER = "# promise: It is kept.\n# right: correct\n# tags: quick\n"


def results(folder: Path, **environment: str) -> list[Result]:
    wanted = [(probe.name, probe.endings[-1]) for probe in all_probes(folder)]
    return list(run(wanted, environment={"OMP_NUM_THREADS": "1", **environment}, folder=folder))


def test_every_probe_says_what_it_tries_and_what_may_become_of_it() -> None:
    probes = all_probes()
    assert len(probes) > 80 and all(probe.promise.endswith(".") for probe in probes)
    assert len({probe.promise for probe in probes}) == len(probes)
    for probe in probes:
        assert not any("infra_error" in outcomes for outcomes in probe.outcomes.values()), probe.name
        assert "escaped(" not in probe.text or probe.tags & {"files", "memory", "processes", "reading"}, probe.name


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "# promise: It is kept.\n# tags: quick\n",
        "# promise: It is kept.\n# right: correct\n",
        "# promise: It is kept.\n# right: right\n# tags: quick\n",
    ],
)
def test_a_probe_that_says_too_little_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(text)
    with pytest.raises(ValueError, match="a promise, outcomes, and one of the tags"):
        read(tmp_path / "probe.py")


@pytest.mark.slow
def test_what_is_not_kept_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a_escapes.py").write_text(f'{HEADER}escaped("all of it")\n')
    (tmp_path / "b_other_verdict.py").write_text(f"{HEADER}os._exit(3)\n")
    (tmp_path / "c_kept.py").write_text(f"{HEADER}x = 1\n")
    (tmp_path / "d_overdue.py").write_text(f"{HEADER}time.sleep(60)\n".replace("correct", "correct timeout"))
    found = {result.name: result for result in results(tmp_path)}
    assert [one.state for one in found.values()] == ["broken", "broken", "held", "held", "held"], found
    assert "ESCAPED: all of it" in found["a_escapes"].broken[0]
    assert "its verdict is runtime_error" in found["b_other_verdict"].broken[0]
    assert found["d_overdue"].outcome == "timeout" and found["afterwards"].broken == ()


def test_what_is_said_to_be_lacking_excuses(tmp_path: Path) -> None:
    escape = f'{HEADER}# lacking: processes\nescaped("all of it")\n'
    (tmp_path / "a.py").write_text(escape)
    (tmp_path / "b.py").write_text(escape.replace("lacking: processes", "lacking: privileges"))
    found = results(tmp_path, **{WITHOUT: "namespaces"})
    assert [(one.state, one.excused) for one in found[:2]] == [("excused", ("processes",)), ("broken", ())]


def test_a_verifier_that_ends_is_said(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(f"{HEADER}x = 1\n")
    found = list(run([("probe", "right")], python="/bin/false", folder=tmp_path))
    assert [one.state for one in found] == ["broken", "broken"] and "status 1" in found[0].broken[0]


def test_what_is_left_is_found(tmp_path: Path) -> None:
    before, late = Footprint.now(tmp_path), late_descendants(os.getpid())
    assert before.grown("left-", 0) == [] and late() == []
    (tmp_path / "extensions" / "tmp-12345678").mkdir(parents=True)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    files = [open(os.devnull) for _ in range(20)]  # noqa: SIM115
    code = "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, b'left-1', 0, 0, 0); print(); sys.stdout.flush()"
    process = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(60)"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert late() == named("left-") == [process.pid]
        found = " ".join(before.grown("left-", 0))
        assert f"it lives on: process {process.pid}" in found and "tmp-12345678" in found
        assert "threads" in found and "descriptors" in found
        assert "escaped" in found and "escaped" not in " ".join(before.grown("left-", process.pid))
    finally:
        process.kill()
        process.wait()
        stop.set()
        thread.join()
        for file in files:
            file.close()
    before.forget("left-")
    assert before.grown("left-", 0) == []


def test_anything_is_removed_in_the_end(tmp_path: Path) -> None:
    """The check may not fall for what it checks."""
    here = os.open(".", os.O_RDONLY)
    deep = tmp_path / "deep"
    try:
        deep.mkdir()
        os.chdir(deep)
        for _ in range(3000):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(here)
        os.close(here)
    (deep / "a").chmod(0)
    discard(deep)
    assert not deep.exists()


@pytest.mark.slow
@pytest.mark.parametrize("escapes", [False, True])
def test_doctor_exits_with_1_where_a_promise_is_not_kept(
    escapes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "probe.py").write_text(HEADER + 'escaped("all of it")\n' * escapes)
    monkeypatch.setattr(runner, "tasks", lambda quick: [("probe", "right")])
    inner = runner.run
    monkeypatch.setattr(runner, "run", lambda wanted, backend: inner(wanted, backend, folder=tmp_path))
    if escapes:  # in one of the cases, for each attack starts a verifier
        assert doctor.Doctor(json=True, probe=True).run() == 1
        said = json.loads(capfd.readouterr().out)["probes"]
        assert said["broken"] == said["held"] == 1 and said["sandbox"] and said["user"]
    assert doctor.Doctor(probe=True).run() == int(escapes)
    shown = capfd.readouterr().out
    assert f"{2 - int(escapes)} of 2 promises held under attack, as " in shown and ("all of it" in shown) == escapes
