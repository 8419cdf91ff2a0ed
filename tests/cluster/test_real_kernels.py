"""Real kernels on the nodes of a cluster: the same verdicts as on one machine, also from the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import RayNodes, at_work

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import BackendUnavailable, Options, Verifier
from tests.cluster.conftest import ray_nodes
from tests.conftest import CASES, PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cluster")  # they share the nodes
OPTIONS = Options(seed=7, trials=2, run_timeout_s=60, compile_timeout_s=PATIENCE_S, timing=False)
RELU = CASES / "problems" / "relu.py"
RIGHT, WRONG = CASES / "right_relu.py", CASES / "wrong_value.py"
POISONOUS = ("crash", "forged_exit", "sys_exit")
WHERE_AND_WHEN = {"host", "seconds"}  # what may differ between two verifications of a pair


def pairs(count: int) -> list[tuple[Problem, Kernel]]:
    """Different texts, in turn of kernels that are right, wrong, broken and deceptive."""
    problem = Problem.from_file(RELU)
    names = ("right_relu", "wrong_value", "compile_error", "deceptive_torch_only", "wrong_shape")
    kernels = [Kernel.from_file(CASES / f"{name}.py") for name in names]
    return [
        (problem, Kernel(f"{kernels[number % len(kernels)].source}\n# {number}\n", f"k{number}"))
        for number in range(count)
    ]


def said(verdict: Verdict) -> dict[str, object]:
    return {name: value for name, value in verdict.to_json().items() if name not in WHERE_AND_WHEN}


@pytest.fixture(scope="module")
def alone() -> Iterator[Verifier]:
    try:
        verifier = Verifier(backend="emulated", options=OPTIONS)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with verifier:
        yield verifier


@pytest.mark.slow  # kernels are built and run twice; two of them always are on a cluster, from the command line
@pytest.mark.parametrize("count", [20, 1000])
def test_verdicts_are_those_of_one_machine(cluster: RayNodes, alone: Verifier, count: int) -> None:
    from dice.cluster.verifier import ClusterVerifier

    asked = pairs(count)
    expected = {index: said(verdict) for index, verdict in alone.verify_many(asked)}
    with ClusterVerifier(cluster.address, backend="emulated", options=OPTIONS) as hosts:
        found = {index: said(verdict) for index, verdict in hosts.verify_many(asked)}
        faults = hosts.find_faults([asked[0][0], Problem.from_file(CASES / "problems" / "broken.py", check=False)])
    assert found == expected
    assert {verdict["outcome"] for verdict in found.values()} == {"correct", "wrong", "compile_error", "deceptive"}
    assert [fault and fault.own for fault in faults] == [None, True]


@pytest.mark.slow  # sixty kernels are built and run, and hosts killed over them
def test_hosts_that_are_killed_change_no_verdict(alone: Verifier) -> None:
    """Also of kernels that end the processes they run in, which must never be taken for what killed a host."""
    from dice.cluster.verifier import ClusterVerifier

    names = ("right_relu", "wrong_value", "deceptive_torch_only", *POISONOUS)
    kernels = [Kernel.from_file(CASES / f"{name}.py") for name in names]
    problem = Problem.from_file(RELU)
    asked = [(problem, Kernel(f"{kernels[number % len(kernels)].source}\n# killed {number}\n")) for number in range(60)]
    expected = {index: said(verdict) for index, verdict in alone.verify_many(asked)}
    draw, kills = random.Random(5), {5, 20, 40}
    found: dict[int, dict[str, object]] = {}
    with (
        ray_nodes(3) as nodes,
        ClusterVerifier(nodes.address, backend="emulated", options=OPTIONS) as hosts,
    ):
        for index, verdict in hosts.verify_many(asked):
            assert index not in found
            found[index] = said(verdict)
            if len(found) in kills:
                os.kill(draw.choice(at_work(hosts)), signal.SIGKILL)
        assert 0 < hosts.hosts_lost <= len(kills)  # one that is killed while it starts had no job to lose
    assert found == expected


def dice(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dice", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_line_verifies_on_a_cluster(cluster: RayNodes) -> None:
    done = dice("verify", RELU, RIGHT, WRONG, "--backend", "emulated", "--cluster", cluster.address, "--json")
    assert done.returncode == 1, done.stderr
    first, second = (answer["verdict"] for answer in json.loads(done.stdout))
    assert (first["outcome"], second["outcome"]) == ("correct", "wrong")
    assert first["host"] and first["toolchain"].startswith("g++")


@pytest.mark.slow  # each node tries out its compilers and its sandbox
def test_doctor_tells_of_every_node(cluster: RayNodes) -> None:
    done = dice("doctor", "--cluster", cluster.address, "--json")
    told = json.loads(done.stdout)
    assert (told["hosts"], len(told["nodes"])) == (2, 2)
    names = {finding["name"] for node in told["nodes"] for finding in node["findings"]}
    assert {"C++ compiler", "GPU", "sandbox", "cache", "Ray"} <= names
    assert done.returncode == (1 if told["troubles"] else 0)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--cluster", "127.0.0.1:1"), 3, "No Ray cluster answers at 127.0.0.1:1: Connection refused."),
        (("--mixed-hosts",), 2, "--mixed-hosts is of a cluster; give --cluster, too."),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(arguments: tuple[str, ...], code: int, sentence: str) -> None:
    """In processes of their own: this one has joined a cluster, and a process joins one. More in test_connect.py."""
    done = dice("verify", RELU, RIGHT, *arguments)
    assert (done.returncode, done.stderr.strip()) == (code, f"dice: {sentence}")


def test_without_ray_it_is_named_and_all_else_works() -> None:
    """A Python in which no module `ray` can be found."""
    without = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'ray' else find(name, *rest)\n"
        "sys.modules['ray'] = None\n"
        "from dice.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", without, "verify", str(RELU), str(CASES / "syntax_error.py")]
    refused = subprocess.run([*command, "--cluster", "auto"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 3
    assert "needs Ray, which is not installed: pip install 'dice-kernels[cluster]'" in refused.stderr
    alone = subprocess.run(
        [*command, "--backend", "emulated", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert json.loads(alone.stdout)["verdict"]["outcome"] == "no_kernel"
