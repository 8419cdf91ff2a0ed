"""What may go wrong around a verification, one test for each row: nothing is left behind, and no fault of ours, or of
the machine's, becomes a verdict on a kernel. `ELSEWHERE` says where the other rows are tested.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import BackendUnavailable, Options, Verifier
from dice.verify.build.service import BuildService
from dice.verify.build.sources import Sources
from dice.verify.sandbox.cancel import Cancellation, Spawner
from dice.verify.sandbox.process import Zygote
from dice.verify.sandbox.scratch import PREFIX, sweep
from dice.verify.sandbox.usage import descendants
from dice.verify.supervisor.reference_pool import ReferenceLost, ReferencePool, ReferenceSettings
from tests.conftest import PATIENCE_S, borrowed_cache

HERE = Path(__file__).parent
CASES = HERE.parent / "cases"
ROOT = HERE.parent.parent
RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT = Kernel.from_file(CASES / "right_relu.py")
WRONG = Kernel.from_file(CASES / "wrong_value.py")

ELSEWHERE = {
    "infinite host loop": "cases/hang_host.py",
    "infinite kernel": "cases/hang_kernel.py",
    "infinite import": "cases/hang_import.py",
    "illegal access": "cases/crash.py",
    "silent out-of-bounds write": "cases/out_of_bounds_write.py",
    "host memory": "cases/memory_hog.py",
    "fork bomb": "cases/fork_bomb.py",
    "daemon": "cases/daemon_grandchild.py",
    "daemon with all descriptors": "cases/fault_daemon_keeps_channel.py",
    "ignored signals": "cases/fault_ignores_signals.py",
    "a stopped process": "cases/fault_stops_itself.py",
    "full /tmp": "cases/fault_fills_tmp.py",
    "full disk": "cases/fault_fills_disk.py",
    "a disk's entries": "cases/fault_many_files.py",
    "descriptors": "cases/fault_many_descriptors.py",
    "closed channel": "cases/fault_closes_channel.py",
    "output flood": "cases/output_flood.py",
    "endless output": "cases/fault_endless_output.py",
    "garbage messages": "cases/fault_garbage_messages.py",
    "a message without end": "cases/fault_floods_channel.py",
    "messages without end": "cases/fault_floods_messages.py",
    "early results": "cases/fault_early_results.py",
    "a forged report": "cases/forged_report.py",
    "an early exit": "cases/forged_exit.py",
    "compile never ends": "cases/hang_compile.py",
    "compiler bombs": "verify/build/test_builds.py::test_a_bomb_is_a_verdict_on_the_kernel",
    "files read by #include": "verify/build/test_builds.py::test_no_file_of_the_machine_is_read",
    "a killed zygote": "verify/test_verify.py::test_a_zygote_killed_under_way_costs_no_verdict",
    "hostile files": "verify/tensors/test_transport.py::test_deep_nesting_links_pipes_and_size_are_refused",
    "network, files, processes": "verify/supervisor/test_guarantees.py::test_every_promise_is_tried_and_holds",
    "environment": "verify/sandbox/test_zygote.py::test_environment_is_an_allowlist",
    "what is removed": "verify/sandbox/test_scratch.py::test_an_empty_relative_or_foreign_path_is_refused",
    "a damaged file of verdicts": "verify/test_verdict_cache.py::test_a_damaged_file_is_put_aside_and_begun_anew",
    "a stream killed under way": "verify/test_stream.py::test_a_stream_killed_under_way_goes_on_where_it_was",
}


def test_the_rows_tested_elsewhere_are_there() -> None:
    for row, place in ELSEWHERE.items():
        path, _, name = place.partition("::")
        text = (HERE.parent / path).read_text()
        assert f"def {name}(" in text if name else re.match("# problem: ", text), row


@pytest.fixture
def verifier(emulated: Verifier) -> Verifier:
    return emulated


def with_code(code: str, kernel: Kernel = RIGHT) -> Kernel:
    """`kernel` with more at the beginning of its file."""
    return replace(kernel, source=f"{code}\n{kernel.source}")


def new(kernel: Kernel = RIGHT, cuda: str = "") -> Kernel:
    """`kernel` with CUDA sources that were never built."""
    source = kernel.source.replace("#include <cuda_runtime.h>", f"#include <cuda_runtime.h>\n{cuda}\n// {uuid.uuid4()}")
    return replace(kernel, source=source)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def roots(pid: int) -> list[Path]:
    """The folders of a process's jobs."""
    return [path for place in ("/dev/shm", tempfile.gettempdir()) for path in Path(place).glob(f"{PREFIX}{pid}-*")]


def run_python(code: str, *prefix: str, **environment: str) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-c", code]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def answer_of(process: subprocess.Popen[str]) -> list[str]:
    """The words that it printed, one line each."""
    out, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaint
    return out.strip().splitlines()


IMPORTS = f"""
from dataclasses import replace
from pathlib import Path
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
CASES = Path({str(CASES)!r})
RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT, WRONG = (Kernel.from_file(CASES / f"{{name}}.py") for name in ("right_relu", "wrong_value"))
"""

# ---- the supervisor dies -------------------------------------------------------------------------------------------

LASTING = """
import os, signal, time
open("up", "w").close()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(300)
time.sleep(300)
"""


@pytest.mark.parametrize("killed", ["supervisor", "supervisor and zygote"])
def test_supervisor_killed_leaves_no_process_and_no_folder(killed: str) -> None:
    code = f"{IMPORTS}\nwith Verifier(backend='emulated') as verifier:\n"
    code += f"    verifier.verify(RELU, replace(RIGHT, source={LASTING!r} + RIGHT.source))\n"
    supervisor = run_python(code)
    try:
        wait_until(lambda: len(descendants(supervisor.pid)) >= 9, "the daemons run")
        below = descendants(supervisor.pid)
    finally:
        supervisor.kill()
    if killed == "supervisor and zygote":
        os.kill(below[0], signal.SIGKILL)
    supervisor.wait()
    wait_until(lambda: not any(map(lives, below)), "all processes have ended")
    if killed == "supervisor":
        wait_until(lambda: not roots(supervisor.pid), "the zygote has removed its supervisor's folders")
    else:
        sweep()  # as every verifier does when it starts, also those of tests beside this one
        assert not roots(supervisor.pid)


# ---- our own processes are killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [RIGHT, WRONG], ids=["right", "wrong"])
def test_oracle_killed_between_jobs_costs_no_verdict(verifier: Verifier, kernel: Kernel) -> None:
    expected = verifier.verify(RELU, kernel).outcome
    oracles = idle_children(verifier)
    assert oracles
    for pid in oracles:
        os.kill(pid, signal.SIGKILL)
    assert verifier.verify(RELU, kernel).outcome == expected


def test_oracle_killed_under_way_has_the_job_run_again(verifier: Verifier) -> None:
    verifier.verify(RELU, RIGHT)
    oracles = idle_children(verifier)
    killers = [threading.Timer(0.7, os.kill, (pid, signal.SIGKILL)) for pid in oracles]
    for killer in killers:
        killer.start()
    verdict = verifier.verify(RELU, with_code("import time\ntime.sleep(1.5)"))
    assert killers and verdict.correct and not any(map(lives, oracles))


@pytest.mark.parametrize("request_under_way", [True, False])
def test_oracle_killed_with_a_job_called_off_is_lost_to_the_others_only(
    request_under_way: bool, zygotes: Callable[[], Zygote]
) -> None:
    zygote = zygotes()
    oracles = ReferencePool("emulated", "", 1)
    settings = ReferenceSettings.of(RELU, Options(), True, 1, lends=True, shares=True)
    called_off, going_on = Cancellation(single=True), Cancellation(single=True)
    try:
        with oracles.open(Spawner(zygote, called_off), settings, 4096, ()) as session:
            session.open()
            with oracles.open(Spawner(zygote, going_on), settings, 4096, ()) as other:
                called_off.watch(other._process.child)  # as it is from the start of a request to its end
                called_off.cancel()
                if request_under_way:
                    time.sleep(0.5)  # until its warden has seen the kill: the request may be answered before
                    with pytest.raises(ReferenceLost):
                        other.open()
    finally:
        oracles.close()


def test_oracle_killed_every_time_says_nothing_about_the_kernel(verifier: Verifier) -> None:
    killed = RELU.source.replace("def forward(self, x", "def forward(self, x_", 1)
    killed = "import os\n" + re.sub(
        r"(def forward\(self, )x_([^\n]*\n)", r"\1x\2        os.kill(os.getpid(), 9)\n", killed
    )
    verdict = verifier.verify(replace(RELU, source=killed), RIGHT)
    assert (verdict.outcome, verdict.stage) == ("infra_error", "infra") and not verdict.about_kernel
    assert "reference" in verdict.message and verifier.verify(RELU, RIGHT).correct


def test_warden_killed_takes_its_child_along_and_the_job_is_run_again(verifier: Verifier) -> None:
    verifier.verify(RELU, RIGHT)
    zygote = verifier._get_zygote().pid
    before = set(descendants(zygote))
    doomed: list[int] = []

    def kill_warden() -> None:
        wait_until(lambda: len(set(descendants(zygote)) - before) >= 3, "the candidate runs")
        doomed.extend(set(descendants(zygote)) - before)
        os.kill(min(doomed), signal.SIGKILL)  # the first of the three

    killer = threading.Thread(target=kill_warden)
    killer.start()
    verdict = verifier.verify(RELU, with_code("import time\ntime.sleep(1.5)"))
    killer.join()
    assert verdict.correct
    wait_until(lambda: not any(map(lives, doomed)), "what it guarded is gone")


def test_compiler_killed_by_somebody_else_is_run_again(verifier: Verifier) -> None:
    zygote = verifier._get_zygote().pid
    killed: list[int] = []

    def kill_compiler() -> None:
        wait_until(lambda: killed or killed.extend(named(zygote, "cc1plus")), "a compiler runs")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_compiler)
    killer.start()
    verdict = verifier.verify(RELU, new())
    killer.join()
    assert killed and verdict.correct, verdict.message


FRAGILE = """
import os
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        if not ((x >= 0) & (x <= 1)).all():
            os.abort()
        return torch.relu(x)

def get_inputs():
    return [torch.rand(16, 100)]

def get_init_inputs():
    return []
"""


def test_reference_that_ends_its_process_on_values_it_never_draws_meets_no_others(verifier: Verifier) -> None:
    """As a failed device assert ends what a process can do on a GPU; other jobs of that process are run again."""
    fragile = Problem(FRAGILE, "fragile")
    pairs = [(fragile, RIGHT), (RELU, RIGHT), (fragile, WRONG), (RELU, WRONG), (fragile, with_code("# another"))]
    verdicts = [verdict for _, verdict in verifier.verify_many(pairs, workers=2, ordered=True)]
    assert [one.outcome for one in verdicts] == ["correct", "correct", "wrong", "wrong", "correct"]
    assert "given_inputs_only" in verdicts[0].labels and "given_inputs_only" not in verdicts[1].labels


@pytest.mark.gpu
def test_failed_device_assert_of_a_reference_costs_no_verdict() -> None:
    """On a GPU, PyTorch asserts that probabilities are probabilities, and the error stays with the process."""
    source = FRAGILE.replace("if not ((x >= 0) & (x <= 1)).all():\n            os.abort()", "LOSS")
    source = source.replace("LOSS", "nn.functional.binary_cross_entropy(x, x)")
    fragile = Problem(source, "fragile")
    pairs = [(fragile, RIGHT), (RELU, RIGHT), (fragile, WRONG)] + [(RELU, with_code(f"# {n}")) for n in range(12)]
    with Verifier(backend="cuda", options=Options(timing=False)) as cuda:
        outcomes = [verdict.outcome for _, verdict in cuda.verify_many(pairs, workers=8, ordered=True)]
    assert outcomes == ["correct", "correct", "wrong"] + ["correct"] * 12


def idle_children(verifier: Verifier) -> list[int]:
    """The innermost processes below the zygote; without a job, those are oracles."""
    zygote = verifier._get_zygote().pid
    found: list[int] = []

    def settled() -> bool:
        before = found[:]
        found[:] = [pid for pid in descendants(zygote) if not descendants(pid)]
        time.sleep(0.1)
        return found == before

    wait_until(settled, "the last job's processes are gone")
    return found


def named(pid: int, name: str) -> list[int]:
    found = []
    for below in descendants(pid):
        try:
            if Path(f"/proc/{below}/comm").read_text().strip() == name:
                found.append(below)
        except OSError:
            continue
    return found


# ---- what a candidate leaves where its outputs should be -----------------------------------------------------------


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param('os.symlink("/etc/passwd", path)', id="a link to a file"),
        pytest.param('os.symlink("/dev/zero", path)', id="a link to a device"),
        pytest.param("os.symlink(path, path)", id="a link to itself"),
        pytest.param("os.mkfifo(path)", id="a pipe"),
        pytest.param("socket.socket(socket.AF_UNIX).bind(path)", id="a socket"),
        pytest.param("os.mkdir(path)", id="a folder"),
        pytest.param("os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 4 << 30)", id="a sparse giant"),
        pytest.param("os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0))", id="an empty file"),
    ],
)
def test_outputs_that_are_no_plain_files_are_not_followed_and_not_correct(verifier: Verifier, leave: str) -> None:
    code = f"""
import os, socket
import dice.verify.tensors.transport as wire
def write(value, folder, name):
    for ending in (".bin", ".json"):
        path = str(folder) + "/" + name + ending
        {leave}
wire.write = write
"""
    verdict = verifier.verify(RELU, with_code(code))
    said = f"{verdict.message} {verdict.errors}"
    assert verdict.outcome in ("wrong", "runtime_error") and verdict.about_kernel, said
    assert "root:" not in said and len(said) < 4000
    assert verifier.verify(RELU, RIGHT).correct


# ---- compilers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "/proc/1/environ"])
def test_include_of_a_file_of_the_machine_leaks_nothing_into_the_verdict(verifier: Verifier, path: str) -> None:
    verdict = verifier.verify(RELU, new(cuda=f'#include "{path}"'))
    assert verdict.outcome in ("compile_error", "correct")  # to a compiler, some files of /proc are empty
    said = json.dumps(verdict.to_json())
    assert "root:" not in said and "PATH=" not in said and str(Path.home()) not in verdict.message


def test_compiler_log_flood_is_cut(verifier: Verifier) -> None:
    flood = "undeclared_0 x;\n" + "\n".join(f"#warning {number} {'x' * 400}" for number in range(500))
    verdict = verifier.verify(RELU, new(cuda=flood))
    assert verdict.outcome == "compile_error" and "undeclared_0" in verdict.message
    assert len(json.dumps(verdict.to_json())) < 60_000


# ---- the cache of builds -------------------------------------------------------------------------------------------

CPP, CUDA = "torch::Tensor same(torch::Tensor x);", "torch::Tensor same(torch::Tensor x) { return x; }\n"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink], ids=["truncated", "changed", "missing"])
@pytest.mark.parametrize("name", ["extension.so", "sum"])
def test_damaged_cache_entry_is_noticed_and_built_anew(
    verifier: Verifier, damage: Callable[[Path], None], name: str
) -> None:
    service: BuildService = verifier._builds
    sources = Sources((CPP,), (f"{CUDA}// {uuid.uuid4()}",), (("same", "same"),))
    first = service.build(verifier._get_zygote(), sources, "ext", 60).built
    assert first is not None and not first.cached
    sound = first.path.read_bytes()
    damage(first.path.with_name(name))
    again = service.build(verifier._get_zygote(), sources, "ext", 60).built
    assert again is not None and not again.cached and again.path == first.path
    assert len(again.path.read_bytes()) == len(sound)
    known = service.build(verifier._get_zygote(), sources, "ext", 60).built
    assert known is not None and known.cached


def own_namespace(shell: str) -> tuple[str, ...]:
    """A prefix that runs a command after `shell` in a mount namespace of its own."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host lets nobody mount a small disk to fill")
    return ("unshare", "-rm", "sh", "-ec", f'{shell}; exec "$@"', "sh")


def test_cache_on_a_full_disk_is_no_verdict_on_the_kernel(verifier: Verifier, tmp_path: Path) -> None:
    verifier.verify(RELU, RIGHT)  # so that there is something to borrow
    cache = borrowed_cache(tmp_path)
    prefix = own_namespace(f"mount -t tmpfs -o size=64k none '{cache}/extensions'")
    code = f"{IMPORTS}\nwith Verifier(backend='emulated') as verifier:\n    verdict = verifier.verify(RELU, RIGHT)\n"
    outcome, message = answer_of(
        run_python(f"{code}print(verdict.outcome, verdict.message, sep='\\n')", *prefix, DICE_CACHE=str(cache))
    )
    assert outcome == "infra_error" and "no space left" in message.lower(), message


def test_cache_that_is_read_only_is_refused_in_a_sentence(tmp_path: Path) -> None:
    prefix = own_namespace(f"mount -t tmpfs -o ro none '{tmp_path}'")
    code = f"{IMPORTS}\ntry:\n    Verifier(backend='emulated')\n"
    code += "except Exception as error:\n    print(type(error).__name__, error, sep='\\n')\n"
    kind, message = answer_of(run_python(code, *prefix, DICE_CACHE=str(tmp_path)))
    assert kind == "BackendUnavailable"
    assert message == f"Builds cannot be kept in {tmp_path}: Read-only file system (set DICE_CACHE elsewhere)."


def test_cache_below_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendUnavailable, match="Builds cannot be kept in .*: Not a directory"):
        Verifier(backend="emulated", options=Options(cache_dir=tmp_path / "file" / "cache"))


def test_full_disk_for_jobs_is_no_verdict_and_passes_when_there_is_room(verifier: Verifier, tmp_path: Path) -> None:
    verifier.verify(RELU, RIGHT)
    prefix = own_namespace(f"for place in /dev/shm '{tmp_path}'; do mount -t tmpfs -o size=1m none $place; done")
    code = f"""{IMPORTS}
fill = Path({str(tmp_path)!r}) / "fill"
with Verifier(backend="emulated") as verifier:
    fill.write_bytes(bytes((1 << 20) - 4096 * 8))
    before = verifier.verify(RELU, RIGHT)
    fill.unlink()
    print(before.outcome, before.message, verifier.verify(RELU, RIGHT).outcome, sep="\\n")
"""
    first, message, second = answer_of(run_python(code, *prefix, TMPDIR=str(tmp_path)))
    assert (first, second) == ("infra_error", "correct") and "space" in message, message


@pytest.mark.slow  # test_build.py has two that build the same
def test_two_supervisors_share_one_cache_at_once(verifier: Verifier, tmp_path: Path) -> None:
    verifier.verify(RELU, RIGHT)
    kernels = [new(RIGHT), new(WRONG), new(RIGHT)]
    for number, kernel in enumerate(kernels):
        (tmp_path / f"{number}.py").write_text(kernel.source)
    code = f"""{IMPORTS}
kernels = [Kernel.from_file(path) for path in sorted(Path({str(tmp_path)!r}).glob("*.py"))]
with Verifier(backend="emulated", cache=Path({str(tmp_path)!r}) / "verdicts") as verifier:
    for _, verdict in verifier.verify_many([(RELU, kernel) for kernel in kernels], workers=1, ordered=True):
        print(verdict.outcome)
"""
    both = [run_python(code), run_python(code)]
    assert [answer_of(process) for process in both] == [["correct", "wrong", "correct"]] * 2
    built = verifier.verify(RELU, kernels[0])
    assert built.correct and built.seconds["compile"] == 0  # as they left it
