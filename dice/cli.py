"""The `dice` command: what each subcommand takes. Heavy modules load only inside the command that needs them.

Exit codes: 0 yes, 1 no or failed, 2 unusable input, 3 this machine cannot do it (said in one line), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

import dice
from dice.errors import MachineError, UserError

Backend = Literal["auto", "cuda", "emulated"]
Protocol = Literal["dice", "kernelbench", "kernelbench-fp16", "kernelbench-bf16", "kernelbench-v0", "dice-paper"]
Remasking = Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"]


@dataclass
class Generate:
    """Write a CUDA kernel for a PyTorch module, then compile it, run it and check it."""

    problems: Annotated[Positional[tuple[Path, ...]], arg(metavar="PROBLEM.py", help_behavior_hint="")]
    """One or more files that define Model, get_inputs and get_init_inputs."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Where the kernel goes: a file, or a folder when there are several problems (default: NAME_kernel.py)."""
    model: str = "nano"
    """The shipped nano, a folder with a checkpoint in SDAR's layout, or the id of one on the Hugging Face hub."""
    samples: int = 1
    """Candidates to write; the best verified one is kept."""
    refine: int = 0
    """After a failed verdict, write the CUDA core anew behind the same beginning, up to this many times."""
    backend: Backend = "auto"
    """Where kernels run: cuda (a GPU), emulated (the CPU), or whichever this machine has."""
    trace: Path | None = None
    """Also write how the text was denoised (token ids, reveal steps, log-probabilities) to this JSON file."""
    prompt: Literal["auto", "zero-shot", "one-shot"] = "auto"
    """The compact prompt nano was trained on, or KernelBench's one-shot prompt; auto picks by the model's size."""
    max_new_tokens: int = 2048
    """Longest reply, in tokens."""
    temperature: float = 0.0
    """0 takes the likeliest token; above 0 samples. The second sample on uses 0.7 when this is 0."""
    top_p: float = 1.0
    top_k: int = 0
    remasking: Remasking = "low_confidence_dynamic"
    """Which masked tokens a denoising step reveals."""
    confidence_threshold: float = 0.99
    """low_confidence_dynamic reveals every token at least this likely; lower is faster and errs more (paper: 0.9)."""
    seed: int = 0
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    timing: bool = True
    """Time the kernel against PyTorch (cuda backend only)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        from dice.commands.generate import run

        return run(self)


@dataclass
class Verify:
    """Compile, run and check kernels against the PyTorch module they replace."""

    problem: Annotated[Positional[Path], arg(metavar="PROBLEM.py")]
    """File that defines Model, get_inputs and get_init_inputs."""
    kernels: Annotated[Positional[tuple[Path, ...]], arg(metavar="KERNEL.py...")]
    """Files that define ModelNew."""
    backend: Backend = "auto"
    trials: int = 5
    """Fresh inputs to check on."""
    protocol: Protocol = "dice"
    """How right is judged: our checks, KernelBench's of today (1e-4), its first (1e-2), or the paper's."""
    timing: bool = True
    """Time the kernel against PyTorch (cuda backend only)."""
    compile_baseline: bool = False
    """Also time the reference under torch.compile (once for each problem and machine)."""
    compile_timeout: float = 120.0
    """Seconds the compiler may take."""
    run_timeout: float = 60.0
    """Seconds the candidate may run."""
    memory_mb: int = 8192
    """Host memory the candidate may use."""
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    sanitize: bool = False
    """Also look for races and other hidden errors: with our detector (emulated) or NVIDIA's compute-sanitizer (cuda).
    Several times slower. A race, or an access out of bounds, is a runtime_error even where the outputs are right."""
    profile: bool = False
    """Also say which kernels the GPU's time goes to (cuda backend only)."""
    workers: int | None = None
    """Kernels under way at once, by default as many as this machine's cores and GPUs can take."""
    cache: bool = False
    """Keep verdicts, and verify nothing again whose verdict is kept: what an interrupted run goes on from."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        from dice.commands.verify import run

        return run(self)


@dataclass
class Doctor:
    """Say what this machine can do, and what is missing for the rest."""

    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        from dice.commands.doctor import run

        return run(self)


@dataclass
class Synth:
    """Write the synthetic corpus: PyTorch problems with CUDA kernels, each verified before it enters."""

    out: Path
    """Folder for the Parquet files and report.json. An interrupted run resumes here."""
    pairs: int = 1000
    """Training pairs to write."""
    heldout: int = 240
    """Pairs of the held-out set (compositions and operator contexts that no training pair has)."""
    control: int = 120
    """Pairs of training compositions with other text, for comparison."""
    seed: int = 0
    workers: int = os.cpu_count() or 1
    """Candidates verified at once."""
    backend: Backend = "auto"
    verify: bool = True
    """Verify each pair; without it, pairs are only written."""
    prose_free: bool = False
    """Also write each training pair without docstrings and comments, so that a model learns to read the code."""
    decontaminate: tuple[Path, ...] = ()
    """Folders of benchmark problems: a pair that equals or nearly equals one of theirs is dropped."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.commands.data import synth

        return synth(self)


@dataclass
class Bpe:
    """Train nano's byte-level BPE tokenizer on a corpus."""

    data: tuple[Path, ...]
    """Parquet files or folders with prompt and response columns."""
    out: Path
    """Folder for the tokenizer files."""
    vocab_size: int = 2048

    def run(self) -> int:
        from dice.commands.data import bpe

        return bpe(self)


@dataclass
class Import:
    """Turn published data sets, or tables of your own, into one file of samples.

    Columns are told by their names, or by what they hold. Rows that cannot be used are counted with the reason.
    """

    sources: Annotated[Positional[tuple[str, ...]], arg(metavar="SOURCE", help_behavior_hint="")] = ()
    """Files or folders (.parquet, .arrow, .jsonl, .json, task files), known sources, or ids on the Hugging Face hub."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """The Parquet file to write."""
    source: str = ""
    """The known source that the files are from, where their names do not tell."""
    licence: str = ""
    """SPDX identifier of the rows' licence, for files of your own."""
    limit: int | None = None
    """Read at most this many rows."""
    list: bool = False
    """Show the known sources: id, licence, files, columns."""
    json: bool = False
    """Print the counts (or the list) as JSON."""

    def run(self) -> int:
        from dice.commands.sources import run

        return run(self)


@dataclass
class Inspect:
    """Look at a data set: what it holds, how long, how fast, some of it whole. Problems alone are audited instead.

    An audit finds problems that are broken, or can be passed without doing the work; exit code 1 when it rejects any.
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH", help_behavior_hint="")]
    """Files or folders: samples, tables of pairs or problems (.parquet, .arrow, .json, .jsonl), task files."""
    html: Path | None = None
    """Also write the glance to this page: one file, which needs no network."""
    show: int = 3
    """Random samples to show whole."""
    tokenizer: str = "nano"
    """The model whose tokenizer counts tokens: nano, a folder, or an id on the Hugging Face hub."""
    audited: Path | None = None
    """Report of an earlier audit, whose findings to show with the set."""
    audit: Literal["auto", "always", "never"] = "auto"
    """auto audits a set of problems alone that no earlier audit is given for; the options below are for the audit."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Write NAME.json and NAME.md; NAME.jsonl beside them keeps what is done, and an interrupted run resumes there."""
    column: str = ""
    """Column of a table that holds the source text of problems (default: the first of the usual names it has)."""
    protocol: Literal["dice", "kernelbench", "kernelbench-v0"] = "dice"
    """Whose comparison candidates will be judged by: an answer without work that passes it is a reason to reject."""
    backend: Backend = "auto"
    """Where references run: cuda (a GPU), or emulated (the CPU, where large problems are audited at smaller sizes)."""
    workers: int = 1
    """Problems audited at once."""
    quick: bool = False
    """Leave out the looks at inputs and parameters one by one."""
    timeout: float = 60.0
    """Seconds for one problem; a larger one is audited at smaller sizes, so that it fits."""
    memory_mb: int = 4096
    """Host memory for one problem."""
    seed: int = 0
    """Of the random samples, and of the audit."""
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        from dice.commands.inspect import run

        return run(self)


@dataclass
class Asking:
    """An OpenAI-compatible endpoint, and how much of it may be used."""

    base_url: str = ""
    """Where the endpoint is, e.g. http://localhost:8000/v1."""
    model: str = ""
    """The model's name there."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key; a local endpoint needs none."""
    concurrency: int = 8
    """Requests under way at once."""
    requests_per_minute: int = 0
    """0: no limit but the endpoint's."""
    tokens_per_minute: int = 0
    """0: no limit but the endpoint's."""
    price_in: float = 0.0
    """USD for a million tokens of prompts."""
    price_out: float = 0.0
    """USD for a million tokens of answers."""
    max_cost: float = 0.0
    """USD that all runs of one output folder may cost; nothing is sent that might exceed it. 0: no limit."""
    temperature: float = 1.0
    max_tokens: int = 8192
    """Longest answer, in tokens."""


@dataclass
class Teach(Asking):
    """Ask a teacher for kernels, and keep those whose speed-up is confirmed. A killed run goes on where it was."""

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PROBLEM", help_behavior_hint="")] = ()
    """Problem files, folders of them, or .parquet, .json and .jsonl tables with a source column."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("taught")
    """Folder for candidates.parquet, kept.parquet, report.json, and the logs that a killed run goes on from."""
    samples: int = 1
    """Candidates for each problem."""
    prompt: Literal["one-shot", "zero-shot"] = "one-shot"
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
        from dice.commands.teach import run

        return run(self)


@dataclass
class DifficultyCommand(Asking):
    """Label problems single, fusion or model, and put them in the order from easy to hard.

    By a look at what each runs; or, given --base-url and --model, by asking a teacher, with the offline labels beside.
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="SET", help_behavior_hint="")] = ()
    """Sets of samples, problem files, folders of them, or tables with a source column."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Parquet file for the labelled set; files beside it keep what is done, and an interrupted run resumes there."""
    workers: int = os.cpu_count() or 1
    """Problems run at once."""
    temperature: float = 0.0
    max_tokens: int = 2048
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        from dice.commands.difficulty import run

        return run(self)


@dataclass
class Data:
    """Make training data, and look at the problems it is made from."""

    command: (
        Annotated[Synth, subcommand("synth", description=Synth.__doc__)]
        | Annotated[Import, subcommand("import", description=Import.__doc__)]
        | Annotated[Inspect, subcommand("inspect", description=Inspect.__doc__)]
        | Annotated[Teach, subcommand("teach", description=Teach.__doc__)]
        | Annotated[DifficultyCommand, subcommand("difficulty", description=DifficultyCommand.__doc__)]
        | Annotated[Bpe, subcommand("tokenizer", description=Bpe.__doc__)]
    )

    def run(self) -> int:
        return self.command.run()


@dataclass
class Sft:
    """Supervised fine-tuning by block diffusion (paper Eq. 2)."""

    arguments: Annotated[Positional[tuple[str, ...]], arg(metavar="[--recipe NAME] [--FIELD VALUE]")] = ()
    """A named configuration (dice/recipes.py), then any of its fields; `dice train sft --help` lists them."""

    def run(self) -> int:
        from dice.commands.train import sft

        return sft(list(self.arguments))


@dataclass
class Train:
    """Train a model."""

    command: Annotated[Sft, subcommand("sft", description=Sft.__doc__)]

    def run(self) -> int:
        return self.command.run()


@dataclass
class BenchVerify:
    """Measure builds and verdicts a minute: ours against PyTorch's stock load_inline, same candidates, same run."""

    candidates: int = 96
    """Distinct kernels to build and verify."""
    workers: int = os.cpu_count() or 1
    """At once, ours and stock alike."""
    stock_candidates: int = 16
    """How many of them the stock path builds too: it takes over a minute for each."""
    stock_alone: int = 1
    """How many the stock path verifies one at a time."""
    alone: int = 8
    """Further kernels that ours verifies one at a time."""
    seed: int = 2026
    backend: Backend = "auto"
    budget: float = 400.0
    """Seconds after which the stock path is stopped; what it had finished counts."""
    out: Path | None = None
    """Folder for bench_verify.json and bench_verify.svg. An interrupted run resumes here."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from dice.commands.bench import verify

        return verify(self)


@dataclass
class BenchCommand:
    """Measure what this machine does: `dice bench verify --help`."""

    def run(self) -> int:
        raise UserError("Say what to measure: dice bench verify.")


Command = OmitSubcommandPrefixes[
    OmitArgPrefixes[
        Annotated[Generate, subcommand("generate", description=Generate.__doc__)]
        | Annotated[Verify, subcommand("verify", description=Verify.__doc__)]
        | Annotated[Doctor, subcommand("doctor", description=Doctor.__doc__)]
        | Annotated[Data, subcommand("data", description=Data.__doc__)]
        | Annotated[Train, subcommand("train", description=Train.__doc__)]
        | Annotated[BenchCommand, subcommand("bench", description=BenchCommand.__doc__)]
    ]
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"dice {dice.__version__}")
        return 0
    try:
        return _parse(arguments).run()
    except UserError as error:
        return _say(error, 2)
    except MachineError as error:
        return _say(error, 3)
    except KeyboardInterrupt:
        # Python remembers an interrupt that left text run by exec() and kills itself with SIGINT at exit; running
        # another text to its end clears that memory, so that the exit code says 130 wherever Ctrl-C landed.
        exec("")
        return _say("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"cannot write: {error.strerror}{where}.", 3)


def _parse(arguments: list[str]) -> Generate | Verify | Doctor | Data | Train | BenchCommand | BenchVerify | Sft:
    if arguments[:2] == ["bench", "verify"]:  # tyro makes no subcommand of an only choice
        return tyro.cli(BenchVerify, prog="dice bench verify", description=BenchVerify.__doc__, args=arguments[2:])
    if arguments[:2] == ["train", "sft"]:  # its flags are those of the chosen recipe, which only that command knows
        return Sft(tuple(arguments[2:]))
    return tyro.cli(Command, prog="dice", description=dice.__doc__, args=arguments or ["--help"])  # type: ignore[return-value]


def _say(message: object, code: int) -> int:
    print(f"dice: {message}", file=sys.stderr)
    return code
