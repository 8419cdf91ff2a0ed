"""`dice bench baseline`: the times of KernelBench's references on this GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from dice.commands.progress import bars


@dataclass
class BenchBaseline:
    """Time KernelBench's references on this GPU, eager and under torch.compile, in KernelBench's own file format.

    Example: dice bench baseline --problems KernelBench/KernelBench --level 1
    """

    problems: Path
    """KernelBench's folder, any folder of problems, or a table. Problems run unconfined."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("baseline_time_torch.json")
    """The file for eager; torch.compile's is beside it, named ..._compile. What they hold is not timed again."""
    level: tuple[int, ...] = ()
    ids: str = ""
    modes: tuple[Literal["eager", "compile"], ...] = ("eager", "compile")
    trials: int = 100
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        """0 when every problem was timed, else 1."""
        from dice.evaluate.baseline import file_of, measure_baselines
        from dice.evaluate.tasks import load_tasks

        tasks = load_tasks(self.problems, self.level, self.ids)
        with bars() as show:
            failures = measure_baselines(tasks, self.out, self.modes, self.trials, partial(show, "timed"))
        files = [str(file_of(self.out, mode)) for mode in self.modes]
        if self.json:
            lost = [{"task": one.task, "mode": one.mode, "message": one.message} for one in failures]
            print(json.dumps({"files": files, "failures": lost}))
        else:
            for one in failures:
                print(f"{one.task} ({one.mode}): {one.message}", file=sys.stderr)
            print("\n".join(files))
        return 1 if failures else 0
