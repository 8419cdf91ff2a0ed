"""`dice eval` and `dice generate` against our own server give what they give in process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import Running

from dice.cli import main
from dice.evaluate.run_folder import RunFolder
from tests.conftest import ROOT

pytestmark = [pytest.mark.usefixtures("lasting_zygote"), pytest.mark.xdist_group("serve")]


@pytest.mark.slow
def test_an_evaluation_over_the_server_equals_one_in_process(server: Running, tmp_path: Path) -> None:
    """Two evaluations, each with a model and a verifier of its own. The beginning of an answer; both are greedy."""
    place = tmp_path / "bench" / "level1" / "1_softmax.py"
    place.parent.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "softmax.py", place)
    texts = []
    for folder, flags in (("own", []), ("served", ["--base-url", f"{server.url}/v1"])):
        out = tmp_path / folder
        given = ["--model", "nano", "--problems", str(tmp_path / "bench"), "--out", str(out), "--prompt", "compact"]
        limits = ["--max-new-tokens", "48", "--temperature", "0", "--backend", "emulated", "--trials", "1"]
        assert main(["eval", *given, *limits, *flags]) == 0
        texts.append({one.task: one.reply for one in RunFolder(out).generations()})
    assert texts[0] == texts[1] and len(texts[0]) == 1


def test_a_reply_of_the_server_equals_one_in_process(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[dict[str, Any]] = []
    for flags in ([], ["--endpoint", f"{server.url}/v1"]):
        given = [str(ROOT / "examples" / "softmax.py"), "-o", str(tmp_path / "kernel.py"), "--max-new-tokens", "48"]
        given += ["--backend", "emulated", "--form", "written", "--json"]
        assert main(["generate", *given, *flags]) == 1  # it is no whole kernel
        found.append(json.loads(capsys.readouterr().out))
    own, served = (one["samples"][0] for one in found)
    assert own["text"] == served["text"] and own["kernel"] == served["kernel"]
    assert own["verdict"]["outcome"] == served["verdict"]["outcome"]
    assert own["decode"]["tokens"] == served["decode"]["tokens"] == 48


def test_what_a_server_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "softmax.py")
    assert main(["generate", example, "--endpoint", "http://localhost:1/v1", "--refine", "1"]) == 2
    assert "leave out" in capsys.readouterr().err
