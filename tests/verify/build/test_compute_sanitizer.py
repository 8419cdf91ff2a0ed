"""compute-sanitizer: reading what it says, and the jailed run that asks it (with a stand-in where there is none)."""

from __future__ import annotations

from pathlib import Path

import pytest
import sanitizer_reports as reports

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier, toolchain
from dice.verify.build import compute_sanitizer
from dice.verify.build.compute_sanitizer import read
from dice.verify.supervisor import sanitizer
from tests.conftest import CASES


def test_accesses_out_of_bounds_are_counted_once_a_place() -> None:
    (found,) = read(reports.OUT_OF_BOUNDS, "memcheck", ["scale"])
    assert found["kind"] == "out_of_bounds" and found["kernel"] == "scale" and found["times"] == 2
    assert found["lines"] == ["cuda_source:8"]
    assert found["message"] == (
        "invalid __global__ write of size 4 bytes in kernel scale at cuda_source:8 by thread (64,0,0) of block (3,0,0)"
        "; Access to 0x7f1c2f000400 is out of bounds; "
        "and is 1 bytes after the nearest allocation at 0x7f1c2f000000 of size 1,024 bytes"
    )


def test_a_fault_in_an_inlined_function_names_the_kernel_around_it() -> None:
    (found,) = read(reports.INLINED, "memcheck", ["gather"])
    assert (found["kind"], found["kernel"]) == ("misaligned", "gather")
    assert found["lines"] == ["cuda_source:4", "cuda_source:21"]


def test_races_name_both_sides_and_leave_libraries_out() -> None:
    race, hazard = read(reports.RACES, "racecheck", ["row_sum"])
    assert (race["kind"], race["kernel"], race["times"]) == ("race", "row_sum", 512)
    assert race["lines"] == ["cuda_source:9", "cuda_source:12", "cuda_source:13"]
    assert "write at cuda_source:9, read at cuda_source:12, read at cuda_source:13" in race["message"]
    assert (hazard["kind"], hazard["lines"]) == ("hazard", ["cuda_source:14", "cuda_source:12"])


def test_uninitialised_memory_and_barriers_have_kinds_of_their_own() -> None:
    assert [one["kind"] for one in read(reports.UNINITIALISED, "initcheck", [])] == ["uninitialised"]
    (barrier,) = read(reports.BARRIER, "synccheck", ["sum"])
    assert barrier["kind"] == "barrier" and barrier["lines"] == ["cuda_source:15"]
    assert "divergent thread(s) in block" in barrier["message"].lower()


def test_what_is_not_about_the_kernels_is_no_finding() -> None:
    assert read(reports.CLEAN, "memcheck", ["scale"]) == []
    assert read(reports.OUT_OF_BOUNDS.replace(" in cuda_source:8", ""), "memcheck", ["other"]) == []
    assert read("nothing\n=========\n========= \n", "memcheck", ["scale"]) == []


def test_a_log_without_a_summary_is_unfinished() -> None:
    assert compute_sanitizer.finished(reports.RACES) and compute_sanitizer.finished(reports.CLEAN)
    assert not compute_sanitizer.finished(reports.CUT_OFF)


def test_it_is_found_in_the_toolkit_and_its_absence_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "compute-sanitizer" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    toolkit = toolchain.CudaToolkit(tmp_path, tmp_path / "bin" / "nvcc", "")
    monkeypatch.setattr(toolchain, "cuda_toolkit", lambda: toolkit)
    assert compute_sanitizer.find_program() == program
    monkeypatch.setattr(compute_sanitizer, "find_program", lambda: None)
    with pytest.raises(sanitizer.SanitizerMissing, match="compute-sanitizer was not found: install"):
        sanitizer.require()


# Stands in for the program: lets its target run once, connects to itself as the real one does, and reports a fault.
STAND_IN = r"""#!/bin/sh
while [ "$1" != application-only ]; do
  [ "$1" = --log-file ] && log=$2
  [ "$1" = --tool ] && tool=$2
  shift
done
shift
echo "========= COMPUTE-SANITIZER" > "$log"
[ $tool = racecheck ] && exit 1
if [ $tool = memcheck ]; then
  "$@" || exit 1
  "$1" -c 'import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())' || exit 1
  cat >> "$log" <<'END'
========= Invalid __global__ read of size 4 bytes
=========     at relu_kernel(const float *, float *, int)+0x1d0 in cuda_source:6
=========     by thread (64,0,0) in block (3,0,0)
=========     Access to 0x7f1c2f000400 is out of bounds
END
fi
echo "========= ERROR SUMMARY: 0 errors" >> "$log"
"""


def test_a_candidate_is_run_again_in_its_jail_under_every_tool(
    emulated: Verifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "sanitizer" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setattr(compute_sanitizer, "find_program", lambda: program)
    monkeypatch.setattr(sanitizer, "applies", lambda options, backend, outcome: options.sanitize)
    problem = Problem.from_file(CASES / "problems" / "relu.py")
    kernel = Kernel.from_file(CASES / "right_relu.py")
    # On a GPU the file itself is run again, and no program of it.
    options = Options(trials=1, sanitize=True, provenance="evidence", cache_dir=emulated.options.cache_dir)
    verdict = emulated.verify(problem, kernel, options)
    assert verdict.outcome == "runtime_error", verdict.errors
    assert verdict.message.startswith("out_of_bounds: invalid __global__ read of size 4 bytes in kernel relu_kernel")
    assert [(one.kind, one.tool, one.kernel) for one in verdict.findings] == [
        ("out_of_bounds", "memcheck", "relu_kernel")
    ]
    assert "(cuda_source:6)" in verdict.findings[0].lines[0]
    assert "sanitizer_failed:racecheck" in verdict.labels  # it came to no end
    assert not {"sanitizer_failed:memcheck", "sanitizer_failed:initcheck"} & set(verdict.labels)
