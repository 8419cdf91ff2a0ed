"""What the processes of a verification say to each other: one class for a command, one for a report or an answer.

How they cross a channel, and how far they are believed, stands in `encoding.py`. Fields of type `object` are passed on
as they came, and read by the class that they belong to. Long because all that these processes say to each other is to
be found in one place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from dice.verdict import Backend
from dice.verify.roofline import Ceilings, Work

# The folder below that of a group's inputs with what even a process may see that sees none of them: the constructor's
# arguments.
CONSTRUCTOR = "constructor"
ARGUMENTS, OTHER_ARGUMENTS = "init", "other init"  # their names in it: those that the problem gives, and others

FEW = "a few of another draw"  # the family of a step whose draw is the first that it mixes, but for a few elements
TEXT, NEGATED = "text ", "negated"  # kinds of steps: another text, which follows, and the other truth value
OWN_NUMBERS = "with numbers of its own: "  # begins the family of a step for one candidate, before the numbers
BOTH = "both "  # begins the kind of a step that gives two inputs other values, before their places and kinds, as JSON
CROWDED = "crowded "  # begins the kind of a step whose indices are few, between the two that it names

# ---- both ways ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One trial of a plan. `name` is where its seeds come from.

    `core`: one of the trials that were asked for; the others are extra checks, left out where they do not suit.
    `fresh`: with the second set of parameters; `stretched`: and those are large.
    `index`, `factor`: the input to amplify. `place`, `kind`: the input to give other values of a kind of `steady.py`.
    `number`: the place among KernelBench's seeds. `remark`: the label of who is wrong here, where that is no fault.
    `arguments`: with other arguments of the constructor. `mixes`: the names of two steps, of whose draws one half each,
    or a few elements of the second; or of one, whose draw it is.
    """

    name: str
    family: str
    core: bool = True
    fresh: bool = False
    stretched: bool = False
    index: int = -1
    factor: float = 1.0
    place: int = -1
    kind: str = ""
    number: int = -1
    remark: str = ""
    arguments: bool = False
    mixes: tuple[str, ...] = ()

    @property
    def asks_for_other_mode(self) -> bool:
        """Whether it gives another text or truth value than every draw: what is to be computed may then be another
        thing altogether."""
        kinds = [self.kind]
        if self.kind.startswith(BOTH):
            kinds = [kind for _, kind in json.loads(self.kind.removeprefix(BOTH))]
        return any(kind.startswith(TEXT) or kind == NEGATED for kind in kinds)

    @property
    def own(self) -> tuple[float, ...]:
        """The numbers of the candidate that the step is for alone."""
        is_own = self.family.startswith(OWN_NUMBERS)
        return tuple(map(float, self.family.removeprefix(OWN_NUMBERS).split())) if is_own else ()

    @property
    def crowded(self) -> bool:
        """Whether many indices are equal, which meet in one place."""
        return self.kind.startswith(CROWDED)


@dataclass(frozen=True, slots=True)
class StartTiming:
    """Get ready to be timed on the trial `inputs`, and warm up for so long. The candidate is told which input tensors
    are `salted`, and how many `flushes` of the caches precede a call."""

    inputs: str
    warm_up_s: float
    salted: tuple[int, ...] = ()
    flushes: int = 1


@dataclass(frozen=True, slots=True)
class TimeRound:
    """Time single calls, whose inputs follow from `seed`, and then `idle` calls that begin on an idle device. Answered
    by `RoundTimed`."""

    seed: int
    calls: int
    idle: int


@dataclass(frozen=True, slots=True)
class TimeBlock:
    """Run calls back to back, of a model that does nothing where `empty`. Answered by `BlockTimed`."""

    seed: int
    calls: int
    empty: bool = False


@dataclass(frozen=True, slots=True)
class TimingStarted:
    """`call_ms`, `output_bytes`: of one call. `salted`, `flushes`: for the candidate's `StartTiming`."""

    call_ms: float
    output_bytes: int
    salted: tuple[int, ...] = ()
    flushes: int = 1


@dataclass(frozen=True, slots=True)
class RoundTimed:
    """Milliseconds of each call on the device and on the host, of calls that began on an idle device, and a checksum
    of each output. `bandwidth`: bytes a second of a flush before them. `stalled`: calls waited for memory."""

    ms: tuple[float, ...]
    host_ms: tuple[float, ...]
    idle_ms: tuple[float, ...]
    checksums: tuple[int, ...]
    bandwidth: float = 0.0
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class BlockTimed:
    """`block_ms`: for the whole block, by the clock of the process that ran it."""

    block_ms: float
    checksums: tuple[int, ...]


# ---- to the candidate ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunFile:
    """The first message to a candidate: the kernel file and where things are. `preamble`: source that is run before it
    in the same module. `sanitize`: look at every access, under emulation."""

    backend: Backend
    threads: int
    inputs: str  # folder that it reads
    outputs: str  # folder that it writes
    source: str
    preamble: str
    cache_dir: str
    sanitize: bool


@dataclass(frozen=True, slots=True)
class RunPrograms:
    """The first message to a runner: where things are, as in `RunFile`. `builds`: folder of literals."""

    backend: Backend
    threads: int
    inputs: str
    outputs: str
    builds: str
    cache_dir: str
    sanitize: bool


@dataclass(frozen=True, slots=True)
class Capture:
    """Make the model under `seed` and run it without data, on inputs like the `signature`. `state`: type and shape of
    the reference's parameters and buffers, by name. `literals`: the name of what it writes. `arguments`: the name of
    the constructor's. Answered by `Captured`."""

    seed: int
    signature: object
    state: object
    literals: str
    arguments: str = ARGUMENTS


@dataclass(frozen=True, slots=True)
class TakeProgram:
    """The program to be constructed next, the name of its literals, the paths of the file's libraries, and the file of
    the reference's parameters under the seed of the file's. Answered by `ProgramTaken`."""

    program: object
    literals: str
    libraries: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """Make a context on the device. Answered by `DeviceOpened`."""


@dataclass(frozen=True, slots=True)
class MapMemory:
    """Take the memory that the inputs of this name lie in, and that for outputs, of these sizes in bytes; two open
    files come with it. Answered by `MemoryMapped`."""

    inputs: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseMemory:
    """Let go of all memory that was mapped. Answered by `MemoryReleased`."""


@dataclass(frozen=True, slots=True)
class Construct:
    """Make the model under `seed`, in the dtype `cast`, with the parameters of the file `state`, or of `varied` where
    it takes all of them by name. `arguments`: the name of the constructor's. Answered by `Constructed`."""

    seed: int
    cast: str | None
    state: str
    varied: str
    arguments: str = ARGUMENTS


@dataclass(frozen=True, slots=True)
class RunTrial:
    """One forward. `order`: of the emulator's threads. `repeat`: run it twice. `rng`: from the reference's generator
    states. `asked_back`: input tensors to be written as `left`, as the forward leaves them, and behind these the
    model's buffers `asked_kept`, empty where it has none of a name. Answered by `Ran`."""

    inputs: str
    output: str
    seed: int
    order: int
    repeat: bool
    rng: bool
    asked_back: tuple[int, ...] = ()
    asked_kept: tuple[str, ...] = ()
    left: str = ""


@dataclass(frozen=True, slots=True)
class RunBeside:
    """One forward on a GPU that has other work to do, which goes first; the output is copied before that ends, behind
    the forward on its own stream. All else as in `RunTrial`. Answered by `RanBeside`."""

    inputs: str
    output: str
    seed: int
    rng: bool
    asked_back: tuple[int, ...] = ()
    left: str = ""


@dataclass(frozen=True, slots=True)
class RunMuted:
    """One forward in which the file's kernels do nothing. `sizes`: of the outputs whose samples are to be written as
    `witnesses`, by `sample_seed`. `filled`: what the kernels should fill holds the inputs. Answered by `Muted`."""

    inputs: str
    output: str
    witnesses: str
    seed: int
    sample_seed: int
    sizes: tuple[int, ...]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class RunOften:
    """Many forwards, on these inputs in turns, until one gives another output than the first on the same inputs.
    `seeds`: of the forwards. Answered by `RanOften`."""

    inputs: tuple[str, ...]
    output: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LookAtCalls:
    """Forwards of a program, in which each call is made several times, with the values that it has for `others`.
    `seed`: of the forwards. `far`: with values far from all of these, too. `copies`: what is no copy computes. Answered
    by `CallsLookedAt`."""

    inputs: str
    others: tuple[str, ...]
    seed: int
    far: bool
    copies: bool = False


@dataclass(frozen=True, slots=True)
class ProfileForward:
    """One forward under the profiler. Answered by `Profiled`."""

    inputs: str
    seed: int


@dataclass(frozen=True, slots=True)
class ShowOutput:
    """Write the output of one call of the round before. Answered by `OutputShown`."""

    inputs: str
    output: str
    call: int


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """What became of the build that the candidate asked for under this number. `kind`: "built", or why not."""

    request: int
    kind: str
    path: str = ""
    headers: str = ""
    seconds: float = 0.0
    cached: bool = False
    message: str = ""
    lines: tuple[str, ...] = ()
    log: str = ""


# ---- from the candidate: claims -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The process is ready to load the file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The file was run."""

    has_model: bool


@dataclass(frozen=True, slots=True)
class DeviceOpened:
    pass


@dataclass(frozen=True, slots=True)
class MemoryMapped:
    """`failed`: why it could not be, or ""."""

    failed: str


@dataclass(frozen=True, slots=True)
class MemoryReleased:
    pass


@dataclass(frozen=True, slots=True)
class Constructed:
    """`loadable`: it takes all parameters by the reference's names. `fewer`: it has no room for all of them."""

    loadable: bool
    fewer: bool


@dataclass(frozen=True, slots=True)
class Captured:
    """`program`: see `ipc/program.py`; nothing where there is none, for this `reason`."""

    program: object
    reason: str


@dataclass(frozen=True, slots=True)
class ProgramTaken:
    """`refused`: why it cannot be run, or "". `matched`: the reference's parameters that it has under other names, as
    their values show; `ambiguous`: where several have the same values. `made`: a digest of the other tensors of floats
    that its file made. `in_place`: it is the program of the model before, which goes on with other parameters."""

    refused: str
    matched: tuple[str, ...] = ()
    ambiguous: bool = False
    made: str = ""
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """`launches`: of the file's kernels, by name. `damaged`: writes out of bounds. `changed`, `aliased`: input tensors
    that were written to, or that the output shares memory with. `overlapping`: pairs of output tensors that have memory
    in common, one after the other. `written`, `kept`: parameters and buffers that changed,
    where it was run twice. `on_cpu`: output tensors that are not on the device. `work`: what PyTorch computed.
    `findings`: of the emulator's race detector."""

    launches: dict[str, int]
    damaged: tuple[str, ...]
    changed: tuple[int, ...]
    aliased: tuple[int, ...]
    written: tuple[str, ...]
    kept: tuple[str, ...]
    on_cpu: tuple[int, ...]
    work: object
    overlapping: tuple[int, ...] = ()
    deterministic: bool = False
    overwritten: bool = False
    findings: object = None


@dataclass(frozen=True, slots=True)
class RanOften:
    """`other`: the number of the first call with another output than the first on the same inputs; else 0. What it gave
    was written, or else what the last calls on all inputs did: `places` are theirs, and stand behind `output` in the
    names of what was written."""

    other: int
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RanBeside:
    """`wrote`: the output is written; else the GPU had no memory for other work. `changed`: the input tensors that the
    forward wrote to."""

    wrote: bool
    changed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Muted:
    """`wrote`: the forward came to an end, and its output is written."""

    wrote: bool


@dataclass(frozen=True, slots=True)
class CallsLookedAt:
    """`only_pass`: all calls that matter only pass on, element by element, what they are given."""

    only_pass: bool


@dataclass(frozen=True, slots=True)
class Profiled:
    """Rows of a kernel's name, its calls and its microseconds."""

    times: object


@dataclass(frozen=True, slots=True)
class OutputShown:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    """The file ended in an exception. `outcome` and `stage` are its own classification, `lines` where it happened;
    `build`: the number of the build that was behind it."""

    outcome: str
    stage: str
    type: str
    message: str
    lines: tuple[str, ...]
    build: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Written by the emulator in the moment of a crash: a JSON object with `fault` instead of `event`."""

    fault: str
    message: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """A tripwire's report, sent before the deed is done."""

    notice: str


@dataclass(frozen=True, slots=True)
class Build:
    """A request: have these sources built. Answered by `BuildAnswer` with the same number."""

    name: str
    sources: object
    request: int = 0


# ---- to the reference ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A command for a group, and the names of the open files that come with it. Answered by `Answer`."""

    group: int
    files: tuple[str, ...]
    command: object


@dataclass(frozen=True, slots=True)
class OpenDeviceAs:
    """The first message to a reference process. Answered by `Ready`."""

    backend: Backend


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Take on a problem under one secret. `inputs`: folder for its inputs. Answered by `GroupOpened`."""

    inputs: str
    secret: int
    seed: int
    fresh_seed: int
    source: str
    protocol: str
    scale: float | None
    trials: int
    vary: bool
    limit_s: float
    threads: int
    large_bytes: int
    shares: bool


@dataclass(frozen=True, slots=True)
class ConstructReference:
    """Answered by `ReferenceConstructed`."""


@dataclass(frozen=True, slots=True)
class PlanTrials:
    """Answered by `Planned`."""


@dataclass(frozen=True, slots=True)
class DrawTrial:
    """Draw the step's inputs under the name `inputs`, and run the reference on them, unless that was done before.
    `loadable`: the candidate takes parameters by the reference's names. Answered by `Drawn`."""

    inputs: str
    step: Step
    loadable: bool


@dataclass(frozen=True, slots=True)
class JudgeOutput:
    """Compare what the candidate wrote as `output`, and as `left`. The rest are its claims, see `Ran`. `watched`: what
    it kept was looked at. `precision`: whether it was computed in a shorter format is looked at even where it is
    right. Answered by `Judged`."""

    inputs: str
    output: str
    changed: tuple[int, ...] = ()
    aliased: tuple[int, ...] = ()
    written: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    on_cpu: tuple[int, ...] = ()
    overlapping: tuple[int, ...] = ()
    left: str = ""
    watched: bool = False
    precision: bool = False


@dataclass(frozen=True, slots=True)
class JudgeMuted:
    """What a `RunMuted` with the same values shows. Answered by `MutedJudged`."""

    inputs: str
    output: str
    witnesses: str
    wrote: bool
    sample_seed: int
    filled: bool


@dataclass(frozen=True, slots=True)
class JudgeTimed:
    """Compare the shown output of one timed call. Answered by `Judged`."""

    inputs: str
    output: str
    seed: int
    call: int
    checksum: int


@dataclass(frozen=True, slots=True)
class DescribeWork:
    """Answered by `WorkDescribed`."""


@dataclass(frozen=True, slots=True)
class CountNeededBytes:
    """Answered by `NeededBytes`."""


@dataclass(frozen=True, slots=True)
class MeasureCeilings:
    """Answered by `CeilingsMeasured`."""


@dataclass(frozen=True, slots=True)
class TimeOperators:
    """Time the operators that PyTorch computes in the reference. Answered by `OperatorsTimed`."""


@dataclass(frozen=True, slots=True)
class TimeCompiled:
    """Time the reference under `torch.compile`. Answered by `CompiledTimed`."""


@dataclass(frozen=True, slots=True)
class CloseGroup:
    """Answered by `GroupClosed` when its memory is free."""


# ---- from the reference -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """`held_bytes`: that the group keeps now; `memory_mb`: that the process takes."""

    answer: object
    held_bytes: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Ready:
    pass


@dataclass(frozen=True, slots=True)
class GroupOpened:
    """`scale`: how the inputs shrank. `needed`: bytes on the device for a whole verification. `runs`: the problem came
    to its end on tensors without data."""

    scale: dict[str, Any]
    needed: int
    runs: bool


@dataclass(frozen=True, slots=True)
class ReferenceConstructed:
    """`state`: type and shape of its parameters and buffers, by name. `varying`: those that training would change.
    `state_bytes`: what they take together."""

    state: dict[str, Any]
    varying: tuple[str, ...]
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """`signature`: of the inputs that the problem draws (`transport.signature`). `remarks`: steps for who has passed
    all of the plan. `cheap`: whether another step costs next to nothing."""

    plan: tuple[Step, ...]
    labels: tuple[str, ...]
    signature: object
    remarks: tuple[Step, ...] = ()
    cheap: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """`family`: that was drawn, "" for none that suits. `sizes`: elements of the output tensors. `lent`: bytes of
    memory that came with it as open files, for inputs and outputs. `asked_back`, `asked_kept`: see `RunTrial`.
    `shareable`: small enough to be kept for others. `signature`: of the inputs. `evolves`: the reference's output is
    another in each call."""

    family: str
    shareable: bool
    seed: int = 0
    rng: bool = False
    work: object = None
    input_elements: int = 0
    sizes: tuple[int, ...] = ()
    lent: tuple[int, ...] = ()
    asked_back: tuple[int, ...] = ()
    asked_kept: tuple[str, ...] = ()
    signature: object = None
    evolves: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    equal: bool
    message: str
    errors: tuple[str, ...] = ()
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    labels: tuple[str, ...] = ()
    tolerance: str = ""


@dataclass(frozen=True, slots=True)
class MutedJudged:
    """`kind`: see `execution/evidence.py`."""

    kind: str


@dataclass(frozen=True, slots=True)
class WorkDescribed:
    work: Work


@dataclass(frozen=True, slots=True)
class NeededBytes:
    count: int


@dataclass(frozen=True, slots=True)
class OperatorsTimed:
    """The family and the milliseconds of each operator that computes, in order; empty where they cannot be told."""

    kinds: tuple[str, ...]
    ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CeilingsMeasured:
    ceilings: Ceilings


@dataclass(frozen=True, slots=True)
class CompiledTimed:
    """`no_compiler`: there are no times, since torch.compile finds no C compiler here."""

    ms: tuple[float, ...]
    no_compiler: bool = False


@dataclass(frozen=True, slots=True)
class GroupClosed:
    pass


@dataclass(frozen=True, slots=True)
class ReferenceFault:
    """The command could not be answered. `machine`: this machine is at fault, and not the problem. `broken`: the
    process can do no more on its device. `lacks_memory`: of the GPU. `spoiled`: so that the group is of no more use.
    `own`: the problem's own code fails so on any machine."""

    message: str
    machine: bool = False
    broken: bool = False
    lacks_memory: bool = False
    spoiled: bool = False
    own: bool = False


# ---- other children -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compile:
    """To a builder. Answered by `Compiled`."""

    cache_dir: str
    sources: object
    backend: Backend
    scratch: str
    arch: str
    timeout_s: float
    sanitize: bool


@dataclass(frozen=True, slots=True)
class Compiled:
    """`kind`: "built", or why not. `headers`: "slim", "split" or "full". `foreign`, `word`, `variable`: see
    `build.sources.Foreign`."""

    kind: str
    message: Annotated[str, 16 << 10] = ""
    lines: tuple[str, ...] = ()
    log: Annotated[str, 64 << 10] = ""
    headers: str = ""
    foreign: str = ""
    word: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True)
class PrepareShared:
    """Build what all candidates share. Answered by `SharedPrepared` or `PrepareFailed`, after a `SharedBuilding` for
    each part that was not there."""

    backend: Backend
    cache_dir: str
    headers: str


@dataclass(frozen=True, slots=True)
class SharedBuilding:
    """A part is being built. `what`: which one, for the log."""

    what: str


@dataclass(frozen=True, slots=True)
class SharedPrepared:
    """`identity`: hash of all that decides how sources are built; `visible`: paths that a builder reads."""

    identity: str
    arch: str
    visible: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    message: str


@dataclass(frozen=True, slots=True)
class ReadText:
    """To the examiner, which has `cpu_s` seconds of processor time. Answered by `TextRead`."""

    source: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class TextRead:
    report: object
    literals: object


@dataclass(frozen=True, slots=True)
class ReplayedBuild:
    """What a candidate had built, and what it was told of that."""

    sources: object
    answer: BuildAnswer


@dataclass(frozen=True, slots=True)
class Target:
    """A candidate to be run once more under a tool: what it was told."""

    file: RunFile
    construct: Construct
    trial: RunTrial
    builds: tuple[ReplayedBuild, ...]


@dataclass(frozen=True, slots=True)
class Sanitize:
    """Run `target` under each tool of the `program`. Answered by `Sanitized`."""

    program: str
    folder: str
    target: Target
    kernels: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True, slots=True)
class Sanitized:
    """`failed`: by tool, why it came to no end."""

    findings: object
    failed: dict[str, str]
