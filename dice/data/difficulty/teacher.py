"""Difficulty as a teacher sees it (paper section 4.2): one word for each problem, asked again where it is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dice.data.difficulty.levels import LEVELS
from dice.endpoint.client import Endpoint, Replies
from dice.endpoint.request import Request
from dice.problem import Problem

TRIES = 3  # times that a problem is asked about while its answer names no level
PROMPT = """Say how hard it is to write a CUDA kernel for this PyTorch module, by its structure alone:

- single: one operation (one matrix product, one convolution, one activation, one norm, one reduction, ...);
- fusion: a few operations in a row that could be fused into one or two kernels;
- model: a whole network or a large part of one (several layers, an attention block, a recurrent network, ...).

```python
{source}
```

End your answer with a line that holds one of these words and nothing else: single, fusion, model.
"""


def parse(text: str) -> str:
    """The level that an answer's last line names; empty for any other answer."""
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    word = re.sub(r"^[*_`\"'\s]+|[*_`\"'.\s]+$", "", last).lower()
    return word if word in LEVELS else ""


def ask_levels(
    problems: Sequence[Problem],
    make_endpoint: Callable[[], Endpoint],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, str], int]:
    """Problem id -> level, and how many answers could not be parsed. A problem that was never answered is missing.

    Raises `EndpointStopped` when the endpoint can answer nothing.
    """
    levels: dict[str, str] = {}
    unparsed = 0
    by_id = {problem.id: problem for problem in problems}
    for attempt in range(TRIES):
        missing = [problem for id_, problem in by_id.items() if id_ not in levels]
        if not missing:
            break
        requests = [
            Request(PROMPT.format(source=problem.source.strip()), key=f"{problem.id} {attempt}", tag=problem.id)
            for problem in missing
        ]
        with Replies(make_endpoint(), requests) as replies:
            for reply in replies:
                level = parse(reply.text) if reply.answered else ""
                if level:
                    levels[reply.request.tag] = level
                unparsed += reply.answered and not level
                progress(len(levels), len(by_id))
    return levels, unparsed
