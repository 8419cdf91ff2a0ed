"""One server process for all tests that only ask it, with the shipped model; and how to start more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sse import read

from dice.problem import Problem
from dice.prompts import compact
from tests.conftest import PATIENCE_S, ROOT, skip_without

skip_without("fastapi", "the server needs fastapi")
skip_without("openai", "the server is asked by OpenAI's client")

UNSURE = "__global__ void "  # after which the shipped model, at a temperature of 1, may write anything


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Running:
    """A server process. Whoever starts one ends it."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"log-{self.port}-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-m", "dice", "serve", "--port", str(self.port), *flags]
        environment = {name: value for name, value in os.environ.items() if name != "DICE_API_KEY"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/ready", timeout=10).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError("the server never became ready")

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text.splitlines():
            if line.split(" ")[0] == name:
                return float(line.split(" ")[1])
        raise AssertionError(f"there is no metric {name}")

    def wait_idle(self) -> None:
        """Until no text is open and every page and slot is free again."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            pages = self.metric("dice_cache_pages_free") == self.metric("dice_cache_pages")
            if pages and not self.metric("dice_texts_open") and not self.metric("dice_slots_used"):
                return
            time.sleep(0.05)
        raise AssertionError("something is still held")

    def end(self) -> None:
        """By a SIGTERM in the middle of a stream, which is written to its end."""
        told: list[Any] = []
        begun = threading.Event()
        body = {"prompt": UNSURE, "max_tokens": 60, "stream": True, "logprobs": 0}

        def follow() -> None:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
                for event in read(response):
                    told.append(event)
                    begun.set()

        following = threading.Thread(target=follow)
        following.start()
        assert begun.wait(PATIENCE_S)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        following.join(PATIENCE_S)
        assert told[-1] == ("", "[DONE]") and told[-2][1]["choices"][0]["finish_reason"] in ("stop", "length")
        assert "raceback" not in self.log.read_text()


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and those that they did."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("serve"), "--slots", "8")
    yield running
    running.end()


@pytest.fixture(scope="session")
def prompt() -> str:
    return compact(Problem.from_file(ROOT / "examples" / "softmax.py"))


@pytest.fixture(scope="session")
def messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]
