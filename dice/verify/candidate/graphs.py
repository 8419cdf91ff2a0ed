"""CUDA graphs made from Python: what was captured counts once more at each replay, and does nothing while muted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from dice.verify.candidate import binding
from dice.verify.execution.evidence import Census


@dataclass
class _Capture:
    """What went into a graph: launches of the file's kernels, and what PyTorch computes."""

    before: Counter[str]
    census: Census = field(default_factory=Census)
    launches: Counter[str] = field(default_factory=Counter)


def install(replayed: Callable[[Mapping[str, int]], None]) -> None:
    """Watch `torch.cuda.CUDAGraph` in this process. `replayed` is told what PyTorch computes in a replay.

    A graph that C++ code captures itself is not seen: its kernels count at their capture only.
    """
    graph: Any = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay
    captures: WeakKeyDictionary[Any, _Capture] = WeakKeyDictionary()

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        captures[self] = _Capture(Counter(binding.launches()))
        captures[self].census.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self: Any) -> None:
        if self in captures:
            capture = captures[self]
            capture.census.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            capture.launches = Counter(binding.launches()) - capture.before
        end(self)

    def replay_once(self: Any) -> None:
        capture = captures.get(self)
        if capture is not None:
            binding.add_launches(capture.launches)
            replayed(capture.census.work.elements)
        if not binding.is_muted():
            replay(self)

    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replay_once
