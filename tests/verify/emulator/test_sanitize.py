"""`--sanitize`: races that are found, right kernels that are left alone, and what a verdict says of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from emulator_harness import CACHE, CASES, ROOT

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier, emulator
from dice.verify.build.sources import Sources
from dice.verify.text.source_map import SourceMap
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.xdist_group("sanitize")  # one process builds what they share
CASE_FILES = ROOT / "tests" / "cases"
SOURCE = (CASES / "races.cu").read_text()
ENTRIES = re.findall(r"^(?:ENTRY|COOPERATIVE)\((\w+)", SOURCE, re.M)
ORDERS = (0, 1, 5)
SCRIPT = """
import ctypes, json, sys
from dice.verify import emulator
from dice.verify.emulator import races
runtime = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
runtime.dice_findings_json.restype = ctypes.c_char_p
runtime.dice_sanitize()
library = ctypes.CDLL(sys.argv[2])
found = {}
for entry in sys.argv[4:]:
    for order in map(int, sys.argv[3].split(",")):
        runtime.dice_set_order(order)
        getattr(library, entry)()
        found.setdefault(entry, []).append(races.findings(runtime.dice_findings_json().decode()))
print(json.dumps(found))
"""


@cache
def found() -> dict[str, list[list[dict[str, Any]]]]:
    """Findings of each entry of races.cu, for each thread order."""
    orders = ",".join(map(str, ORDERS))
    with tempfile.TemporaryDirectory() as folder:  # of this process: others may be at the same
        library = _compile(SOURCE, Path(folder))
        command = [sys.executable, "-c", SCRIPT, str(emulator.runtime(CACHE)), str(library), orders, *ENTRIES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, list[list[dict[str, Any]]]] = json.loads(done.stdout)
    return result


def _compile(source: str, folder: Path) -> Path:
    text, output, library = (folder / name for name in ("races.cpp", "races.o", "races.so"))
    text.write_text('#line 1 "cuda_source"\n' + emulator.translate(source))
    flags = emulator.compile_flags(sanitize=True)
    link = [flag for flag in flags if flag.startswith("-Wl")]
    compiler = ["g++", *(flag for flag in flags if flag not in link), "-I", str(emulator.include_dir), "-c"]
    subprocess.run([*compiler, str(text), "-o", str(output)], check=True)
    # Linked apart: with -fsanitize=thread the linker would add libtsan.
    subprocess.run(["g++", "-shared", *link, str(output), str(emulator.runtime(CACHE)), "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name.startswith("r_")])
def test_a_race_is_found_in_every_order_of_threads(entry: str) -> None:
    for order, findings in zip(ORDERS, found()[entry], strict=True):
        assert any(one["kind"] == "race" for one in findings), f"order {order}: {findings}"


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name.startswith("ok_")])
def test_a_right_kernel_has_no_findings(entry: str) -> None:
    assert [one["message"] for findings in found()[entry] for one in findings] == []


# ---- verdicts ------------------------------------------------------------------------------------------------------

ROW_SUM = (CASE_FILES / "right_row_sum_shared.py").read_text()
LOAD = "    part[t] = sum;\n    __syncthreads();"


def verify(verifier: Verifier, source: str, *, sanitize: bool, problem: str = "row_sum") -> Verdict:
    options = replace(verifier.options, trials=2, sanitize=sanitize)
    return verifier.verify(Problem.from_file(CASE_FILES / "problems" / f"{problem}.py"), Kernel(source), options)


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def test_a_race_that_spares_the_outputs_is_a_runtime_error_only_under_sanitize(emulated: Verifier) -> None:
    # Reads a neighbour too early, and does nothing with what it could have seen.
    racy = ROW_SUM.replace("part[t] = sum;", "part[t] = sum; if (part[t ^ 64] > 1e30f) part[t] = 0;")
    assert verify(emulated, racy, sanitize=False).outcome == "correct"
    verdict = verify(emulated, racy, sanitize=True)
    assert (verdict.outcome, verdict.stage) == ("runtime_error", "run"), verdict
    assert verdict.message.startswith("race: shared array part["), verdict.message


def test_a_missing_barrier_is_named_with_threads_and_lines_of_the_file(emulated: Verifier) -> None:
    racy = ROW_SUM.replace(LOAD, LOAD.replace("__syncthreads();", ""))
    verdict = verify(emulated, racy, sanitize=True)
    assert verdict.outcome == "runtime_error", verdict
    race = next(found for found in verdict.findings if found.kind == "race")
    assert (race.kernel, race.tool) == ("row_sum_kernel", "emulator") and race.times > 1
    write, read = line_of(racy, "part[t] = sum;"), line_of(racy, "part[t] += part[t + s];")
    assert {line.split(" (")[0] for line in race.lines} == {f"line {write}", f"line {read}"}
    assert re.search(r"thread \(\d+,0,0\) read it at line \d+", race.message), race.message
    assert f"race: {race.message}" in verdict.errors
    again = Verdict.from_json(json.loads(json.dumps(verdict.to_json())))
    assert again.findings == verdict.findings


def test_a_right_kernel_stays_correct_and_without_findings(emulated: Verifier) -> None:
    verdict = verify(emulated, ROW_SUM, sanitize=True)
    assert verdict.outcome == "correct" and verdict.findings == (), verdict


def test_a_race_in_a_tensor_names_it_and_the_index(emulated: Verifier) -> None:
    source = (CASE_FILES / "right_relu.py").read_text()
    source = source.replace("y[i] = x[i]", "const_cast<float*>(x)[i % 50] = i; y[i] = x[i]")
    verdict = verify(emulated, source, sanitize=True, problem="relu")
    assert verdict.outcome == "runtime_error", verdict
    assert re.search(r"race: input 0\[0, \d+\] in kernel relu_kernel: ", verdict.message), verdict.message
    assert verdict.message.count(" of block (") == 2 and "nothing orders blocks" in verdict.message


def test_a_read_of_unwritten_shared_memory_is_told_and_decides_nothing(emulated: Verifier) -> None:
    source = ROW_SUM.replace("part[t] = sum;", "if (part[t] > 1e30f) sum = 0; part[t] = sum;")
    verdict = verify(emulated, source, sanitize=True)
    assert verdict.outcome == "correct", verdict
    assert [one.kind for one in verdict.findings] == ["uninitialised"]
    assert verdict.labels == (), "looking lines up must not look like something that the file did"


def test_old_verdicts_have_no_findings() -> None:
    assert Verdict.from_json({"outcome": "correct", "stage": "done"}).findings == ()


# ---- lines ---------------------------------------------------------------------------------------------------------

FILE = '''import torch
header = "#include <cuda.h>\\n#define N 4\\n"
cuda = r"""
__global__ void k(float* x) {
    x[0] = 1;
}
"""
cpp = ("void f(int);"
       "void g(int);")
'''


def test_places_of_a_build_are_lines_of_the_file() -> None:
    names: dict[str, str] = {}
    exec(compile(FILE.replace("import torch", ""), "file", "exec"), names)
    places = SourceMap(FILE, Sources((names["cpp"],), (names["header"], names["cuda"])))
    assert places.line("cuda_source", 6) == FILE.splitlines().index("    x[0] = 1;") + 1
    assert places.line("cuda_source", 99) == 0
    assert places.locate("cuda_source:6:12: error: no") == "line 5 (cuda_source:6): error: no"
    assert places.locate("/tmp/x/cuda_source(6): error: no") == "line 5 (cuda_source:6): error: no"
    assert places.locate("other:6: error") == "other:6: error"


def test_compile_errors_name_lines_of_the_kernel_file(emulated: Verifier) -> None:
    source = (CASE_FILES / "compile_error.py").read_text()
    verdict = verify(emulated, source, sanitize=False, problem="relu")
    line = line_of(source, "= undeclared_name")
    assert verdict.outcome == "compile_error" and verdict.errors[0].startswith(f"line {line} (cuda_source:"), verdict
