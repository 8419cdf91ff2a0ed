"""The verifier as its callers use it: one pair, many pairs, limits, faults of ours, sizes too large to emulate."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import BackendUnavailable, Options, Verifier, options, resolve_backend, verify
from dice.verify.sandbox.scratch import PREFIX
from dice.verify.supervisor import job
from tests.conftest import PATIENCE_S, borrowed_cache

CASES = Path(__file__).parent.parent / "cases"
ROOT = CASES.parent.parent
RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT = Kernel.from_file(CASES / "right_relu.py")
WRONG = Kernel.from_file(CASES / "wrong_value.py")
EMPTY = Kernel("")


@pytest.fixture
def verifier(emulated: Verifier) -> Verifier:
    return emulated


def large(problem: Problem, rows: int) -> Problem:
    return replace(problem, source=problem.source.replace("batch_size = 16", f"batch_size = {rows}"))


def test_right_kernel_verdict_is_complete(verifier: Verifier) -> None:
    verdict = verifier.verify(RELU, RIGHT)
    assert verdict.correct and verdict.stage == "done"
    assert verdict.launches == {"relu_kernel": 5}
    assert verdict.sandbox.split("+")[0] in ("namespaces", "process") and verdict.headers in ("slim", "full")
    assert verdict.toolchain and verdict.device == "CPU" and verdict.no_timing
    assert set(verdict.seconds) >= {"load", "run", "reference", "compare", "total"}
    assert verdict.max_abs_error == 0.0


@pytest.mark.slow
def test_what_is_made_for_the_first_job_is_seen_by_it_though_a_problem_was_looked_at_before() -> None:
    # Not below /tmp, of which each candidate has its own.
    with tempfile.TemporaryDirectory(dir=options.default_cache_dir().parent) as folder:
        cache = borrowed_cache(Path(folder))
        for link in cache.glob("emulator-*"):
            link.unlink()
        (cache / "emulator-of-another-version").mkdir()
        with Verifier(backend="emulated", options=Options(cache_dir=cache)) as fresh:
            assert fresh.find_faults([RELU]) == [None]
            assert fresh.verify(RELU, RIGHT).correct


def test_a_large_problem_is_only_constructed_before_kernels_are_written(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = replace(RELU, source=RELU.source.replace("return torch.relu(x)", "raise ValueError(f'{x.sum()} met')"))
    missing = replace(RELU, source=f"import no_such_module\n{RELU.source}")
    assert data.source != RELU.source
    said = [fault and fault.message for fault in verifier.find_faults([data, missing])]
    assert "met" in str(said[0]) and "no_such_module" in str(said[1])
    monkeypatch.setattr(job, "DRAWN_AT_MOST_BYTES", 0)
    fresh = [replace(one, source=f"# large\n{one.source}") for one in (data, missing)]
    said = [fault and fault.message for fault in verifier.find_faults(fresh)]
    assert said[0] is None and "no_such_module" in str(said[1])


def test_a_large_problem_is_tried_on_tensors_without_data(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    real = "assert x.is_meta, 'values are there'\n        return torch.relu(x)"
    unfit = RELU.source.replace("return torch.relu(x)", "return torch.relu(x) @ torch.rand(3, 5, device=x.device)")
    problems = [replace(RELU, source=RELU.source.replace("return torch.relu(x)", real)), replace(RELU, source=unfit)]
    assert all(verifier.find_faults(problems))
    monkeypatch.setattr(job, "TRIED_AT_MOST_BYTES", 0)
    said = verifier.find_faults([replace(one, source=f"# large\n{one.source}") for one in problems])
    assert said[0] is None and said[1] is not None and "shapes" in said[1].message


@pytest.mark.usefixtures("lasting_zygote")
def test_a_build_counts_once_where_a_kernel_is_loaded_again(verifier: Verifier, tmp_path: Path) -> None:
    verifier.verify(RELU, RIGHT)  # so that there is something to borrow
    broken = Problem.from_file(CASES / "problems" / "broken.py")
    with Verifier(backend="emulated", options=Options(cache_dir=borrowed_cache(tmp_path))) as fresh:
        seconds = fresh.verify(broken, RIGHT).seconds
    assert seconds["compile"] > 0 and min(seconds.values()) >= 0


def test_arguments_by_name_are_told_as_what_the_contract_does_not_have(verifier: Verifier) -> None:
    for function in ("get_inputs", "get_init_inputs"):
        named = replace(RELU, source=f"{RELU.source}\n\ndef {function}():\n    return {{'x': 1}}\n")
        verdict = verifier.verify(named, RIGHT)
        assert verdict.outcome == "unsupported"
        assert verdict.message.endswith(f"{function}() returned a dict, not a list: arguments are passed by position")


def test_many_pairs_come_back_with_their_own_verdicts(verifier: Verifier) -> None:
    pairs = [(RELU, RIGHT), (RELU, WRONG), (RELU, EMPTY), (RELU, RIGHT)]
    verdicts = dict(verifier.verify_many(pairs, workers=2))
    assert [verdicts[index].outcome for index in range(4)] == ["correct", "wrong", "no_kernel", "correct"]
    assert verdicts[0] is verdicts[3]  # the same pair, verified once


def test_a_candidate_cannot_say_how_its_build_ended(verifier: Verifier) -> None:
    for claim in ("CompileTimeout('')", "CompileError('')", "Unsupported('')", "ToolchainError('')"):
        gives_up = f"from dice.verify.build.build import *\nraise {claim}\n"
        verdict = verifier.verify(RELU, Kernel(gives_up + RIGHT.source))
        assert (verdict.outcome, verdict.stage) == ("load_error", "load"), claim


def test_leaving_many_early_starts_no_more(verifier: Verifier) -> None:
    pairs = [(RELU, replace(RIGHT, source=RIGHT.source + f"# {index}\n")) for index in range(40)]
    for _, verdict in verifier.verify_many(pairs, workers=2):
        assert verdict.correct
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("verify")]


def test_a_killed_zygote_is_replaced(verifier: Verifier) -> None:
    assert verifier.verify(RELU, RIGHT).correct
    os.kill(verifier._get_zygote().pid, 9)
    assert verifier.verify(RELU, RIGHT).correct


def test_a_zygote_killed_under_way_costs_no_verdict(verifier: Verifier) -> None:
    slow = replace(RIGHT, source="import time\ntime.sleep(1.5)\n" + RIGHT.source)
    zygote = verifier._get_zygote()
    killer = threading.Timer(0.7, os.kill, (zygote.pid, 9))
    killer.start()
    verdict = verifier.verify(RELU, slow)
    killer.join()
    assert not zygote.alive and verdict.correct


def test_machinery_that_keeps_failing_is_an_infra_error(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    broken = Verifier(backend="emulated", options=Options(cache_dir=tmp_path))
    verdict = broken.verify(RELU, RIGHT)
    broken.close()
    assert (verdict.outcome, verdict.stage) == ("infra_error", "infra")
    assert not verdict.about_kernel and "zygote" in verdict.message


def test_nothing_is_left_behind(verifier: Verifier) -> None:
    """But the oracle, which is kept."""
    assert verifier.verify(RELU, WRONG).outcome == "wrong"
    before = _settled(verifier)
    for _ in range(3):
        assert verifier.verify(RELU, WRONG).outcome == "wrong"
    assert _settled(verifier) == before


def test_a_problem_too_large_to_emulate_is_refused_with_an_estimate(verifier: Verifier) -> None:
    verdict = verifier.verify(large(RELU, 400_000_000), RIGHT)
    assert (verdict.outcome, verdict.stage) == ("unsupported", "run")
    assert "--scale" in verdict.message and "emulated" in verdict.message


def test_scale_shrinks_the_batch_and_says_so(verifier: Verifier) -> None:
    problem = large(RELU, 40_000_000)
    verdict = verifier.verify(problem, RIGHT, replace(verifier.options, scale=1e-6))
    assert verdict.correct
    assert verdict.scale == {"input 0": [[40_000_000, 100], [40, 100]]}


def test_too_little_scale_is_refused(verifier: Verifier) -> None:
    verdict = verifier.verify(large(RELU, 400_000_000), RIGHT, replace(verifier.options, scale=0.9))
    assert verdict.outcome == "unsupported" and "even with --scale" in verdict.message


def test_a_secret_seed_gives_other_inputs_each_time(verifier: Verifier) -> None:
    """A kernel that prints its input's sum cannot print the same twice, unless the seed is fixed."""
    model = "raise RuntimeError(f'sum {x.sum().item():.6f}')"
    loud = replace(RIGHT, source=RIGHT.source.replace("return ops.relu(x)", model))
    messages = {verifier.verify(RELU, loud).message for _ in range(4)}
    assert len(messages) > 1  # some may begin with the trial of zeros
    fixed = replace(verifier.options, seed=7)
    assert len({verifier.verify(RELU, loud, fixed).message for _ in range(2)}) == 1


def test_unsupported_constructs_stay_unsupported_when_the_candidate_catches_them(verifier: Verifier) -> None:
    text = RIGHT.source.replace("#include <cuda_runtime.h>", "#include <cuda_runtime.h>\n#include <curand_kernel.h>")
    text = text.replace("\nops = load_inline(", "\ntry:\n    ops = load_inline(") + "\n"
    text = text.replace('functions=["relu"])\n', 'functions=["relu"])\nexcept Exception:\n    ops = torch\n')
    assert verifier.verify(RELU, Kernel(text)).outcome == "unsupported"


def test_host_code_cannot_write_outside_its_folders(verifier: Verifier, tmp_path: Path) -> None:
    target = tmp_path / "written"
    text = RIGHT.source.replace("class ModelNew", f"open({str(target)!r}, 'w').write('x')\n\n\nclass ModelNew")
    verdict = verifier.verify(RELU, Kernel(text))
    if not verdict.sandbox.startswith("namespaces"):
        pytest.skip("this kernel refuses namespaces")
    assert verdict.outcome == "load_error" and ("Errno 2]" in verdict.message or "Errno 30]" in verdict.message)
    assert not target.exists()


def test_the_supervisor_never_imports_torch() -> None:
    code = (
        "import sys\n"
        "from dice.kernel import Kernel\nfrom dice.problem import Problem\nfrom dice.verify import verify\n"
        f"problem = Problem.from_file({str(CASES / 'problems/relu.py')!r})\n"
        f"kernel = Kernel.from_file({str(CASES / 'wrong_value.py')!r})\n"
        "print(verify(problem, kernel, backend='emulated').outcome, 'torch' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=PATIENCE_S
    )
    assert done.stdout.split() == ["wrong", "False"], done.stderr


def test_backends_are_resolved_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_nvcc", lambda: None)
    assert resolve_backend("auto") == "emulated"
    with pytest.raises(BackendUnavailable, match="nvcc was not found"):
        resolve_backend("cuda")
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(BackendUnavailable, match="compiler"):
        verify(RELU, RIGHT, backend="auto")
    with pytest.raises(ValueError, match="backend must be"):
        resolve_backend("tpu")


@pytest.mark.parametrize(
    "named, count, expected",
    [(None, 2, ("0", "1")), ("2,3", 2, ("2", "3")), ("GPU-ab, GPU-cd", 1, ("GPU-ab",)), ("", 0, ())],
)
def test_all_gpus_that_may_be_seen_are_used(
    named: str | None, count: int, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "probe_cuda", lambda: {"count": count})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert options.visible_gpus() == expected


@pytest.mark.parametrize(
    "wrong", [{"trials": 0}, {"scale": 0.0}, {"scale": 2.0}, {"run_timeout_s": 0}, {"memory_mb": -1}]
)
def test_options_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Options(**wrong)


@pytest.mark.gpu
def test_reference_written_as_a_kernel_is_timed() -> None:
    verdict = verify(RELU, RIGHT, backend="cuda")
    assert verdict.correct and verdict.timing is not None
    assert verdict.timing.kernel_ms > 0 and verdict.timing.repeats >= 20
    assert verify(RELU, RIGHT, backend="cuda", options=Options(timing=False)).no_timing == "not asked for"


@pytest.mark.gpu
def test_a_crowd_is_no_problems_fault() -> None:
    """Many make contexts at once, and begin and end while others are timed."""
    pairs = []
    for number in range(48):
        problem = Problem(f"{RELU.source}\n# {number // 2}\n")
        pairs.append((problem, Kernel(f"{RIGHT.source}\n# {number}\n")))
    options = Options(timing_s=0.1, trials=1, run_timeout_s=8)
    with Verifier(backend="cuda", options=options, cache=False) as verifier:
        verdicts = [verdict for _, verdict in verifier.verify_many(pairs, workers=48)]
    assert {(verdict.outcome, verdict.message) for verdict in verdicts} == {("correct", "")}
    assert all(verdict.timing for verdict in verdicts)


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _settled(verifier: Verifier) -> tuple[int, int, list[str]]:
    """Once what was told to end has ended, and what other tests left in this process is gone."""
    gc.collect()
    found: tuple[int, int, list[str]] = (0, 0, [])
    deadline, since = time.monotonic() + 10, time.monotonic()
    while time.monotonic() < min(deadline, since + 0.5):
        time.sleep(0.02)
        with contextlib.suppress(FileNotFoundError):  # it went while we looked
            if (now := _possessions(verifier)) != found:
                found, since = now, time.monotonic()
    return found


def _possessions(verifier: Verifier) -> tuple[int, int, list[str]]:
    """How many files of jobs and oracles, how many descriptors, which processes."""
    places = ("/dev/shm", tempfile.gettempdir())
    files = [path for place in places for path in Path(place).glob(f"{PREFIX}{os.getpid()}-*/**/*")]
    return len(files), len(os.listdir("/proc/self/fd")), _children(verifier._get_zygote().pid)


def test_no_limit_is_a_limit_and_a_nan_is_none(emulated: Verifier) -> None:
    assert emulated.verify(RELU, RIGHT, replace(emulated.options, run_timeout_s=float("inf"))).correct
    with pytest.raises(ValueError, match="limits must be positive"):
        Options(run_timeout_s=float("nan"))
