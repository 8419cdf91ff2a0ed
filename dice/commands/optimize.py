"""`dice optimize MODULE.py`: a whole module, cut into regions; each is written, verified and timed."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from dice.commands.arguments import Backend, Clustered, Endpoint, at_least, options, spare
from dice.commands.endpoint_args import key_of, settings_of
from dice.commands.progress import bars
from dice.errors import UserError
from dice.files.atomic import write_text
from dice.problem import Problem

if TYPE_CHECKING:
    from dice.optimize.variants import Several
    from dice.optimize.writers import KernelWriter


@dataclass
class Optimize(Clustered):
    """Cut a module into regions, have each written as a CUDA kernel, and put together what is right and wins.

    Functions `get_inputs_NAME()` in the file give other inputs, which then have kernels of their own.
    Example: dice optimize module.py -o module_fast.py
    """

    module: Annotated[Positional[Path], arg(metavar="MODULE.py")]
    """A file that defines Model, get_inputs and get_init_inputs."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Where the whole module with its kernels goes (default: NAME_optimized.py)."""
    writer: str = "templates"
    """Who writes kernels, several with commas: templates (by rule), nano, the folder of a checkpoint, endpoint."""
    budget: int = 4
    """Candidates of a writer for each region."""
    tune: int = 0
    """Variants of a region's right kernel with other constants (block sizes, tiles, unrolling), each verified and
    timed; 0: none. Needs a GPU."""
    dtypes: tuple[str, ...] = ()
    """Also write kernels for the module and its inputs in these types: float64, float32, float16, bfloat16."""
    minutes: float = 0.0
    """For writing and checking regions in all; 0: no limit."""
    run_folder: Annotated[Path | None, arg(name="run")] = None
    """Folder that keeps every candidate with its verdict; a killed run is resumed from it (default: NAME_run)."""
    keep: Literal["faster", "right"] = "faster"
    """Regions to keep where they are timed: those without which the whole is slower, or all that are right."""
    library: bool = True
    """Ask the library of verified kernels first, and keep in it what is right now."""
    backend: Backend = "auto"
    """Where kernels run: cuda (a GPU), emulated (the CPU), or whichever this machine has."""
    export: Path | None = None
    """Also write an installable package with torch.library operators to this folder."""
    training: bool = False
    """Gradients flow through the kernels: the backward of each region is written and checked, too, and is PyTorch's
    where no kernel of it is right."""
    compile_baseline: bool = False
    """Also time the module under torch.compile (cuda backend only)."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    """With --writer endpoint: which, and how much of it may be used."""
    model: str = ""
    """With --writer endpoint: the name of its model."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        at_least(1, budget=self.budget)
        at_least(0, tune=self.tune)
        if self.minutes < 0:
            raise UserError(f"--minutes must be at least 0, not {self.minutes:g}.")
        problem = Problem.from_file(self.module)
        target = self.output or Path(f"{problem.name}_optimized.py")
        folder = self.run_folder or Path(f"{problem.name}_run")
        spare([self.module], target)
        _require_writable(target)
        if self.export is not None:
            from dice.optimize.whole.export import require_free

            require_free(self.export)
        from dice.optimize.variants import variants_of

        variants = variants_of(problem, self.dtypes)
        asked = options(compile_baseline=self.compile_baseline)
        with self.make_verifier(backend=self.backend, options=asked) as verifier:
            from dice.optimize.library import Library
            from dice.optimize.search import Policy
            from dice.optimize.variants import optimize_variants

            folder.mkdir(parents=True, exist_ok=True)
            writers = [self._writer(name.strip(), folder) for name in self.writer.split(",")]
            policy = Policy(samples=self.budget, seconds=60 * self.minutes, keep=self.keep, tune=self.tune)
            library = Library() if self.library else None
            with bars(not self.json) as bar:
                result = optimize_variants(
                    variants,
                    verifier,
                    folder,
                    writers=writers,
                    policy=policy,
                    library=library,
                    training=self.training,
                    show=lambda what, done, total: bar(what, done, total or None),
                )
            if result.kernel is not None:
                write_text(target, result.kernel.source)
            exported = self._export(result)
        if self.json:
            written = str(target) if result.kernel else None
            print(json.dumps({**result.to_json(), "written": written, "run": str(folder), "exported": exported}))
        else:
            self._tell(result, target, folder, exported)
        return 0 if result.kernel is not None else 1

    def _writer(self, name: str, folder: Path) -> KernelWriter:
        from dice.optimize.writers import Remote, make_writer

        def remote() -> KernelWriter:
            settings = settings_of(self.endpoint, self.model, temperature=0.7, max_tokens=8192)
            return Remote(settings, key_of(self.endpoint), folder / "requests.jsonl")

        return make_writer(name, remote)

    def _export(self, result: Several) -> str | None:
        if self.export is None or result.kernel is None:
            return None
        from dice.optimize.whole.export import export

        export(result.plan, self.export, cases=result.cases)
        return str(self.export)

    def _tell(self, result: Several, target: Path, folder: Path, exported: str | None) -> None:
        first, *others = result.outcomes
        for line in first.report.lines():
            print(line)
        verdict = first.verdict or first.report.verdict
        if verdict is not None:
            said = f": {verdict.message}" if verdict.message else ""
            print(f"verdict on the whole: {verdict.outcome} ({verdict.provenance or verdict.stage}){said}")
        for outcome in result.outcomes if others else ():
            print(outcome.line())
        if result.gradients:
            print(result.gradients)
        if result.kernel is None:
            print("no kernel made it into the module, so nothing was written")
        else:
            print(f"module written to {target}; {folder / 'report.html'} shows its regions")
        if exported:
            print(f"package written to {exported}")


def _require_writable(target: Path) -> None:
    if target.is_dir():
        raise UserError(f"{target} is a folder, and a file is needed.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent or os.curdir):
            pass
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from None
