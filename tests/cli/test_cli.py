"""The `dice` command as a user meets it: real processes, exit codes, one sentence for each misuse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dice.model.checkpoint import NANO_FOLDER
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from tests.conftest import PATIENCE_S, ROOT, why_no_gpu

pytestmark = pytest.mark.xdist_group("cli")


def dice(*arguments: str | Path, prefix: tuple[str, ...] = (), **options: object) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "dice", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | options.pop("env", {})  # type: ignore[operator]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment, **options
    )  # type: ignore[call-overload]


def one_sentence(result: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and words in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "add.py").write_text(EXAMPLE_PROBLEM)
    (tmp_path / "right.py").write_text(EXAMPLE_KERNEL)
    (tmp_path / "wrong.py").write_text(EXAMPLE_KERNEL.replace("a[i] + b[i]", "a[i] - b[i]"))
    (tmp_path / "no_model.py").write_text("import torch\n")
    return tmp_path


def test_verify_says_no(files: Path) -> None:
    """test_first_run.py has the yes."""
    wrong = dice("verify", files / "add.py", files / "wrong.py", "--backend", "emulated")
    assert wrong.returncode == 1 and "verdict: wrong" in wrong.stdout and "expected" in wrong.stdout


@pytest.mark.slow  # test_terminal.py has several in a table
def test_verify_judges_several_kernels_in_their_order(files: Path) -> None:
    kernels = (files / "wrong.py", files / "right.py")
    both = dice("verify", files / "add.py", *kernels, "--backend", "emulated", "--json", "--workers", "1")
    answers = json.loads(both.stdout)
    assert both.returncode == 1
    assert [(one["kernel"], one["verdict"]["outcome"]) for one in answers] == [("wrong", "wrong"), ("right", "correct")]
    table = dice("verify", files / "add.py", *kernels, "--backend", "emulated")
    assert table.stdout.splitlines()[0].startswith("right\tcorrect") and "1 of 2 correct" in table.stdout
    one_sentence(dice("verify", files / "add.py"), 2, "at least one KERNEL.py")
    one_sentence(dice("verify", files / "add.py", *kernels, "--workers", "0"), 2, "--workers must be at least 1, not 0")


@pytest.mark.slow  # the README's code writes this kernel in each suite; test_unusable_problems.py has what --json tells
def test_generate_writes_a_proven_kernel_and_its_trace(tmp_path: Path) -> None:
    out, trace = tmp_path / "a" / "kernel.py", tmp_path / "trace.json"
    problem = ROOT / "examples" / "softmax.py"
    result = dice("generate", problem, "-o", out, "--trace", trace, "--backend", "emulated", "--json")
    answer = json.loads(result.stdout)
    assert result.returncode == 0 and answer["verdict"]["outcome"] == "correct", result.stderr
    assert out.read_text() == answer["kernel"] and "__global__" in answer["kernel"]
    assert answer["decode"]["tokens_per_forward"] > 1 and json.loads(trace.read_text())["block_size"] == 4


@pytest.mark.slow  # test_from_python.py has two samples in the order of their rank
def test_the_best_of_several_samples_is_kept(files: Path) -> None:
    arguments = ("--samples", "2", "--refine", "1", "--max-new-tokens", "40", "--backend", "emulated", "--json")
    arguments += ("--form", "written")
    result = dice("generate", files / "add.py", "-o", files / "k.py", *arguments)
    answer = json.loads(result.stdout)  # 40 tokens hold no whole kernel: every attempt fails, and says so
    assert result.returncode == 1 and len(answer["samples"]) == 3
    assert {sample["verdict"]["outcome"] for sample in answer["samples"]} == {"no_kernel"}
    assert all(sample["text"] and "kernel" in sample for sample in answer["samples"])


def test_missing_and_unusable_files(files: Path) -> None:
    one_sentence(dice("verify", files / "none.py", files / "right.py"), 2, "no problem file")
    one_sentence(dice("verify", files / "add.py", files / "none.py"), 2, "no kernel file")
    one_sentence(dice("generate", files / "no_model.py"), 2, "no class `Model`")
    one_sentence(dice("generate"), 2, "at least one PROBLEM.py")
    one_sentence(dice("generate", files / "add.py", "-o", files / "add.py"), 2, "is read from")
    assert (files / "add.py").read_text() == EXAMPLE_PROBLEM


@pytest.mark.slow  # test_strange_files.py has checkpoints that are worse
def test_a_checkpoint_with_a_missing_tensor(files: Path) -> None:
    model = shutil.copytree(NANO_FOLDER, files / "model")
    weights = load_file(model / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, model / "model.safetensors")
    result = dice("generate", files / "add.py", "--model", model, "-o", files / "k.py")
    one_sentence(result, 2, "model.norm.weight")


def test_what_this_machine_cannot_do(files: Path) -> None:
    no_compiler = {"PATH": str(files), "CXX": "", "CUDA_HOME": str(files)}
    result = dice("verify", files / "add.py", files / "right.py", "--backend", "emulated", env=no_compiler)
    one_sentence(result, 3, "C++ compiler")
    if why_no_gpu():
        result = dice("verify", files / "add.py", files / "right.py", "--backend", "cuda")
        one_sentence(result, 3, "cuda backend cannot run here")


@pytest.mark.slow
def test_a_full_disk_loses_nothing(files: Path) -> None:
    disk = files / "disk"
    disk.mkdir()
    shell = (
        f"mount -t tmpfs -o size=16k none '{disk}' && echo old > '{disk}/k.py' && head -c 20k /dev/zero > '{disk}/fill'"
    )
    script = f'{shell}; "$@"; code=$?; cat "{disk}/k.py"; exit $code'
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this host lets nobody mount a small disk to fill")
    result = dice(
        "generate", files / "add.py", "-o", disk / "k.py", "--backend", "emulated", "--max-new-tokens", "800",
        prefix=("unshare", "-rm", "sh", "-c", script, "sh"),
    )  # fmt: skip
    assert result.returncode == 3 and "cannot write: No space left" in result.stderr, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "old" and "Traceback" not in result.stderr


def _imports_an_extension(pid: int) -> bool:
    """Which one comes first depends on the Python: Debian's has most of the standard library's built in."""
    return ".cpython-" in Path(f"/proc/{pid}/maps").read_text()


def _imports_torch(pid: int) -> bool:
    return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()


def _has_children(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())


@pytest.mark.parametrize("moment", [_imports_an_extension, _imports_torch, _has_children])
def test_ctrl_c_leaves_no_half_file(files: Path, moment: Callable[[int], bool]) -> None:
    # A test suite started in the background ignores SIGINT, and hands that down.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "dice", "generate", str(files / "add.py")]
    command += ["-o", str(files / "k.py")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while not moment(process.pid):
        assert process.poll() is None, "it ended too early to be interrupted"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "Traceback" not in stderr and "interrupted" in stderr, stderr
    assert not (files / "k.py").exists() and not list(files.glob(".k.py*"))


@pytest.mark.slow  # the pages of the documentation run these commands, too
def test_synth_and_tokenizer_and_sft_make_a_model(tmp_path: Path) -> None:
    made = dice("data", "synth", "--out", tmp_path / "c", "--pairs", "40", "--heldout", "4", "--no-verify", "--json")
    assert json.loads(made.stdout)["train"]["pairs"] == 40
    data = ("--data", tmp_path / "c" / "train")
    assert dice("data", "tokenizer", *data, "--out", tmp_path / "t", "--vocab-size", "600").returncode == 0
    recipe = ("--recipe", "tiny_sft", "--tokenizer", tmp_path / "t", "--max-steps", "2", "--row-tokens", "2048")
    recipe += ("--shape.max-position-embeddings", "2048")
    trained = dice("train", "sft", *recipe, *data, "--out", tmp_path / "run", "--batch-rows", "1", "--micro-rows", "1")
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    one_sentence(dice("train", "sft", "--recipe", "none"), 2, "there is no recipe")
