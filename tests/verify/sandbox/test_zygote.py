"""The jail around a child, tested with real children: what it may not do, and that nothing of it outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dice.verify.sandbox import process, usage, warden
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import LOG_BYTES, Child, ChildEnded, DeadlineExceeded, MachineryError, Zygote, wait_for
from dice.verify.sandbox.roles import CANDIDATE, REFERENCE, Role
from dice.verify.sandbox.scratch import Scratch
from tests.conftest import PATIENCE_S

LIMITS = Limits(memory_mb=1024, scratch="")


def jail(child: Callable[[], None], limits: Limits, namespaces: bool = True) -> tuple[str, dict[str, object]]:
    """Run `child` under a warden of its own; return the tier and the report of its end."""
    ours, theirs = socket.socketpair()
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        if not namespaces:
            warden.enter_namespaces = lambda: False
        warden.run_warden(theirs, limits, child, own)
    theirs.close()
    with ours.makefile("rb") as reports:
        lines = [json.loads(line) for line in reports]
    os.waitpid(pid, 0)
    return lines[0]["sandbox"], lines[-1]


@pytest.fixture
def limits(tmp_path: Path) -> Limits:
    return replace(LIMITS, scratch=str(tmp_path))


def test_forks_share_huge_pages(zygote: Zygote, limits: Limits) -> None:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or tuple(map(int, release.groups())) < (6, 1):
        pytest.skip("this kernel puts no memory into huge pages when it is asked to")
    with zygote.spawn(REFERENCE, limits):  # it is ready
        said = Path(f"/proc/{zygote.pid}/smaps_rollup").read_text()
    huge = next(int(line.split()[1]) for line in said.splitlines() if line.startswith("AnonHugePages"))
    assert huge > 50 << 10, "in KiB, of some 190 MiB that a process with PyTorch has written to"


def test_what_is_shown_inside_a_private_folder_stays_read_only(tmp_path: Path) -> None:
    """As when Python, or this package, is installed below /tmp."""
    own, shown = tmp_path / "own", tmp_path / "shown"
    own.mkdir(), shown.mkdir()
    view = tuple(path for path in ("/usr", "/bin", "/lib", "/lib64") if os.path.exists(path))
    limits = replace(LIMITS, scratch=str(own), visible=(*view, str(shown)), tmp_mb=8)

    def child() -> None:
        (own / "file").write_text("mine")
        Path("/tmp/file").write_text("mine, and gone with me")
        try:
            (shown / "file").write_text("not mine")
        except OSError:
            os._exit(3)
        os._exit(4)

    tier, ended = jail(child, limits)
    if not tier.startswith("namespaces"):
        pytest.skip("this host gives no namespaces")
    assert ended == {"exit": 3, "reason": ""} and (own / "file").exists() and not (shown / "file").exists()


TIERS = pytest.mark.parametrize("namespaces", [True, False])


@TIERS
def test_exit_code_is_reported(limits: Limits, namespaces: bool) -> None:
    assert jail(lambda: os._exit(7), limits, namespaces)[1] == {"exit": 7, "reason": ""}


@TIERS
def test_signal_is_reported(limits: Limits, namespaces: bool) -> None:
    child = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    assert jail(child, limits, namespaces)[1] == {"signal": 15, "reason": ""}


def test_too_many_processes_end_it(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "MAX_PROCESSES", 20)  # each is a fork of this large process

    def bomb() -> None:
        for _ in range(40):
            if os.fork() == 0:
                time.sleep(60)
        time.sleep(60)

    assert jail(bomb, limits)[1]["reason"] == "processes"


def test_memory_of_descendants_counts(limits: Limits) -> None:
    def hog() -> None:
        if os.fork() == 0:
            _kept = [b"x" * (32 << 20) for _ in range(64)]
        time.sleep(60)

    assert jail(hog, limits)[1]["reason"] == "memory"


@TIERS
def test_a_daemon_dies_with_the_child(limits: Limits, namespaces: bool, tmp_path: Path) -> None:
    mark = f"daemon-{os.getpid()}-{namespaces}"

    def leave_daemon() -> None:
        code = f"import time, os; os.setsid(); open('{tmp_path}/up', 'w'); time.sleep(300)  # {mark}"
        subprocess.Popen([sys.executable, "-c", code])
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        os._exit(0)

    jail(leave_daemon, limits, namespaces)
    assert (tmp_path / "up").exists()
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(path)]
    assert not running


def test_environment_is_an_allowlist(limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")

    def look() -> None:
        (tmp_path / "environment").write_text(json.dumps(dict(os.environ)))
        os._exit(0)

    jail(look, limits)
    seen = json.loads((tmp_path / "environment").read_text())
    assert "HF_TOKEN" not in seen and seen["HOME"] == str(tmp_path) and seen["PATH"]


def test_namespaces_shut_the_network_the_processes_and_the_files(limits: Limits, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside"
    outside.mkdir(exist_ok=True)
    secret = subprocess.Popen(["sleep", "60"])

    def probe() -> None:
        found = {}
        for name, action in {
            "network": lambda: socket.create_connection(("127.0.0.1", port), timeout=2),
            "kill": lambda: os.kill(secret.pid, 9),
            "proc": lambda: os.stat(f"/proc/{secret.pid}/mem"),
            "write": lambda: (outside / "file").write_text("x"),
            "own": lambda: (tmp_path / "file").write_text("x"),
        }.items():
            try:
                action()
                found[name] = True
            except OSError:
                found[name] = False
        (tmp_path / "found").write_text(json.dumps(found))
        os._exit(0)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tier, _ = jail(probe, limits)
    alive = secret.poll() is None
    secret.kill()
    secret.wait()
    if not tier.startswith("namespaces"):
        pytest.skip("this kernel refuses namespaces")
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"network": False, "kill": False, "proc": False, "write": False, "own": True}
    assert alive


def test_capabilities_are_gone(limits: Limits, tmp_path: Path) -> None:
    def look() -> None:
        (tmp_path / "status").write_text(Path("/proc/self/status").read_text())
        os._exit(0)

    jail(look, limits)
    status = dict(line.split(":\t", 1) for line in (tmp_path / "status").read_text().splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"


@pytest.fixture
def zygote(zygotes: Callable[[], Zygote]) -> Zygote:
    return zygotes()


def spawn(zygote: Zygote, scratch: Scratch, role: Role):  # noqa: ANN201
    return zygote.spawn(role, Limits(memory_mb=1024, scratch=str(scratch.root / "outputs")))


def test_a_silent_child_meets_its_deadline(zygote: Zygote) -> None:
    with Scratch() as scratch, spawn(zygote, scratch, REFERENCE) as child, pytest.raises(DeadlineExceeded):
        wait_for(child, (), time.monotonic() + 0.3)


def test_a_child_that_ends_is_noticed(zygote: Zygote) -> None:
    with Scratch() as scratch, spawn(zygote, scratch, Role("none", "dice.verify.no_such_module")) as child:
        with pytest.raises(ChildEnded) as end:
            wait_for(child, (), time.monotonic() + PATIENCE_S)
        assert end.value.ended.code == 70
        assert b"no_such_module" in child.log


def test_flooded_channel_and_log_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_LINE_BYTES", 1 << 19)
    ours, theirs = socket.socketpair()
    control, other_control = socket.socketpair()
    read, write = os.pipe()
    child = Child(CANDIDATE, ours, control, read)
    with child:
        for _ in range(40):
            os.write(write, b"x" * 4096)
            child.pump(read)
        assert len(child.log) == LOG_BYTES
        theirs.setblocking(False)
        with pytest.raises(ChildEnded) as end:
            for _ in range(2 * process.MAX_LINE_BYTES // 4096):
                theirs.send(b"y" * 4096)
                with pytest.raises(DeadlineExceeded):
                    wait_for(child, (), time.monotonic() + 0.0005)
            wait_for(child, (), time.monotonic())
        assert end.value.ended.reason == "flood"
        other_control.close()  # as a warden's end does; leaving the child waits for it
    os.close(write)
    theirs.close()


def test_closing_the_supervisor_kills_its_children() -> None:
    zygote = Zygote()
    with Scratch() as scratch:
        child = spawn(zygote, scratch, REFERENCE)
        pid = zygote.pid
        below = _settled_descendants(pid)
        zygote.close()
        deadline = time.monotonic() + PATIENCE_S
        while any(Path(f"/proc/{one}").exists() for one in below) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(below) >= 3 and not any(Path(f"/proc/{one}").exists() for one in below)
        child.__exit__(None, None, None)


def test_a_dead_zygote_is_a_fault_of_ours() -> None:
    zygote = Zygote()
    with Scratch() as scratch:
        with spawn(zygote, scratch, REFERENCE) as child:
            os.kill(zygote.pid, 9)
            with pytest.raises(MachineryError):
                wait_for(child, (), time.monotonic() + PATIENCE_S)
        with pytest.raises(MachineryError, match="zygote"):
            for _ in range(100):
                spawn(zygote, scratch, REFERENCE).__exit__(None, None, None)
                time.sleep(0.01)
    zygote.close()


def test_a_warden_whose_parent_has_just_gone_starts_no_child(limits: Limits) -> None:
    """The zygote may be killed before its newest fork has run a line of its own."""
    ours, theirs = socket.socketpair()
    zygote = os.fork()
    if zygote == 0:
        zygote = os.getpid()
        if os.fork() == 0:
            ours.close()
            while os.getppid() == zygote:
                time.sleep(0.001)
            warden.run_warden(theirs, limits, lambda: time.sleep(PATIENCE_S), zygote)
        os._exit(0)
    theirs.close()
    os.waitpid(zygote, 0)
    ours.settimeout(PATIENCE_S)
    assert ours.recv(1 << 12) == b"", "nothing was started, and the warden is gone"


def _settled_descendants(pid: int) -> list[int]:
    """Descendants once the warden, the init and the child are all there."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := usage.descendants(pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_zygote_that_still_starts_is_not_waited_for() -> None:
    """Its imports take seconds, and a command that has failed by then would end only after them."""
    zygote = Zygote()
    zygote.close()
    assert zygote._process.returncode == -signal.SIGKILL


def test_where_a_child_writes_is_told_before_the_child_starts() -> None:
    """Who hears a child first looks for what it wrote in a folder that nobody writes to."""
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []
    theirs.settimeout(0.0)
    with ours, theirs, open(os.devnull) as folder:

        def report(folders: Sequence[int]) -> None:
            assert len(folders) == 1
            os.close(folders[0])
            with contextlib.suppress(BlockingIOError):
                heard.append(theirs.recv(8))

        socket.send_fds(theirs, [b"."], [folder.fileno()])
        warden.let_in(ours, report)
        assert heard == [] and theirs.recv(8) == b"go"
