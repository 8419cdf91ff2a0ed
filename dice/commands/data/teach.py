"""`dice data teach PROBLEMS...`: kernels from a teacher, kept when they prove faster."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dice.commands.arguments import Backend, Endpoint
from dice.commands.endpoint_args import key_of, lines_of, settings_of
from dice.commands.progress import bars
from dice.errors import UserError


@dataclass
class Teach:
    """Ask a teacher for kernels, and keep those whose speed-up is confirmed. A killed run goes on where it was.

    Example: dice data teach problems --base-url http://localhost:8000/v1 --model NAME -o taught
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PROBLEM", help_behavior_hint="")] = ()
    """Problem files, folders of them, or .parquet, .json and .jsonl tables with a source column."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("taught")
    """Folder for candidates.parquet, kept.parquet, report.json, and the logs that a killed run goes on from."""
    model: str = ""
    """The teacher's name at the endpoint."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    temperature: float = 1.0
    max_tokens: int = 8192
    """Longest answer, in tokens."""
    samples: int = 1
    """Candidates for each problem."""
    prompt: Literal["one-shot", "compact"] = "one-shot"
    measure: bool = True
    """Execute candidates; without, they are only asked for, and `dice data measure` can execute them elsewhere."""
    executions: int = 5
    """A kernel is kept when this many executions are all correct and faster; the first that is not ends it."""
    min_speedup: float = 1.0
    """Each execution's speed-up over eager PyTorch must lie above this with its whole 95% interval."""
    backend: Backend = "auto"
    """Where candidates run; only on cuda are they timed, and kept."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        """0 when at least one kernel was kept (or asked for, without measuring), else 1."""
        if not self.paths:
            raise UserError("Give at least one PROBLEM: a folder of problems, a problem file or a table.")
        from dice.data.sources import read_problems
        from dice.data.teacher import TeachingSettings, teach
        from dice.endpoint.client import Endpoint as Client
        from dice.verify import Options, Verifier

        problems = [problem.check() for problem in read_problems(self.paths)]
        teaching = TeachingSettings(self.samples, self.prompt, self.measure, self.executions, self.min_speedup)
        settings = settings_of(self.endpoint, self.model, temperature=self.temperature, max_tokens=self.max_tokens)
        endpoint = Client(settings, key_of(self.endpoint), self.out / "requests.jsonl")
        with bars() as show:
            show("asked", 0, len(problems) * teaching.samples)

            def count(what: str, done: int, total: int) -> None:
                spent = f"{endpoint.account.cost:.3f} USD" if what == "asked" and endpoint.account.cost else ""
                show(what, done, total, spent)

            def make_verifier() -> Verifier:
                return Verifier(backend=self.backend, options=Options(timing=True))

            report = teach(problems, endpoint, teaching, self.out, make_verifier=make_verifier, show=count)
        if self.json:
            print(json.dumps(report))
        else:
            print("\n".join(lines_of(report["endpoint"])))
            failed = ", ".join(f"{count} {kind}" for kind, count in report["failed"].items()) or "none"
            print(
                f"answers: {report['answered']} of {report['asked']}, {report['cut_short']} cut short; failed: {failed}"
            )
            dropped = ", ".join(f"{count} {why}" for why, count in report["dropped"].items()) or "none"
            print(f"kept: {report['kept']}, for {report['problems_with_a_kernel']} problems; dropped: {dropped}")
            print(f"written to {self.out}")
        return 0 if report["kept"] or (report["answered"] and not self.measure) else 1
