"""Builds per minute on all cores, cold cache: the split build against nvcc on the shadow headers.

    python benchmarks/build_rate.py [builds] > build_rate.json

Sources are those of tests/verify/build/split_cases.py, each made unlike every other. A line that asks for nvcc's own
macro keeps a source from being split. Needs nvcc, and no GPU.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dice.verify.build.service import Answer, BuildService
from dice.verify.build.sources import Sources
from dice.verify.sandbox.process import Zygote

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "verify" / "build"))
from split_cases import CASES  # noqa: E402

CPP = "torch::Tensor run(torch::Tensor x);"
WHOLE = "#ifdef __CUDACC__\n#endif\n"


def measure(service: BuildService, zygote: Zygote, whole: bool, builds: int) -> dict[str, object]:
    cores = len(os.sched_getaffinity(0))
    texts = [case.cuda for case in CASES if case.headers == "split"]

    def one(index: int) -> Answer:
        text = f"{texts[index % len(texts)]}// {uuid.uuid4()}\n{WHOLE if whole else ''}"
        return service.build(zygote, Sources((CPP,), (text,), (("run", "run"),)), "run", 300)

    started = time.monotonic()
    with ThreadPoolExecutor(cores) as pool:
        answers = list(pool.map(one, range(builds)))
    wall = time.monotonic() - started
    paths = sorted({answer.built.headers if answer.built else answer.kind for answer in answers})
    return {
        "paths": paths,
        "builds": builds,
        "cores": cores,
        "per_minute": round(60 * builds / wall, 1),
        "median_s": round(statistics.median(answer.seconds for answer in answers), 3),
    }


def main() -> None:
    builds = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    with tempfile.TemporaryDirectory() as folder:
        zygote = Zygote()
        service = BuildService("cuda", Path(folder))
        started = time.monotonic()
        service.prepare(zygote)
        found: dict[str, object] = {"prepare_s": round(time.monotonic() - started, 2)}
        for name, whole in (("split", False), ("slim", True)):
            found[name] = measure(service, zygote, whole, builds)
        zygote.close()
    found["peak_rss_kb_of_children"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
