from __future__ import annotations

import time

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import (
    EXAMPLE_KERNEL,
    EXAMPLE_PROBLEM,
    MAX_REPLY,
    compact,
    extract_kernel,
    extract_problem,
    first_fence,
    infill,
    one_shot,
    reply,
)

PROBLEM = Problem("class Model: ...  # the architecture\n", name="p")
KERNEL = Kernel(EXAMPLE_KERNEL)


def test_one_shot_has_kernelbenchs_order() -> None:
    text = one_shot(PROBLEM)
    places = [text.index(part) for part in (EXAMPLE_PROBLEM, EXAMPLE_KERNEL, PROBLEM.source.strip(), "ModelNew. Give")]
    assert places == sorted(places)


def test_the_example_problem_is_a_problem_and_its_kernel_a_kernel() -> None:
    Problem(EXAMPLE_PROBLEM).check()
    assert KERNEL.defines_model_new and KERNEL.global_functions == ("add_kernel",)


def test_infilling_gives_prefix_and_suffix_and_not_the_core() -> None:
    other = Kernel(EXAMPLE_KERNEL.replace("add", "scale"))
    parts = other.split()
    text = infill(PROBLEM, parts)
    assert parts.prefix in text and parts.suffix in text and parts.core not in text


def test_compact_adds_next_to_nothing() -> None:
    assert len(compact(PROBLEM)) < len(PROBLEM.source) + 60


@pytest.mark.parametrize(
    "text",
    [
        reply(KERNEL),
        reply(KERNEL) + "<|im_end|>",
        f"Sure, here is the kernel.\n\n{reply(KERNEL)}\nIt adds.",
        f"<think>class ModelNew would be ```python\nno\n```</think>\n{reply(KERNEL)}",
        f"First the reference:\n```python\nimport torch\nclass Model: pass\n```\nthen\n{reply(KERNEL)}",
        f"```\n{EXAMPLE_KERNEL}```",
        f"```python\n{EXAMPLE_KERNEL}",  # truncated before the fence closed
        EXAMPLE_KERNEL,
        f"Here it is:\n{EXAMPLE_KERNEL}```",
        f"  ```py\n{EXAMPLE_KERNEL}  ```\n",
        reply(KERNEL).replace("\n", "\r\n"),
    ],
)
def test_the_kernel_is_found_in_a_reply(text: str) -> None:
    kernel = extract_kernel(text)
    assert kernel is not None
    assert kernel.source.replace("\r\n", "\n").strip() == EXAMPLE_KERNEL.strip()


@pytest.mark.parametrize("text", ["", "I cannot do that.", "<think>import torch, then", "```cpp\nint main() {}\n```"])
def test_a_reply_without_a_kernel_has_none(text: str) -> None:
    assert extract_kernel(text) is None


def test_a_truncated_kernel_is_still_given_to_the_verifier() -> None:
    kernel = extract_kernel("```python\nimport torch\nsource = '''\n__global__ void f(")
    assert kernel is not None and not kernel.defines_model_new


LONG = {
    "thoughts that do not end": "<think>" * 50_000,
    "thoughts": "<think>a</think>" * 50_000,
    "spaces behind a fence": "```" + " " * 60_000 + "!\n",
    "empty lines": "```\n" + "\n" * 60_000,
    "lines of a space": "```\n" + " \n" * 60_000,
    "fences": "".join("`" * (3 + number % 200) + "\n" for number in range(20_000)),
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_reply_is_read_in_time_that_grows_with_it(text: str) -> None:
    began = time.process_time()
    assert extract_kernel(text) is None and extract_problem(text) is None
    assert time.process_time() - began < 5


def test_a_reply_of_many_megabytes_holds_nothing() -> None:
    assert extract_kernel("a" * MAX_REPLY + reply(KERNEL)) is None
    assert extract_problem("a" * MAX_REPLY + compact(Problem(EXAMPLE_PROBLEM))) is None
    assert extract_kernel("a" * 1_000_000 + "\n" + reply(KERNEL)) is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("First:\n```python\nplan = 1\n```\nthen\n```python\nclass ModelNew: pass\n```", "plan = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("```cpp\nint x;\n```", "int x;"),
        ("inline ```y = 2``` counts", "y = 2"),
        ("<think>\n```python\ndraft\n```\n</think>\n```python\nx\n```", "x"),
        ("```python\nnever closed", None),
        ("class ModelNew: pass", None),
        ("``````", None),
    ],
)
def test_the_first_fence_is_what_kernelbench_reads(text: str, found: str | None) -> None:
    kernel = first_fence(text)
    assert (kernel.source if kernel else None) == found
