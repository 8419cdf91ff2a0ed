"""The arguments of `dice data ...`; their docstrings are the help texts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand

Backend = Literal["auto", "cuda", "emulated"]


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
    """Processes that draw pairs, and candidates verified at once; what is written does not depend on it."""
    backend: Backend = "auto"
    verify: bool = True
    """Verify each pair; without it, pairs are only drawn and checked for whole syntax."""
    prose_free: bool = False
    """Also write each training pair without docstrings and comments, so that a model learns to read the code."""
    infill_share: float = 0.0
    """Share of the training pairs to write once more as infilling: the prompt gives the kernel's beginning and end."""
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
    """Tables with prompt and response columns (.parquet, .arrow, .jsonl, .json), folders of them, or texts."""
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
class Endpoint:
    """An OpenAI-compatible endpoint, and how much of it may be used."""

    base_url: str = ""
    """Where the endpoint is, e.g. http://localhost:8000/v1."""
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
    """USD that all calls with one --out may cost together; nothing is sent that might exceed it. 0: no limit."""


@dataclass
class Teach:
    """Ask a teacher for kernels, and keep those whose speed-up is confirmed. A killed run goes on where it was."""

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
        from dice.commands.teach import run

        return run(self)


@dataclass
class DifficultyCommand:
    """Label problems single, fusion or model, and put them in the order from easy to hard.

    By a look at what each runs; or, given --base-url and --model, by asking a teacher, with the offline labels beside.
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="SET", help_behavior_hint="")] = ()
    """Sets of samples, problem files, folders of them, or tables with a source column."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Parquet file for the labelled set; files beside it keep what is done, and an interrupted run resumes there."""
    workers: int = os.cpu_count() or 1
    """Problems run at once."""
    model: str = ""
    """The teacher's name at the endpoint."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    temperature: float = 0.0
    max_tokens: int = 2048
    """Longest answer, in tokens."""
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        from dice.commands.difficulty import run

        return run(self)


@dataclass
class Measure:
    """Verify and time every pair of a set: right or why not, honest or not, how fast. An interrupted run resumes."""

    samples: Annotated[Positional[tuple[Path, ...]], arg(metavar="SAMPLES.parquet", help_behavior_hint="")]
    """Files of samples as `dice data import` writes them, or folders of such files."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """Folder for the samples with their verdicts, and report.json."""
    shard: str = "1/1"
    """Measure the second of eight parts: 2/8. Each machine takes one; the folders together are the whole."""
    backend: Backend = "auto"
    """cuda verifies and times on a GPU; emulated verifies on the CPU and says nothing of speed."""
    workers: int = 0
    """Candidates under way at once; 0 for as many as this machine can compile and run."""
    devices: tuple[str, ...] = ()
    """The GPUs to use, as CUDA_VISIBLE_DEVICES names them; all of them by default."""
    trials: int = 5
    """Fresh inputs to check each pair on."""
    timing: bool = True
    """Time what is correct (cuda backend only): the larger part of the cost."""
    timing_seconds: float = 3.0
    """Time one pair no longer than this; less leaves the speed-up's interval wider."""
    compile_baseline: bool = False
    """Also measure against torch.compile."""
    compile_timeout: float = 120.0
    """Seconds the compiler may take."""
    run_timeout: float = 60.0
    """Seconds a candidate may run."""
    memory_mb: int = 8192
    """Host memory a candidate may use."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.commands.curate import measure

        return measure(self)


@dataclass
class Cuke:
    """Curate the supervised set from measured samples: what is right, honest, fast, and said once (paper section 3).

    Exit code 1 when nothing is kept.
    """

    measured: Annotated[Positional[tuple[Path, ...]], arg(metavar="MEASURED", help_behavior_hint="")]
    """Folders that `dice data measure` wrote, or files of them."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder for the set: Parquet, JSON, the report and the dataset card."""
    base: tuple[str, ...] = ("concur",)
    """Sources whose correct samples are kept whatever their speed."""
    min_speedup: float = 2.0
    """What pairs of other sources must exceed over eager PyTorch (paper: 2.0; Table 4 also 1.5 and 2.5)."""
    confident: bool = False
    """Hold the lower bound of the speed-up's 95% interval against thresholds, not its point value."""
    concise: bool = False
    """Of a base problem's answers keep one: correct, faster than PyTorch, with the shortest reasoning (ConCuR)."""
    structural: tuple[Path, ...] = ()
    """Measured structural samples: kept when their speed-up is confirmed."""
    benchmarks: tuple[Path, ...] = ()
    """Folders of benchmark problems: what equals or nearly equals one of theirs is dropped."""
    near_duplicate: float = 0.9
    """Similarity of problems and of kernels from which two samples count as one."""
    prompt: Literal["one-shot", "compact"] = "one-shot"
    """The prompt of samples that come without one."""
    dry_run: bool = False
    """Print the report and write nothing."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.commands.curate import cuke

        return cuke(self)


@dataclass
class Rl:
    """Make the two sets of BiC-RL: kernels whose core is to be filled in, and problems to solve, each easy to hard."""

    samples: Annotated[Positional[tuple[Path, ...]], arg(metavar="SAMPLES.parquet", help_behavior_hint="")]
    """Files of samples or folders of them; those with a verdict can become infilling rows, all of them problems."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """Folder for both sets and report.json. An interrupted audit resumes here."""
    infill: int = 992
    """Rows of the infilling set."""
    generate: int = 4000
    """Rows of the generation set."""
    audit: Path | None = None
    """Take audits from the .json report of `dice data inspect`; what it lacks is audited here."""
    benchmarks: tuple[Path, ...] = ()
    """Folders of benchmark problems: what equals or nearly equals one of theirs is dropped."""
    backend: Backend = "auto"
    """Where the audit runs references: cuda (a GPU) or emulated (the CPU)."""
    workers: int = os.cpu_count() or 1
    """Problems audited at once."""
    timeout: float = 60.0
    """Seconds for one problem's audit."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.commands.curate import rl

        return rl(self)


@dataclass
class Structural:
    """Write the structural problems: building blocks of mainstream language models, at several of their dimensions."""

    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder for a file per problem, structural.parquet and index.json."""
    scale: Literal["full", "reduced"] = "full"
    """full: dimensions worth a GPU; reduced: the same text with small ones, for a CPU."""
    family: str = ""
    """Only the problems that mirror this model family, such as "Llama 3"."""
    list: bool = False
    """Print what there is, and write nothing unless --out is given."""
    json: bool = False
    """Print the index as JSON."""

    def run(self) -> int:
        from dice.commands.structural import run

        return run(self)


@dataclass
class Data:
    """Make training data, and look at the problems it is made from."""

    command: (
        Annotated[Synth, subcommand("synth")]
        | Annotated[Import, subcommand("import")]
        | Annotated[Structural, subcommand("structural")]
        | Annotated[Inspect, subcommand("inspect")]
        | Annotated[Measure, subcommand("measure")]
        | Annotated[Cuke, subcommand("cuke")]
        | Annotated[Rl, subcommand("rl")]
        | Annotated[Teach, subcommand("teach")]
        | Annotated[DifficultyCommand, subcommand("difficulty")]
        | Annotated[Bpe, subcommand("tokenizer")]
    )

    def run(self) -> int:
        return self.command.run()
