"""A run: answers are generated, stored and judged, each step as soon as it can be. `dice eval` calls this.

What a folder holds is never made again. An answer is on the disk before it is judged; a verdict that says something
about our machinery only (`infra_error`) is not kept, so that the next run tries again. What one backend could not run
(`unsupported`) is judged again where the run goes on with the other.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from dice.errors import MachineError, UserError
from dice.evaluate.hardware import Gpu
from dice.evaluate.models import Answer, Model, Question
from dice.evaluate.prompts import prompt
from dice.evaluate.run_folder import Generation, Judgement, RunFolder, Task
from dice.files import JsonObject
from dice.files.atomic import write_json
from dice.files.journal import held
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import NO_KERNEL, extract_kernel
from dice.verdict import Timing, Verdict
from dice.verify import Options, Verifier
from dice.verify.protocols import protocol_named

LEAVE_S = 5.0  # seconds that a run which is called off waits for the thread that generates
Show = Callable[[str, int, int], None]  # what is done, how many, of how many


@dataclass(frozen=True, slots=True)
class Judging:
    """How answers are judged. `options` under another protocol each. `devices` None: all GPUs.

    `cache`: verdicts are kept for other runs, and taken from them. `make` makes verifiers, as `Verifier` does;
    `elsewhere`: they use no GPU of this machine.
    """

    protocols: tuple[str, ...] = ("dice",)
    backend: str = "auto"
    options: Options = field(default_factory=Options)
    workers: int | None = None
    devices: tuple[str, ...] | None = None
    cache: bool = False
    make: Callable[..., Verifier] = Verifier
    elsewhere: bool = False

    def may_know_more(self, verdict: Verdict) -> bool:
        """Whether it was another backend that could not run the kernel."""
        from dice.verify.options import resolve_backend

        is_open = verdict.outcome == "unsupported" and not self.elsewhere
        return is_open and verdict.backend != resolve_backend(self.backend)

    def verifier(self, protocol: str, without: int | None = None, timed: bool = True) -> Verifier:
        """`without`: a GPU that something else computes on. `timed`: whether timing is done where it is asked for."""
        devices: Sequence[str] | None = self.devices
        if without is not None and not self.elsewhere:
            from dice.verify.options import visible_gpus

            names = visible_gpus()
            devices = [name for name in devices or names if name != names[without]]
        timing = self.options.timing and timed
        options = replace(self.options, protocol=protocol, timing=timing)  # type: ignore[arg-type]
        return self.make(backend=self.backend, options=options, devices=devices, cache=self.cache)


@dataclass(frozen=True, slots=True)
class Done:
    """What one call came to. `untried`: how many answers could not be had, by reason. `faults`: how many our own
    machinery failed to judge, by message."""

    generated: int
    judged: int
    untried: dict[str, int]
    faults: dict[str, int]


def questions(
    tasks: Sequence[Task],
    samples: int,
    variant: str = "one-shot",
    gpu: Gpu | None = None,
    seed: int = 0,
    render: Callable[[str], str] | None = None,
) -> list[Question]:
    """First samples first, so that a run that is cut short has seen every problem. `render`: from a problem's source to
    its prompt, in place of a variant of our own."""
    texts = {task.key: render(task.source) if render else prompt(task.as_problem(), variant, gpu) for task in tasks}
    return [Question(task, number, texts[task.key], seed) for number in range(samples) for task in tasks]


def evaluate(
    folder: RunFolder,
    asked: Sequence[Question],
    make_model: Callable[[], Model],
    judging: Judging,
    *,
    show: Show = lambda what, done, total: None,
) -> Done:
    """Generate what the folder lacks of `asked`, and judge what each protocol has not judged yet.

    The first protocol judges while answers come; the others follow, and take over the times that it measured. Where
    the model computes on the only GPU that kernels would be timed on, judging begins when it is done. `make_model` is
    called only where an answer is lacking. Raises what the model and the verifier raise.
    """
    stored = {one.id for one in folder.generations()}
    total = len(asked) or len(stored)
    lacking = [question for question in asked if question.id not in stored]
    writing = _Writing(folder, lacking, make_model, show)
    first, *others = judging.protocols
    with writing as answers:
        occupied = writing.occupied
        if occupied is not None and judging.options.timing and not _spare_gpu(judging, occupied):
            answers, occupied = iter(list(answers or ())), None
        judged, faults = _judge(folder, first, judging, total, answers, show, occupied)
    for protocol in others:
        more, others_faults = _judge(folder, protocol, judging, total, None, show)
        judged += more
        faults = dict(Counter(faults) + Counter(others_faults))
    return Done(writing.written, judged, writing.untried, faults)


def _judge(
    folder: RunFolder,
    protocol: str,
    judging: Judging,
    total: int,
    coming: Iterator[Generation] | None,
    show: Show,
    occupied: int | None = None,
) -> tuple[int, dict[str, int]]:
    """Judge the stored answers, then those that come. Returns how many were judged, and how many our own
    machinery failed on, by message."""
    judge = _Judge(folder, protocol, judging, total, show)
    stored = folder.generations()
    lacking = [one for one in stored if one.id not in judge.known and one.task in judge.tasks]
    timed_before = [one for one in lacking if one.id in judge.timings]
    untimed = [one for one in lacking if one.id not in judge.timings]
    judge.show_progress()
    if timed_before:
        judge.judge(timed_before, occupied, timed=False)
    if coming is not None:
        seen = {one.id for one in stored}
        judge.judge(chain(untimed, (one for one in coming if one.id not in seen)), occupied)
    elif untimed:
        judge.judge(untimed, occupied)
    return judge.judged, dict(judge.faults)


class _Judge:
    """Judges answers of one run under one protocol, and stores each verdict as it comes."""

    def __init__(self, folder: RunFolder, protocol: str, judging: Judging, total: int, show: Show) -> None:
        self.folder, self.protocol, self.judging, self.total, self.show = folder, protocol, judging, total, show
        self.known = {one.id for one in folder.judgements(protocol) if not judging.may_know_more(one.verdict)}
        self.tasks = {task.key: task.as_problem() for task in folder.tasks()}
        self.timings = _timings(folder, protocol, judging)
        self.judged = 0
        self.faults: Counter[str] = Counter()

    def judge(self, answers: Iterable[Generation], occupied: int | None, *, timed: bool = True) -> None:
        """Judge the answers as they come. `occupied`: a GPU that something else computes on."""
        under_way: list[Generation] = []  # in the order in which the verifier took them
        with self.judging.verifier(self.protocol, occupied, timed) as verifier:
            for place, verdict in verifier.verify_many(self._pairs(answers, under_way), self.judging.workers):
                self._keep(under_way[place], verdict)

    def show_progress(self) -> None:
        self.show(f"judged ({self.protocol})", len(self.known) + self.judged, self.total)

    def _pairs(self, answers: Iterable[Generation], under_way: list[Generation]) -> Iterator[tuple[Problem, Kernel]]:
        """What the verifier is given. An answer without a kernel is, too: then one thread alone stores verdicts."""
        for generation in answers:
            under_way.append(generation)
            yield self.tasks[generation.task], Kernel(generation.kernel_under(self.protocol) or "")

    def _keep(self, generation: Generation, verdict: Verdict) -> None:
        if generation.kernel_under(self.protocol) is None:
            message = generation.error or NO_KERNEL.message
            verdict = replace(verdict, outcome="no_kernel", stage="extract", message=message, errors=())
        if verdict.outcome == "infra_error":
            self.faults[verdict.message] += 1
            return
        if verdict.correct and generation.id in self.timings:
            verdict = replace(verdict, timing=self.timings[generation.id], no_timing="")
        self.folder.add_judgement(self.protocol, Judgement(generation.task, generation.sample, verdict))
        self.judged += 1
        self.show_progress()


def _timings(folder: RunFolder, protocol: str, judging: Judging) -> dict[tuple[str, int], Timing]:
    """Times that this run's other protocols measured on this GPU, of the same kernels on tensors of the same dtypes:
    one measurement serves all, and no two tables differ by its noise."""
    from dice.verify.options import probe_cuda

    found: dict[tuple[str, int], Timing] = {}
    cast = protocol_named(protocol).cast
    alike = [one for one in judging.protocols if one != protocol and protocol_named(one).cast == cast]
    answers = {one.id: one for one in folder.generations()}
    for other in alike if judging.options.timing else ():
        for one in folder.judgements(other):
            timing, answer = one.verdict.timing, answers.get(one.id)
            if answer is None or answer.kernel_under(other) != answer.kernel_under(protocol):
                continue
            if not one.verdict.correct or timing is None or one.verdict.device != probe_cuda()["device"]:
                continue
            if timing.compile_ms or not judging.options.compile_baseline:
                found[one.id] = timing
    return found


def _spare_gpu(judging: Judging, occupied: int) -> bool:
    """Whether a GPU is left to time kernels on, or none is needed."""
    from dice.verify.options import resolve_backend, visible_gpus

    if judging.elsewhere or resolve_backend(judging.backend) != "cuda":
        return True
    names = visible_gpus()
    return any(name != names[occupied] for name in judging.devices or names)


class _Writing:
    """The thread that generates: it stores each answer, then hands it on. Inside the context, and iterated once."""

    def __init__(self, folder: RunFolder, lacking: Sequence[Question], make_model: Callable[[], Model], show: Show):
        self._folder, self._lacking, self._make_model, self._show = folder, lacking, make_model, show
        self._arrived: queue.SimpleQueue[Generation | BaseException | None] = queue.SimpleQueue()
        self._model: Model | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="generate", daemon=True)
        self.written = 0
        self.untried: dict[str, int] = {}

    def __enter__(self) -> Iterator[Generation] | None:
        if not self._lacking:
            return None
        self._model = self._make_model()
        self._thread.start()
        return self._arriving()

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        if self._model is not None:
            self._model.close()
            self._thread.join(LEAVE_S)

    @property
    def occupied(self) -> int | None:
        """The GPU that generating computes on."""
        return None if self._model is None else self._model.gpu

    def _arriving(self) -> Iterator[Generation]:
        while (one := self._arrived.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one

    def _work(self) -> None:
        assert self._model is not None
        total = len(self._lacking)
        try:
            for count, (question, answer) in enumerate(self._model.answer(self._lacking), start=1):
                if self._leaving.is_set():
                    break
                self._take(question, answer)
                self._show("generated", count, total)
        except BaseException as error:  # noqa: B036 - raised again in the caller's thread
            self._arrived.put(error)
        self._model.close()
        self._arrived.put(None)

    def _take(self, question: Question, answer: Answer) -> None:
        if answer.passing:
            self.untried[answer.error] = self.untried.get(answer.error, 0) + 1
            return
        generation = as_generation(question, answer)
        if answer.trace is not None:
            name = f"traces/{question.task.key.replace('/', '__')}_{question.sample}.json"
            write_json(self._folder.path / name, answer.trace)
            generation = replace(generation, trace=name)
        self._folder.add_generation(generation)
        self.written += 1
        self._arrived.put(generation)


def as_generation(question: Question, answer: Answer) -> Generation:
    """An answer as it is stored; its kernel is what is given as such, or else what its text holds."""
    found = answer.kernel
    if found is None and answer.text:
        kernel = extract_kernel(answer.text)
        found = kernel.source if kernel else None
    return Generation(
        question.task.key,
        question.sample,
        answer.text,
        found,
        stop=answer.stop,
        error=answer.error,
        prompt_tokens=answer.prompt_tokens,
        tokens=answer.tokens,
        forwards=answer.forwards,
        seconds=answer.seconds,
        cost=answer.cost,
        more=answer.more,
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[RunFolder]:
    """The run's folder, which no other process writes to meanwhile. Raises `UserError` while one does."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except NotADirectoryError:
        raise UserError(f"{path} is no folder.") from None
    except FileExistsError:
        raise UserError(f"{path} is a file; a run needs a folder.") from None
    with held(path / ".lock", f"Another process is writing to {path}."):
        yield RunFolder(path)


def begin(folder: RunFolder, config: JsonObject, tasks: Sequence[Task]) -> None:
    """Write what is asked, or make sure that it is what the folder was begun for. A run keeps the versions that it was
    begun with. Raises `UserError`."""
    if (folder.path / "run.json").exists():
        config = config | {"versions": folder.config.get("versions")}
    folder.begin(config, list(tasks))


def check_finished(done: Done) -> None:
    """Raises `MachineError` where something is still to be done, by no fault of the model or its kernels."""
    troubles = {**done.untried, **done.faults}
    if troubles:
        message = max(troubles, key=lambda one: troubles[one]).rstrip(".")
        raise MachineError(
            f"{sum(troubles.values())} answers or verdicts are still lacking ({message}); the same command tries again."
        )
