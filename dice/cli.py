"""The `dice` command: what each subcommand takes. Heavy modules load only inside the command that needs them.

Exit codes: 0 yes, 1 no or failed, 2 unusable input, 3 this machine cannot do it (said in one line), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

import dice
from dice.cli_data import Backend, Data, Endpoint
from dice.commands.arguments import numbers
from dice.errors import MachineError, UserError
from dice.terminal import clean, cleaned

Protocol = Literal["dice", "kernelbench", "kernelbench-fp16", "kernelbench-bf16", "kernelbench-v0", "dice-paper"]
MISPLACED = {  # what a path is, or holds, that nothing can be written to
    errno.EEXIST: "is a file, and a folder is needed",
    errno.ENOTDIR: "leads through a file, and a folder is needed",
    errno.EISDIR: "is a folder, and a file is needed",
    errno.ENAMETOOLONG: "is too long a name",
}
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
    prompt: Literal["auto", "compact", "one-shot"] = "auto"
    """The compact prompt of DICE's small models, or KernelBench's one-shot prompt; auto: what the model was taught."""
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
class Report:
    """Show what runs of `dice eval` came to: tables, figures, one page; or one problem of them."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")] = ()
    """Folders that dice eval wrote. The first is what the others are compared with."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder to write to: every format and figure, or the one of --format. Without it the report is printed."""
    protocol: tuple[Protocol, ...] = ()
    """Only these, the strictest first (default: all that judged anything)."""
    format: Literal["terminal", "markdown", "latex", "html"] = "terminal"
    case: str | None = None
    """Show one problem instead, by its name: reference, kernel, verdicts, time against the roofline, trace. "deceptive"
    without a run shows the shipped samples of deceptive kernels."""
    references: bool = True
    """Show the problems' own code beside the kernels. Without it the page can be passed on where problems may not."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        from dice.commands.report import run

        return run(self)


@dataclass
class Doctor:
    """Say what this machine can do, and what is missing for the rest."""

    json: bool = False
    """Print one JSON object instead of text."""

    probe: bool = False
    """Also verify hostile kernels among others (about a minute), and exit with 1 where a promise is not kept."""

    def run(self) -> int:
        from dice.commands.doctor import run

        return run(self)


@dataclass
class Sft:
    """Supervised fine-tuning by block diffusion (paper Eq. 2)."""

    arguments: Annotated[Positional[tuple[str, ...]], arg(metavar="[--recipe NAME] [--FIELD VALUE]")] = ()
    """A named configuration (dice/recipes.py), then any of its fields; `dice train sft --help` lists them."""

    def run(self) -> int:
        from dice.commands.train import sft

        return sft(list(self.arguments))


@dataclass
class Rl:
    """Reinforcement learning on traces, kernels verified as they are written (BiC-RL, paper section 4.2)."""

    arguments: Annotated[Positional[tuple[str, ...]], arg(metavar="[--recipe NAME] [--FIELD VALUE]")] = ()
    """A named configuration (dice/recipes.py), then any of its fields; `dice train rl --help` lists them."""

    def run(self) -> int:
        from dice.commands.train import rl

        return rl(list(self.arguments))


@dataclass
class WatchRun:
    """Show the curves of a training run, SFT or RL, as it goes on."""

    run_folder: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """The run folder (`out`)."""
    once: bool = False
    """Print the curves as they are, and end."""
    png: Path | None = None
    """Write the reward trajectory (of SFT: the loss) to this picture, and end."""
    seconds: float = 5.0
    """Between two looks at the run."""

    def run(self) -> int:
        from dice.commands.curves import run

        return run(self)


@dataclass
class Train:
    """Train a model."""

    command: (
        Annotated[Sft, subcommand("sft")] | Annotated[Rl, subcommand("rl")] | Annotated[WatchRun, subcommand("watch")]
    )

    def run(self) -> int:
        return self.command.run()


@dataclass
class Eval:
    """Evaluate a model on KernelBench, or any problems, under one or several protocols. A killed run goes on.

    An answer is generated once; each protocol judges the same answers, also later: --reverify.
    """

    run_folder: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """With --export-kernelbench: the run to export."""
    model: str = ""
    """nano, a checkpoint's folder or hub id; the model's name with --base-url; what to call it with --answers."""
    row: str = ""
    """A row of the paper's tables, with its model and its settings, e.g. LLaDA-1.5; --model may name local weights."""
    list_rows: bool = False
    """List the rows of the paper's tables, and what runs each."""
    kind: Literal["auto", "native", "endpoint", "answers", "transformers"] = "auto"
    """What answers: our decoder, an endpoint, kernels written elsewhere, or transformers; by default as flags say."""
    answers: Path | None = None
    """Kernels written elsewhere: a KernelBench run folder, a folder of files named as their problems, JSON or JSONL."""
    problems: Path | None = None
    """KernelBench's folder (level1/ level2/ level3/), any folder of problems, or a table with a source column."""
    level: tuple[int, ...] = ()
    """These levels alone."""
    ids: str = ""
    """These numbers alone, of each level: 1-20,33."""
    subset: Path | None = None
    """A file with one problem a line: level1/19_ReLU, a name or a number."""
    limit: int | None = None
    """The first so many problems alone."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("run")
    """The run's folder; the same command goes on where a run was killed."""
    samples: int = 1
    """Answers to each problem; above 1, pass@k is reported."""
    protocol: tuple[Protocol, ...] = ("dice",)
    """How right is judged; several judge the same answers."""
    reverify: Path | None = None
    """Judge the answers of this run under --protocol, and generate nothing."""
    compare: tuple[Path, Path] | None = None
    """Compare two runs problem by problem: the second against the first."""
    export_kernelbench: Path | None = None
    """Write RUN under the one --protocol as KernelBench's files: a .json path is its eval_results.json; a folder gets a
    run folder for each level, kernels included."""
    prompt: Literal["auto", "one-shot", "zero-shot", "few-shot", "compact"] = "auto"
    """KernelBench's one-shot prompt, or a variant; auto is one-shot, and compact for models taught so, as nano."""
    hardware: str = ""
    """State a GPU's facts in the prompt: here, or a name such as "H100 SXM"."""
    seed: int = 0
    max_new_tokens: int | None = None
    """Longest reply, in tokens."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    remasking: Remasking | None = None
    confidence_threshold: float | None = None
    block_size: int | None = None
    setting: tuple[str, ...] = ()
    """Further settings of the model's decoding: steps=512 cfg_scale=1.5 algorithm=origin."""
    batch: int = 0
    """Answers decoded at once; 0: 64 on a GPU, 4 on a CPU."""
    traces: bool = False
    """Keep how each answer was denoised."""
    trust_remote_code: bool = False
    """transformers: run the code that comes with the weights, which may do anything."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    backend: Backend = "auto"
    """Where kernels run: cuda (a GPU), emulated (the CPU), or whichever this machine has."""
    timing: bool = True
    """Time kernels against PyTorch (cuda backend only)."""
    timing_seconds: float = 3.0
    """Spent at most on timing one kernel; shorter leaves the speed-up's interval wider."""
    compile_baseline: bool = False
    """Also time each reference under torch.compile."""
    trials: int = 5
    compile_timeout: float = 120.0
    run_timeout: float = 60.0
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    workers: int | None = None
    """Kernels under way at once, by default as many as this machine's cores and GPUs can take."""
    cache: bool = False
    """Keep verdicts for other runs, and take kept ones: checkpoints of one training give many equal answers."""
    report: Path | None = None
    """Also write the report of this run into this folder: tables, figures, one page (see `dice report`)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        from dice.commands.evaluate import run

        return run(self)


@dataclass
class BenchBaseline:
    """Time KernelBench's references on this GPU, eager and under torch.compile, in KernelBench's own file format."""

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
        from dice.commands.evaluate import baseline

        return baseline(self)


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
class BenchTrain:
    """Measure SFT in tokens a second, MFU and memory: ours against a stock implementation, same weights, same run."""

    shape: Literal["tiny", "nano", "mini", "1.7b", "4b", "8b"] = "1.7b"
    """Sizes and vocabulary of a model with random weights."""
    row_tokens: int = 4096
    batch_rows: int = 8
    """Rows of an optimiser step."""
    micro_rows: int = 2
    """Rows at a time at first; each of the two goes down, and then recomputes blocks, until it fits into memory."""
    rounds: int = 8
    """Steps timed of each, in turns."""
    documents: tuple[int, int] = (512, 4096)
    """Shortest and longest document packed into the rows, in tokens; cut to a row, and to what the model reads."""
    block_size: int = 4
    seed: int = 0
    device: str = "auto"
    """auto, cuda or cpu. Under torchrun, one GPU for each process: sharded, at micro_rows as given, recomputing."""
    out: Path | None = None
    """File for the result as JSON."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from dice.commands.bench_train import train

        return train(self)


@dataclass
class BenchCommand:
    """Measure what this machine does: verify, train or baseline; `dice bench verify --help` and so on."""

    def run(self) -> int:
        raise UserError("Say what to measure: dice bench verify, dice bench train, or dice bench baseline.")


Command = OmitSubcommandPrefixes[
    OmitArgPrefixes[
        Annotated[Generate, subcommand("generate")]
        | Annotated[Verify, subcommand("verify")]
        | Annotated[Eval, subcommand("eval")]
        | Annotated[Report, subcommand("report")]
        | Annotated[Doctor, subcommand("doctor")]
        | Annotated[Data, subcommand("data")]
        | Annotated[Train, subcommand("train")]
        | Annotated[BenchCommand, subcommand("bench")]
    ]
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"dice {dice.__version__}")
        return 0
    try:
        command = _parse(arguments)
        with cleaned():
            numbers(command)
            return command.run()
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
        if error.errno in MISPLACED and error.filename:
            return _say(f"{error.filename2 or error.filename} {MISPLACED[error.errno]}.", 2)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"cannot write: {error.strerror}{where}.", 3)


def _parse(
    arguments: list[str],
) -> (
    Generate
    | Verify
    | Eval
    | Report
    | Doctor
    | Data
    | Train
    | BenchCommand
    | BenchVerify
    | BenchTrain
    | BenchBaseline
    | Sft
    | Rl
):
    if arguments[:2] == ["bench", "verify"]:  # tyro makes no subcommand of an only choice
        return tyro.cli(BenchVerify, prog="dice bench verify", description=BenchVerify.__doc__, args=arguments[2:])
    if arguments[:2] == ["bench", "train"]:
        return tyro.cli(BenchTrain, prog="dice bench train", description=BenchTrain.__doc__, args=arguments[2:])
    if arguments[:2] == ["bench", "baseline"]:
        return tyro.cli(
            BenchBaseline, prog="dice bench baseline", description=BenchBaseline.__doc__, args=arguments[2:]
        )
    if arguments[:2] in (["train", "sft"], ["train", "rl"]):  # their flags are those of the chosen recipe
        flags = tuple(arguments[2:])
        return Sft(flags) if arguments[1] == "sft" else Rl(flags)
    return tyro.cli(Command, prog="dice", description=dice.__doc__, args=arguments or ["--help"])


def _say(message: object, code: int) -> int:
    print(f"dice: {clean(str(message))}", file=sys.stderr)
    return code
