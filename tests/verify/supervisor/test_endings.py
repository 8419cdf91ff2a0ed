"""Which ends of a job are worth a second try with the GPU's memory to itself: said by a flag, never by a sentence."""

from __future__ import annotations

import pytest

from dice.verify.ipc.messages import Failed
from dice.verify.supervisor import outcomes
from dice.verify.supervisor.record import ReferenceBroken

BY_ITSELF = "it used over 8192 MiB of host memory."  # what is said of a candidate that the host's memory ends


@pytest.mark.parametrize(
    ("failed", "short"),
    [
        (Failed("out_of_memory", "run", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 4 GiB.", ()), True),
        (Failed("out_of_memory", "run", "OutOfMemoryError", BY_ITSELF, ()), True),
        (Failed("runtime_error", "run", "RuntimeError", "CUDA out of memory, says the candidate", ()), False),
        (Failed("infra_error", "infra", "OutOfMemoryError", "CUDA out of memory", ()), False),
    ],
)
def test_a_candidate_lacks_the_gpus_memory_where_its_exception_says_so(failed: Failed, short: bool) -> None:
    """Whatever its own sentence is: one that speaks of the host's memory once kept a job from its second try."""
    assert outcomes.reported(failed, "run").lacks_gpu_memory == short


@pytest.mark.parametrize(("wants", "outcome"), [(True, "unsupported"), (False, "runtime_error")])
def test_only_who_asks_for_graphs_is_believed_that_something_is_not_emulated(wants: bool, outcome: str) -> None:
    """Else a file could have itself not counted."""
    failed = Failed("unsupported", "run", "NotEmulated", "CUDA graphs", ())
    assert outcomes.reported(failed, "run", wants_graphs=wants).outcome == outcome


@pytest.mark.parametrize(("name", "said"), [("low", True), ("math", True), ("self", False), ("lo", False)])
def test_a_name_of_the_problems_file_is_said_to_be_one(name: str, said: bool) -> None:
    """KernelBench's evaluator runs a kernel file among the names of its problem, and DICE by itself."""
    problem = "import math\nclass Model:\n    def forward(self, x): return x\nlow, high = -1.0, 1.0\n"
    failed = Failed("runtime_error", "run", "NameError", f"name '{name}' is not defined", ())
    assert ("stand alone" in outcomes.reported(failed, "run", problem).message) == said


@pytest.mark.parametrize("lacks", [True, False])
def test_a_reference_lacks_memory_where_its_process_says_so(lacks: bool) -> None:
    stop = ReferenceBroken("forward raised OutOfMemoryError: CUDA out of memory", False, lacks).as_verdict_reached()
    assert stop.lacks_gpu_memory == lacks and stop.outcome == "unsupported"
