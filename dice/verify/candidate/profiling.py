"""Which kernels the GPU spends a forward's time in, as CUPTI counts it through PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dice.verify.candidate import binding


def gpu_times(run: Callable[[], object]) -> list[tuple[str, int, float]]:
    """(name, calls, microseconds) of what the GPU did in `run`; empty where the machine does not let us count."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        events = profiler.key_averages()
    except RuntimeError:
        return []
    found = [(str(event.key), int(event.count), float(event.self_device_time_total)) for event in events]
    return [(_name(key), count, time) for key, count, time in found if time > 0]


def _name(key: str) -> str:
    return key if key.startswith(("Memcpy", "Memset")) else binding.function_name(key)
