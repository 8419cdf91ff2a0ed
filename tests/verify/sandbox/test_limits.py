"""What a child may take, however it takes it, and what of it is nobody's fault but the machine's."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.ipc.messages import ReadText
from dice.verify.reference.trial import ReferenceFailed, blame
from dice.verify.sandbox import cgroups, usage
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import Child, ChildEnded, DeadlineExceeded, Zygote, wait_for
from dice.verify.sandbox.roles import CANDIDATE, GUARANTEES
from dice.verify.sandbox.scratch import MAX_FILES, Scratch, remove, stored_kb
from dice.verify.sandbox.visible_paths import candidate_view
from dice.verify.supervisor.dialogue import MOST_BUILDS
from dice.verify.supervisor.guarantees import Offend
from dice.verify.supervisor.job import Job
from dice.verify.tensors import transport
from tests.conftest import CASES, PATIENCE_S

RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT, WRONG = (Kernel.from_file(CASES / f"{name}.py") for name in ("right_relu", "wrong_value"))


def with_code(code: str, kernel: Kernel = RIGHT) -> Kernel:
    return replace(kernel, source=f"{code}\n{kernel.source}")


# ---- removal and counting of files ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tmp-made"
    made.mkdir()
    return made


def dig(folder: Path, depth: int, mode: int = 0o755) -> None:
    """Folders in folders, each with a file, deeper than any path may be long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.fchmod(here, mode)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.parametrize("depth, mode", [(1500, 0o755), (5000, 0o755), (1500, 0)])
def test_a_folder_of_any_depth_is_removed(folder: Path, depth: int, mode: int) -> None:
    dig(folder, depth, mode)
    remove(folder, "tmp-")
    assert not folder.exists()


def test_a_folder_of_strange_entries_is_removed_and_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "kept").touch()
    names = [b"x" * 255, b"new\nline", b"\xff\xfe", b"dice-moved-0", b"dice-moved-1"]
    for name in names:
        inner = os.path.join(os.fsencode(folder), name)
        os.makedirs(inner + b"/inner/deeper")
        os.mkfifo(inner + b"/pipe")
        os.symlink(tmp_path / "precious", inner + b"/link")
        os.chmod(inner + b"/inner", 0)
        os.chmod(inner, 0)
    os.symlink(tmp_path / "precious", folder / "link")
    remove(folder, "tmp-")
    assert not folder.exists() and (tmp_path / "precious" / "kept").exists()


def test_what_is_too_deep_or_too_much_to_count_counts_as_too_much(folder: Path) -> None:
    assert stored_kb([str(folder)]) == 0
    (folder / "file").write_bytes(b"x" * (1 << 20))
    assert 1024 <= stored_kb([str(folder)]) < 2048
    dig(folder, 5000)
    assert stored_kb([str(folder)]) > 1 << 40
    remove(folder, "tmp-")  # nothing else here could


# ---- what processes take, by /proc ---------------------------------------------------------------------------------


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Starts a process that does something, and then waits to be killed."""
    started = []

    def start(act: Callable[[], object]) -> int:
        done, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _kept = act()
            os.write(told, b".")
            time.sleep(300)
        started.append(pid)
        os.read(done, 1)
        return pid

    yield start
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def left_by_another() -> mmap.mmap:
    """Shared memory that a process filled which is gone: it is in nobody's resident set."""
    shared = mmap.mmap(-1, 64 << 20)
    if os.fork() == 0:
        shared.write(b"x" * len(shared))
        os._exit(0)
    os.wait()
    return shared


def never_mapped() -> int:
    descriptor = os.memfd_create("memory")
    os.write(descriptor, b"x" * (64 << 20))
    return descriptor


@pytest.mark.parametrize("take", [left_by_another, never_mapped])
def test_memory_that_no_process_has_touched_is_counted(
    take: Callable[[], object], forked: Callable[[Callable[[], object]], int]
) -> None:
    meter = usage.Meter(os.getpid(), usage.memory_kb(os.getpid()), memory_mb=32)
    before = meter.read().memory_kb
    forked(take)
    most_kb = max(meter.read().memory_kb for _ in range(usage.LOOK_EVERY))  # other programs may free as much meanwhile
    assert most_kb >= before + (60 << 10)


def test_shared_memory_is_counted_while_other_programs_free_theirs(
    forked: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed_kb = iter(range(10**9, 0, -(1 << 20)))
    monkeypatch.setattr(usage, "_system_shared_kb", lambda: next(freed_kb))
    meter = usage.Meter(os.getpid(), usage.memory_kb(os.getpid()), memory_mb=32)
    forked(left_by_another)
    assert max(meter.read().memory_kb for _ in range(usage.LOOK_EVERY)) >= 60 << 10


def test_threads_and_descriptors_are_counted(forked: Callable[[Callable[[], object]], int]) -> None:
    def take() -> list[object]:
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
        return [os.dup(0) for _ in range(50)]

    meter = usage.Meter(os.getpid(), 0, memory_mb=1 << 20)
    before = meter.read()
    forked(take)
    after = meter.read()
    assert after.processes == before.processes + 1 and after.tasks >= before.tasks + 21
    assert after.descriptors >= before.descriptors + 50


# ---- and by control groups -----------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[cgroups.Group]:
    parent = cgroups.open_parent()
    if parent is None:
        pytest.skip("this user may make no control group here")
    made = cgroups.Group(parent, 256, 50)
    yield made
    made.kill()
    made.remove()
    parent.remove()
    assert not any(path.exists() for path in (*made.folders, *parent.folders))


def put_in(group: cgroups.Group, act: Callable[[], object]) -> int:
    """A process in the group that does something, and then waits."""
    pid = group.fork()
    if pid == 0:
        _kept = act()
        time.sleep(300)
        os._exit(0)
    return pid


@pytest.mark.parametrize("take", [left_by_another, never_mapped])
def test_a_group_counts_what_belongs_to_nobody(group: cgroups.Group, take: Callable[[], object]) -> None:
    pid = put_in(group, take)
    deadline = time.monotonic() + PATIENCE_S
    while group.memory_bytes() < 60 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group.memory_bytes() >= 60 << 20 and not group.was_short()
    group.kill()
    os.waitpid(pid, 0)


def test_a_group_ends_what_grows_faster_than_anybody_looks(group: cgroups.Group) -> None:
    pid = put_in(group, lambda: b"x" * (600 << 20))
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL and group.was_short() == "memory"


# ---- sends and waits -----------------------------------------------------------------------------------------------


def test_who_does_not_read_what_it_is_sent_is_waited_for_no_longer_than_asked() -> None:
    (channel, deaf), (control, _warden), (log, _) = socket.socketpair(), socket.socketpair(), os.pipe()
    child = Child(CANDIDATE, channel, control, log)
    with pytest.raises(DeadlineExceeded):
        for _ in range(100):
            child.send(ReadText("x" * (1 << 20), 1.0), timeout_s=0.2)
    deaf.close()


UNREAD = """
import os, socket, stat
for number in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            link = socket.socket(fileno=number)
            break
    except OSError:
        pass
sources = {"cpp": [], "cuda": ["__nonsense__ " * 2000], "functions": [], "cflags": [], "cuda_cflags": []}
import json
line = json.dumps({"event": "build", "request": 1, "name": "x", "sources": sources}).encode() + b"\\n"
for _ in range(%d):
    link.sendall(line)
import time
time.sleep(300)
"""


@pytest.mark.parametrize("requests", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_answers_that_are_never_read_take_no_longer_than_the_kernel_may_run(emulated: Verifier, requests: int) -> None:
    started = time.monotonic()
    options = Options(run_timeout_s=5, compile_timeout_s=20)
    verdict = emulated.verify(RELU, with_code(UNREAD % requests), options)
    assert verdict.outcome in ("timeout", "runtime_error") and time.monotonic() - started < PATIENCE_S


def test_a_kernel_may_ask_for_so_many_builds_and_no_more(emulated: Verifier) -> None:
    again = RIGHT.source[RIGHT.source.index("load_inline(") :].split("\n\n")[0]
    many = f"for number in range({MOST_BUILDS + 5}):\n    {again}\n"
    verdict = emulated.verify(
        RELU, replace(RIGHT, source=RIGHT.source.replace("class ModelNew", f"{many}\n\nclass ModelNew"))
    )
    assert (verdict.outcome, verdict.message) == ("runtime_error", f"it asked for over {MOST_BUILDS} builds.")


# ---- whose fault it is ---------------------------------------------------------------------------------------------


def test_an_exception_inside_a_job_is_the_verdict_of_that_job_alone(
    emulated: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Job.run

    def failing(job: Job, turns: object) -> Verdict:
        if job.assignment.kernel is broken:
            raise RecursionError("too deep")
        return run(job, turns)  # type: ignore[arg-type]

    broken = with_code("# breaks us")
    monkeypatch.setattr(Job, "run", failing)
    found = dict(emulated.verify_many([(RELU, RIGHT), (RELU, broken), (RELU, WRONG)], workers=2))
    assert [found[number].outcome for number in range(3)] == ["correct", "infra_error", "wrong"]
    assert "RecursionError: too deep (test_limits.py, line " in found[1].message and not found[1].about_kernel


def test_a_right_kernel_whose_process_somebody_killed_is_run_again(emulated: Verifier, tmp_path: Path) -> None:
    """As the system does when it is short of memory; a kernel that kills itself every time, is at fault."""
    killed: list[int] = []
    mark = f"5.{os.getpid()}"  # seconds that it sleeps, in the first run; the second has another process to look for

    def kill_once() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not killed and time.monotonic() < deadline:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                if _read(path) == f"sleep\0{mark}\0".encode():
                    parent = int(_read(path.with_name("stat")).rpartition(b") ")[2].split()[1])
                    os.kill(parent, signal.SIGKILL)
                    killed.append(parent)
            time.sleep(0.01)

    code = f"import subprocess\nsubprocess.run(['sleep', '{mark}'])"
    killer = threading.Thread(target=kill_once, daemon=True)
    killer.start()
    verdict = emulated.verify(RELU, with_code(code))
    killer.join(PATIENCE_S)
    assert killed and verdict.correct
    verdict = emulated.verify(RELU, with_code("import os\nos.kill(os.getpid(), 9)"))
    assert verdict.outcome == "runtime_error" and "SIGKILL" in verdict.message and verdict.about_kernel


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_full_disk_is_not_the_problem_that_met_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        with blame("the file"):
            raise OSError(number, os.strerror(number))

    monkeypatch.chdir(tmp_path)
    for number in (errno.ENOSPC, errno.EMFILE, errno.ENOENT):  # there is room: it says so by itself
        with pytest.raises(ReferenceFailed):
            fail(number)
    monkeypatch.setattr("dice.verify.reference.trial.FULL_BYTES", 1 << 60)
    with pytest.raises(OSError):
        fail(errno.ENOSPC)
    with pytest.raises(OSError):
        fail(errno.ENFILE)


def test_types_without_values_do_not_cross_a_process_border() -> None:
    assert {"float32", "bfloat16", "float8_e4m3fn", "complex64", "bool", "uint64"} <= set(transport._DTYPES)
    assert not {"float4_e2m1fn_x2", "int3", "uint7", "bits8", "quint8"} & set(transport._DTYPES)


@pytest.mark.parametrize("path", ["/etc/hostname", "own"])
def test_a_problem_sees_no_more_of_the_machine_than_a_kernel(emulated: Verifier, tmp_path: Path, path: str) -> None:
    own = tmp_path / "notes"
    own.write_text("secret")
    source = f"{RELU.source}\nopen({str(own) if path == 'own' else path!r}).read()\n"
    verdict = emulated.verify(replace(RELU, source=source), RIGHT)
    assert verdict.outcome == "unsupported" and ("FileNotFound" in verdict.message or "Permission" in verdict.message)


# ---- what a jail allows --------------------------------------------------------------------------------------------

OFFENCES = {
    "hide": "ctypes.CDLL(None, use_errno=True).prctl(4, 0, 0, 0, 0)",
    "outlive": "ctypes.CDLL(None, use_errno=True).prctl(1, 0, 0, 0, 0)",
    "memfd": "os.memfd_create('x')",
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_a_candidate_can_neither_hide_nor_outlive_us_nor_make_memory_without_a_name(
    emulated: Verifier, offence: str
) -> None:
    said = f"try:\n    said = {OFFENCES[offence]}\nexcept OSError as error:\n    said = error\n"
    verdict = emulated.verify(RELU, with_code(f"import ctypes, os\n{said}raise RuntimeError(f'said {{said}}')"))
    if "seccomp" not in verdict.sandbox:
        pytest.skip("this kernel filters no system calls")
    assert "said -1" in verdict.message or "Operation not permitted" in verdict.message


def test_files_without_a_name_do_not_get_past_the_limit(zygotes: Callable[[], Zygote]) -> None:
    def outcome(limits: Limits) -> str:
        with Scratch() as scratch:
            own = replace(limits, scratch=str(scratch.root / "outputs"))
            with zygote.spawn(GUARANTEES, own) as child, pytest.raises(ChildEnded) as ended:
                child.send(Offend("disk limit"))
                wait_for(child, (), time.monotonic() + PATIENCE_S)
        return ended.value.ended.reason or str(ended.value.ended.code)

    zygote = zygotes()
    limits = Limits(512, "", visible=candidate_view(Options().cache_dir), tmp_mb=16, files_mb=16, own_files=True)
    assert outcome(limits) in ("3", "files")  # refused by the file system, or ended
    assert outcome(replace(limits, own_files=False)) in ("files", "memory")


def test_what_a_candidate_writes_is_on_a_file_system_of_its_own(emulated: Verifier) -> None:
    many = f"for number in range({MAX_FILES + 10}):\n    open(f'f{{number}}', 'w').close()"
    verdict = emulated.verify(RELU, with_code(many))
    assert verdict.outcome in ("load_error", "runtime_error")
    assert "No space left on device" in verdict.message or "MiB of files" in verdict.message
