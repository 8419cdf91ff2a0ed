"""Shared test set-up: one thread for PyTorch, what each file of tests needs, and GPU tests skip where there is no GPU.

`-m "not process"` is what `make check` runs, `-m "not slow"` what `make test` runs; `--table` tells what ran, by file.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from dice.verify.sandbox.process import Zygote

# Before anything imports PyTorch. Threads gain nothing on the small tensors of tests, and those of parallel test
# processes wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the suite in the background has it ignore Ctrl-C, and so would every process it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing where others use the machine.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
# Seconds that a test waits for what must come. Nothing takes a tenth of it on an idle machine; others may use this one.
PATIENCE_S = 600


# Files and folders below tests/ that build nothing, start no verifier and take no seconds for a test. The tests of all
# others get the marker `process`.
WITHOUT_PROCESSES = (
    *("test_repository.py", "nouns", "model", "decode"),
    *("files/test_atomic.py", "files/test_journal.py", "files/test_highlight.py", "files/test_tables.py"),
    *("verify/test_roofline.py", "verify/tensors/test_compare.py", "verify/tensors/test_transport.py"),
    *(
        "verify/execution/test_inputs.py",
        "verify/execution/test_reads.py",
        "verify/execution/test_stopwatch.py",
        "verify/candidate/test_profiling.py",
    ),
    *("verify/reference", "verify/build/test_build_parts.py", "verify/ipc"),
    *("verify/supervisor/test_endings.py", "verify/supervisor/test_gpu_lock.py"),
    *("verify/supervisor/test_static.py", "verify/supervisor/test_timing.py"),
)


@functools.cache
def needs_process(path: Path) -> bool:
    places = (path, *path.parents)
    return not any(ROOT / "tests" / place in places for place in WITHOUT_PROCESSES)


@functools.cache
def why_no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU; torch.cuda.is_available() is false here"
    if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
        return "needs nvcc; none was found"
    return ""


def skip_without(module: str, reason: str) -> None:
    """Skip a file of tests where a module is not installed. It is not imported for that: each of the processes that
    run tests collects all of them, and some modules take a second."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(reason, allow_module_level=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="end with a table of what ran, a line for each file")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `-m "not process"` leaves out is not even imported, which would take longer than the tests that are left."""
    left_out = "not process" in config.option.markexpr and collection_path.is_file() and needs_process(collection_path)
    return True if left_out else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if needs_process(item.path):
            item.add_marker(pytest.mark.process)
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests live to the end: a garbage collector that walks over them each time finds nothing."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.option.table:
        return
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            file = report.nodeid.partition("::")[0]
            counts[file]["failed" if outcome == "error" else outcome] += 1
            if outcome == "skipped":
                reasons[file][report.longrepr[2].removeprefix("Skipped: ")] += 1
    width = max(map(len, counts), default=4)
    terminalreporter.section("what ran")
    terminalreporter.write_line(f"{'file':{width}}  passed  failed  skipped")
    for file, count in sorted(counts.items()):
        why = "; ".join(f"{reason} ({number})" for reason, number in reasons[file].items())
        terminalreporter.write_line(
            f"{file:{width}}  {count['passed']:6}  {count['failed']:6}  {count['skipped']:7}  {why}".rstrip()
        )


def borrowed_cache(folder: Path) -> Path:
    """A cache without builds in it, but with what all builds share, which takes half a minute to make: a verification
    has made it before, since nothing can be added to what is borrowed."""
    from dice.verify.options import default_cache_dir

    folder.mkdir(exist_ok=True)
    for path in [default_cache_dir() / "headers", *default_cache_dir().glob("emulator-*")]:
        (folder / path.name).symlink_to(path)
    (folder / "extensions").mkdir()
    return folder


@pytest.fixture(scope="session")
def zygotes() -> Iterator[Callable[[Iterable[str]], Zygote]]:
    """Starts zygotes that outlive their verifiers: whoever asks for one like it is given it again."""
    from dice.verify.sandbox.jail import WITHOUT
    from dice.verify.sandbox.process import Zygote

    class Lasting(Zygote):
        def close(self) -> None:
            """It ends with the tests."""

        def end(self) -> None:
            super().close()

    made: dict[object, Lasting] = {}

    def start(warm: Iterable[str] = ()) -> Lasting:
        key = (*warm, *(os.environ.get(name) for name in (WITHOUT, "TMPDIR", "PYTHONPATH", "PATH", "CXX")))
        if key not in made or not made[key].alive:
            made[key] = Lasting(warm)
        return made[key]

    yield start
    for zygote in made.values():
        zygote.end()


@pytest.fixture
def lasting_zygote(zygotes: Callable[[Iterable[str]], Zygote], monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifiers and audits of a test share a zygote with those of others: its start takes seconds. For tests that
    are about what a command says and writes, and not about the processes that it starts and leaves."""
    monkeypatch.setattr("dice.verify.verifier.Zygote", zygotes)
    monkeypatch.setattr("dice.verify.audit.run.Zygote", zygotes)


@pytest.fixture(scope="session")
def sdar_files() -> Path:
    """The published SDAR configuration and tokenizer files, where a checkout has them beside it."""
    folder = ROOT.parent / "shared" / "sdar"
    if not (folder / "config.json").exists():
        pytest.skip("SDAR's published files are not beside this checkout")
    return folder
