"""Any text is read in time that grows as it does, and without an exception: mutated files, and what is deep or long.

`DICE_FUZZ_FILES=20000` mutates so many files instead of 30; `DICE_FUZZ_SEED` picks others.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dice import synth
from dice.data import decontaminate
from dice.data.difficulty import levels
from dice.data.sources import columns
from dice.evaluate import failures
from dice.files import highlight
from dice.kernel import Kernel, KernelParts, SplitError, global_functions
from dice.problem import Problem, ProblemError
from dice.prompts import extract_kernel, extract_problem
from dice.train.rl.requests import Scaffold
from dice.verdict import Verdict
from dice.verify.build import diagnostics, split_source, units
from dice.verify.build.sources import Sources
from dice.verify.emulator import Unsupported, kernel_names, translate
from dice.verify.emulator.tokens import MOST_GROWTH, ROOM
from dice.verify.emulator.unsupported import explain_failure, find_unsupported
from dice.verify.text import library_calls, source_map, static

ROOT = Path(__file__).parents[2]
FILES = int(os.environ.get("DICE_FUZZ_FILES", "30"))
SEED = int(os.environ.get("DICE_FUZZ_SEED", "0"))
LONGEST = 32_000  # characters of a mutated file
MOST_S = 2.0  # of processor time, for any one reading of a file
DOCUMENTED = (SplitError, Unsupported, split_source.NotSplit, ProblemError)


def bound_translation(text: str) -> None:
    assert len(translate(text)) <= ROOM + (MOST_GROWTH + 1) * len(text)


def locate(text: str) -> None:
    places = source_map.SourceMap(text, Sources((text[: len(text) // 2],), (text,)))
    places.locate("cuda_source:3: error in cpp_source(1)")
    places.locate(text)


READERS: dict[str, Callable[[str], object]] = {
    "static.examine": lambda text: static.examine(Kernel(text)),
    "may_overlap": static.may_overlap,
    "split": lambda text: Kernel(text).split(),
    "bound_functions": lambda text: Kernel(text).bound_functions,
    "global_functions": global_functions,
    "library_calls": lambda text: (library_calls.libraries([text]), library_calls.families([text])),
    "extract_kernel": extract_kernel,
    "extract_problem": extract_problem,
    "Problem.check": lambda text: Problem(text).check(),
    "translate": bound_translation,
    "kernel_names": kernel_names,
    "find_unsupported": find_unsupported,
    "explain_failure": explain_failure,
    "host_text": split_source.host_text,
    "device_text": split_source.device_text,
    "whole_device_text": split_source.whole_device_text,
    "has_templates": split_source.has_templates,
    "joined_unit": lambda text: units.joined_unit(text, text, "wrap_pybind_function(f)"),
    "error_lines": diagnostics.error_lines,
    "source_map": locate,
    "highlight": lambda text: highlight.as_html(text, highlight.runs(text)),
    "kernel_shingles": lambda text: decontaminate.kernel_shingles(Kernel(text)),
    "fingerprint": lambda text: decontaminate.fingerprint(Problem(text)),
    "scaffold": lambda text: Scaffold.of(KernelParts("", text, "")),
    "holds_kernel": columns.holds_kernel,
    "operator_family": failures.operator_family,
    "message_class": lambda text: failures.message_class(Verdict("wrong", "run", text)),
    "branches": levels.branches,
}

TOKENS = (
    ["(", ")", "[", "]", "{", "}", "<", ">", "<<", ">>", "<<<", ">>>", "<<<1, 1>>>(", "k<<<1, 1>>>();", ";", ",", "\\"]
    + ['"', "'", '"""', "'''", '\\"', '"\\"', "\\'", "/*", "*/", "//", "#", "#if 0\n", "#else\n", "#endif\n", 'R"(']
    + ["#define D __device__\n", "#define #define ", "#include <", '#include "a', "\\\n", "\\\r\n", "\r", "\n", " \n"]
    + ["__global__ ", "__device__ ", "__shared__ ", "__shared__ float t[32];", "__shared__ float t[32]", "volatile "]
    + [
        "extern __shared__ int d[];\n",
        "__global__ void k() {",
        "__device__ int f() {",
        "typedef ",
        "template <",
        "a<b>",
    ]
    + ["cudaLaunchKernel((", "reinterpret_cast<void*>(", "__attribute__((aligned(", "__align__(", "namespace {", "v[{"]
    + ["namespace ", "inline ", "extern ", "struct S {", "a::", "a.", ".a", "->", "::k<<<", "1'0", "0x", "é", "\0"]
    + ["\ud800", "\u2028", "\x0b", "\x85", "\ufeff", "\U0001f600", " ", "\t", "```\n", "```python\n", "~~~~", "<think>"]
    + [
        "</think>",
        "<|im|>",
        "not ",
        "-",
        "1 if 1 else ",
        "lambda: ",
        "lambda x=",
        "1 + ",
        "a if b else ",
        "await ",
        "f(",
    ]
    + [
        "a = ",
        "a, ",
        "*a, ",
        "a = b = ",
        "(a := ",
        "[a for a in ",
        "f'{",
        "f'{a}' ",
        "{1: ",
        "@d\n",
        "if 1:\n ",
        "else:\n",
    ]
    + [
        "elif 1: pass\n",
        "try: ops.f()\nexcept E: pass\n",
        "def f(): return f\n",
        "class A(A): pass\n",
        "class B(A, A): 1\n",
    ]
    + [
        "load_inline(",
        "partial(",
        "ops.f(",
        "self.op = ",
        "torch.ops",
        "getattr(torch, x)",
        "setattr(self, 'a', ops)\n",
    ]
    + [
        "import torch\n",
        "from ",
        "class ModelNew: pass\n",
        "'\\d' ",
        "b'a' ",
        "1_0",
        "1e5",
        "cublasgemm",
        'm.def("',
        "a\n",
    ]
    + ["error: 'a::a' ", "a:1: error: ", "cuda_source:1", "a/a/", "‘", "return ops\n", "ops\n", "import a\n", "a: b\n"]
)


def corpus() -> list[str]:
    folders = [ROOT / "tests" / "cases", ROOT / "tests" / "exploits", ROOT / "examples"]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files += sorted((ROOT / "tests" / "verify" / "emulator" / "emulator_cases").glob("*.cu"))
    return [path.read_text() for path in files] + [synth.generate(SEED, index).kernel.source for index in range(40)]


def mutated(rng: random.Random, texts: list[str]) -> str:
    """One file of the corpus, or nothing, after a few changes."""
    text = rng.choice(texts) if rng.random() < 0.8 else ""
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(0, len(text))
        lines = text.splitlines(keepends=True) or [""]
        match rng.randrange(10):
            case 0 | 1 | 2:
                piece = "".join(rng.choices(TOKENS, k=rng.choice((1, 1, 2, 3))))
                middle = rng.choice(("", "a", "1", "x;"))
                text = text[:place] + piece * many(rng) + middle + text[place:]
            case 3:
                opening, closing = rng.choice(("()", "[]", "{}", "<>"))
                count = many(rng)
                text = (
                    text[:place]
                    + opening * count
                    + "a"
                    + closing * max(0, count + rng.choice((-1, 0, 0, 1)))
                    + text[place:]
                )
            case 4:
                line = rng.randrange(len(lines))
                text = "".join([*lines[:line], lines[line] * many(rng), *lines[line + 1 :]])
            case 5:
                end = rng.randint(place, min(len(text), place + 400))
                text = text[:place] + text[place:end] * many(rng) + text[end:]
            case 6:
                text = text[:place] + text[rng.randint(place, len(text)) :]
            case 7:
                other = rng.choice(texts)
                text = text[:place] + other[rng.randint(0, len(other)) :]
            case 8:
                text = text[:place] + rng.choice(TOKENS) + text[place:]
            case 9:
                text = rng.choice((text.replace("\n", "\r"), text.replace("\n", " "), text.replace(" ", ""), text * 5))
        text = text[:LONGEST]
    return text


def many(rng: random.Random) -> int:
    return int(10 ** rng.uniform(0, 4))


class _Endless(BaseException):
    pass


def _stop(number: int, frame: object) -> None:
    raise _Endless


def read(name: str, text: str) -> float:
    """Seconds of processor time. Fails where it takes too many, or raises what it does not document."""
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5 * MOST_S)
    began = time.process_time()
    try:
        READERS[name](text)
    except DOCUMENTED:
        pass
    except BaseException as error:
        pytest.fail(f"{name} raised {type(error).__name__}: {error} on {len(text)} characters: {text[:2000]!r}")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - began


def read_all(texts: Iterator[str]) -> dict[str, float]:
    slowest = dict.fromkeys(READERS, 0.0)
    for text in texts:
        for name in READERS:
            seconds = read(name, text)
            if seconds >= MOST_S:  # a core that is shared is slower for a moment; what is too slow is so each time
                seconds = min(seconds, read(name, text), read(name, text))
            assert seconds < MOST_S, f"{name} took {seconds:.1f} s on {len(text)} characters: {text[:2000]!r}"
            slowest[name] = max(slowest[name], seconds)
    return slowest


@pytest.mark.timeout(900 + FILES)  # seconds: a file takes less than a tenth of one, and the machine may be busy
def test_mutated_files_are_read() -> None:
    rng, texts = random.Random(SEED), corpus()
    slowest = read_all(mutated(rng, texts) for _ in range(FILES))
    print({name: round(seconds, 3) for name, seconds in sorted(slowest.items(), key=lambda item: -item[1])})


SURROUNDINGS = {"bare": "{}", "string": 's = """__global__ {}"""', "body": "__global__ void k() {{ {} }}"}


@pytest.mark.parametrize(
    ("around", "every"),
    [case for name in SURROUNDINGS for case in (pytest.param(name, 9), pytest.param(name, 1, marks=pytest.mark.slow))],
)
def test_repeated_pieces_are_read(around: str, every: int) -> None:
    """Each piece in each of the surroundings; where that is too slow, in one of them."""
    text, first = SURROUNDINGS[around], list(SURROUNDINGS).index(around) % every
    pieces = TOKENS[first::every]
    read_all(text.replace("{}", (piece * 10_000)[:10_000]).replace("{{", "{").replace("}}", "}") for piece in pieces)
