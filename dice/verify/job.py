"""One verification: a candidate stepped through load, construct, trials and timing, its outputs judged by an oracle."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Finding, Stage, Verdict
from dice.verify import claims, endings, sanitizer, shortage, static, timing
from dice.verify.feedback import Feedback
from dice.verify.honesty import MESSAGES
from dice.verify.job_files import JobFiles
from dice.verify.options import Options
from dice.verify.oracles import NEVER, OracleLost, ReferenceFailed, Session, Settings
from dice.verify.place import Place, candidate_limits
from dice.verify.process import Child, ChildEnded, DeadlineExceeded, MachineryError, Message, wait_for
from dice.verify.protocols import KERNELBENCH_SEED, protocol_named
from dice.verify.record import Record, ReferenceBroken, Stop
from dice.verify.sandbox import Limits
from dice.verify.scratch import is_crowded_out
from dice.verify.sources import Sources
from dice.verify.turns import CONTEXT_BYTES, CONTEXTS, Turns

ORDERS = 8  # thread orders the emulator is asked for: forward, reverse, then shuffles
OUTPUT, WITNESSES = "output", "seen"  # what a candidate writes
MOST_BUILDS = 32  # of one job: each costs the supervisor some work, even where it was built before
TIMING_STEP: Message = {"name": "timing", "family": "given", "core": True, "decides": True, "fresh": False}
MUTED_STEP: Message = TIMING_STEP | {"name": "muted", "family": "centred", "core": False, "decides": False}
MUTED_S, SANITIZER_PATIENCE = 10.0, 10  # the latter: times as long may a run take in which every access is looked at
ORACLE_MEMORY = 4  # times the candidate's: it holds inputs, outputs and their float64 versions


class Job:
    """Verifies one pair; `whole`: with the GPU's memory to itself."""

    def __init__(self, place: Place, problem: Problem, kernel: Kernel, options: Options, whole: bool = False):
        self.place, self.backend, self.whole = place, place.backend, whole
        self.shares = place.backend == "cuda" and not whole  # the GPU's memory, with other jobs
        self.problem, self.kernel, self.options = problem, kernel, options
        self.record = Record()
        self.hurt_device = False  # whether something ended badly on the device, so that it should be looked at
        self.short_of_memory = False  # whether it ended for lack of memory, of which others had some
        self.stage: Stage = "load"
        self.protocol = protocol_named(options.protocol)
        self.feedback, self.replay = Feedback(kernel.source), sanitizer.Replay()
        self.loadable = False  # whether the candidate takes parameters by the reference's names
        self.was_killed = False  # by nobody of ours: itself, or the system, which is short of memory

    def run(self, gpu: Turns) -> Verdict:
        """The verdict. Raises `MachineryError` when our own processes were lost."""
        self.gpu = gpu
        self.report = report = static.examine(self.kernel)
        self.record.values = {"deceptions": report.deceptions, "backend": self.backend, "protocol": self.protocol.name}
        self.record.values["lacking"] = self.place.lacking
        self.record.add_labels(*report.labels)
        started = time.monotonic()
        try:
            self._check_static(report)
            try:
                self._check(vary=not self.place.oracles.is_fragile(self.problem))
            except ReferenceBroken as broken:
                if not broken.varied or (self.shares and broken.message == endings.NO_MEMORY):
                    raise Stop("unsupported", "run", f"the problem's own reference failed: {broken.message}") from None
                self._check(vary=False)
            raise AssertionError("a check always ends in a Stop")
        except ReferenceBroken as broken:
            stop = Stop("unsupported", "run", f"the problem's own reference failed: {broken.message}")
            self.hurt_device = True  # the device may be what failed
        except Stop as reached:
            stop = reached
            ended_there = self.stage != "load" and reached.stage in ("run", "time")
            self.hurt_device = ended_there and reached.outcome in endings.HURTING
        self.short_of_memory = self.shares and endings.is_short_of_memory(stop)
        self.record.seconds["total"] = time.monotonic() - started
        self.record.values["findings"] = tuple(self.feedback.findings)
        return self.record.verdict(stop)

    def _check_static(self, report: static.Report) -> None:
        if report.unusable:
            raise Stop("no_kernel", "extract", report.unusable)
        if not report.has_cuda and self.protocol.refuses_kind(report.deceptions):
            raise Stop("deceptive", "static", "the file defines no CUDA kernel: ModelNew computes with PyTorch alone.")

    def _check(self, vary: bool) -> None:
        self.run_left, self.compile_left = self._run_timeout_s, self.options.compile_timeout_s
        self.borrows = False  # whether the candidate holds memory of a trial
        self.builds = 0
        self.record.launches, self.record.idle_trials, self.record.ran_trials = {}, 0, 0
        self.record.values.pop("determinism", None)
        self.record.values |= {"trials": self.options.trials, "trials_passed": 0}
        self.record.add_labels("given_inputs_only" if self.protocol.ours and not vary else "")
        with (
            contextlib.ExitStack() as self.room,  # given back last
            self._open_session(vary) as session,
            JobFiles(self.options.cache_dir) as files,
            self._spawn(files, session) as candidate,
        ):
            self.files, self.session, self.candidate = files, session, candidate
            try:
                self._go_through(vary)
            except Stop as stop:
                session.check_kept()
                raise self._sanitized(stop) from None

    def _go_through(self, vary: bool) -> None:
        self._introduce()
        self._load()
        with self.record.after(self.gpu.together()), self.record.clock("reference"):
            opened = self._reference(self.session.open, varied=False)
        self.record.values["scale"] = opened["scale"]
        # All at once, and before anything is on the GPU: who waits holds nothing that others wait for.
        needed = opened["needed"] + CONTEXT_BYTES * (self.backend == "cuda")
        self.room.enter_context(self.record.after(self.gpu.room(NEVER if self.whole else needed)))
        self._make_context()
        with self._turn(slow=True):
            plan = self._prepare(vary)
        for number, step in enumerate(plan):
            if step["decides"]:
                with self._turn():
                    self._trial(number, step)
        self._conclude()
        self._time()
        self._label(plan)
        with self._turn():
            self._intervene(vary)
            self._profile()
        raise Stop("correct", "done", "")

    def _turn(self, slow: bool = False) -> contextlib.AbstractContextManager[None]:
        """On the GPU, for a step: all who check must be through with theirs before another job can be timed."""
        return self.record.after(self.gpu.turn(self.whole, slow))

    def _sanitized(self, stop: Stop) -> Stop:
        """What compute-sanitizer says of one more run, where that decides; else `stop`, with what it says."""
        if not sanitizer.applies(self.options, self.backend, stop.outcome):
            return stop
        limits, folder = self._limits(self.files, self.session), self.files.root / "sanitizer"
        names = self.kernel.global_functions
        with self.record.after(self.gpu.together()), self.record.clock("sanitize"):
            report = sanitizer.examine(
                self.place.spawner, limits, self.replay, folder, names, self.options.run_timeout_s, (self.candidate,)
            )
        self.record.add_labels(*report.labels)
        found = self.feedback.keep(report.findings)
        if found is None or stop.outcome != "correct":
            errors = (*stop.errors, *self.feedback.sentences, *report.troubles)
            return Stop(stop.outcome, stop.stage, stop.message, errors)
        return Stop("runtime_error", "run", f"{found.kind}: {found.message}.", self.feedback.sentences)

    @property
    def _run_timeout_s(self) -> float:
        looked_at = self.options.sanitize and self.backend == "emulated"
        return self.options.run_timeout_s * (SANITIZER_PATIENCE if looked_at else 1)

    def _open_session(self, vary: bool) -> Session:
        # A run under compute-sanitizer is told of files only.
        lends = self.place.oracles.lends(self.problem) and not self.options.sanitize
        settings = Settings.of(self.problem, self.options, vary, self.place.threads, lends, self.shares)
        memory_mb = ORACLE_MEMORY * self.options.memory_mb
        return self.place.oracles.open(self.place.spawner, settings, memory_mb, self.place.view)

    def _limits(self, files: JobFiles, session: Session) -> Limits:
        view = (*self.place.view, str(session.inputs), str(files.builds))
        return candidate_limits(self.options.memory_mb, view, self.place.oracles.gpu)

    def _spawn(self, files: JobFiles, session: Session) -> Child:
        # Making contexts is what the driver does one at a time; streams need not overlap where nothing is timed.
        one_queue = not (self.options.timing and static.may_overlap(self.kernel.source))
        limits = replace(self._limits(files, session), scratch=str(files.outputs), one_queue=one_queue)
        return self.place.spawner.spawn("candidate", asdict(limits))

    def _introduce(self) -> None:
        self.replay.spec = {
            "backend": self.backend,
            "threads": self.place.threads,
            "inputs": str(self.session.inputs),
            "outputs": str(self.files.outputs),
            "source": self.kernel.source,
            # KernelBench runs both files in one namespace.
            "preamble": "" if self.protocol.ours else self.problem.source,
            "cache_dir": str(self.options.cache_dir),
            "sanitize": self.options.sanitize,
        }
        self._tell(self.replay.spec)

    def _load(self) -> None:
        endings.await_start(self.candidate)
        self.record.values["sandbox"] = self.candidate.sandbox
        built_before = self.record.build_wall  # by an earlier process of this job
        with self.record.clock("load"):
            loaded = self._candidate_says("loaded")
        self.record.seconds["load"] -= self.record.build_wall - built_before
        if not loaded.get("has_model"):
            raise Stop("no_kernel", "extract", "the file defines no class ModelNew.")

    def _make_context(self) -> None:
        self.stage = "run"
        with CONTEXTS, self.record.clock("run"):
            self._tell({"do": "open"})
            self._candidate_says("opened")

    def _prepare(self, vary: bool) -> list[Message]:
        """Both models constructed; the plan of the trials."""
        with self.record.clock("reference"):
            self._reference(self.session.construct, varied=False)
            planned = self._reference(self.session.plan, varied=vary)
        self.record.add_labels(*planned["labels"])
        plan: list[Message] = planned["plan"]
        if not plan[0]["fresh"]:
            self._construct()
        return plan

    def _construct(self, fresh: bool = False) -> None:
        seed, states = self.session.seeds[0], {"state": "state", "varied": ""}
        if fresh:
            seed, states = self.session.seeds[1], {"state": "fresh state", "varied": "fresh state varied"}
        seed, cast = (seed, None) if self.protocol.ours else (KERNELBENCH_SEED, self.protocol.cast)
        command: Message = {"do": "construct", "seed": seed, "cast": cast} | states
        self._tell(command)
        self.replay.construct = command
        with self.record.clock("run"):
            self.loadable = (made := self._candidate_says("constructed")).get("loadable") is True
        self.record.add_labels("fewer_parameters" if made.get("fewer") is True else "")

    def _trial(self, number: int, step: Message) -> None:
        """One step of the plan (`inputs.Step`)."""
        if step["fresh"]:
            self._construct(fresh=True)
        drawn = self._draw(step)
        if not drawn["family"]:
            return
        repeat = self.protocol.ours and "determinism" not in self.record.values and step["family"] == "given"
        repeat = repeat and not drawn.get("lent")  # there may be no memory for a second output
        command = {"do": "trial", "order": number % ORDERS, "repeat": repeat, "rng": drawn["rng"]}
        command |= {"inputs": drawn["name"], "output": OUTPUT, "seed": drawn["seed"]}
        self._tell(command)
        self.replay.trial = command
        with self.record.clock("run"):
            ran = self._candidate_says("ran")
        self.record.note_launches(claims.counts(ran.get("launches")), step["core"], drawn["sizes"])
        if self.protocol.ours and step["decides"]:
            self.record.honesty.note_trial(drawn, ran, self.report.library_families)
        damaged = claims.texts(ran.get("damaged"))
        if damaged:
            raise Stop("runtime_error", "run", f"out-of-bounds write: {damaged[0]}", damaged)
        if repeat:
            self.record.values["determinism"] = ran.get("deterministic") is True
            self.record.add_labels("reuses_output" if ran.get("overwritten") is True else "")
        self._refuse(self.feedback.note_findings(ran.get("findings")))
        parameters = ", other parameters" if step["fresh"] else ""
        where = f"trial {number + 1} ({drawn['family']} inputs{parameters})"
        self._judge(drawn["name"], where, ran, step["family"] == "given")
        self.record.values["trials_passed"] += step["core"]
        if step["fresh"]:
            self._construct()

    def _refuse(self, found: Finding | None) -> None:
        """A race may spare the outputs here and spoil them on another GPU, so it decides."""
        if found is not None:
            raise Stop("runtime_error", "run", f"{found.kind}: {found.message}.", self.feedback.sentences)

    def _draw(self, step: Message) -> Message:
        """The step's inputs, under `name` in the folder of inputs."""
        # Parameters that only a candidate with the reference's names can take make another trial.
        name = step["name"] + " loaded" * (step["fresh"] and self.loadable)
        command = {"do": "trial", "inputs": name, "step": step, "loadable": self.loadable}
        varied = step["family"] != "given" or step["fresh"]
        if self.borrows:  # both sides have let go of the last trial's before there is more
            self._tell({"do": "give back"})
            self._candidate_says("gave back")
            self.borrows = False
        with self.record.clock("reference"):
            drawn = self._reference(lambda: self.session.draw(command, self.candidate), varied) | {"name": name}
        self.drawn = name
        if drawn.get("lent"):
            self.borrows = True
            self._note_borrowed(claims.text(self._candidate_says("borrowed").get("failed", "")))
        return drawn

    def _note_borrowed(self, failed: str) -> None:
        """What a candidate says of mapping what it was lent. Without it, the job runs once more: by files, or alone."""
        if self.shares and shortage.is_named(failed):
            raise Stop("out_of_memory", "run", f"the memory of a large trial could not be mapped: {failed}")
        if failed:
            self.place.oracles.do_not_lend(self.problem)
            raise OracleLost("the memory of a large trial could not be mapped")

    def _label(self, plan: list[Message]) -> None:
        """Steps that decide nothing; each that the kernel fails is a label."""
        for number, step in enumerate(plan):
            if step["decides"]:
                continue
            try:
                with self._turn():
                    self._trial(number, step)
            except Stop:
                self.record.add_labels(f"fails:{step['family']}")

    def _judge(self, name: str, where: str, ran: Message, precision: bool) -> None:
        said: Message = {claim: claims.integers(ran.get(claim)) for claim in ("changed", "aliased", "on_cpu")}
        said |= {"written": claims.texts(ran.get("written"))}
        precision = precision and not any(label.startswith("precision") for label in self.record.values["labels"])
        command = {"do": "judge", "inputs": name, "precision": precision, "output": OUTPUT} | said
        with self.record.clock("compare"):
            judged = self._ask(command, OUTPUT)
        for name in ("max_abs_error", "max_rel_error"):
            values = [value for value in (self.record.values.get(name), judged.get(name)) if value is not None]
            self.record.values[name] = max(values, default=None)
        self.record.add_labels(*judged.get("labels", ()))
        if not judged["equal"]:
            raise self._unless_full(Stop("wrong", "compare", f"{where}: {judged['message']}", tuple(judged["errors"])))

    def _conclude(self) -> None:
        """Right outputs; did the candidate's own kernels make them?"""
        idle, trials = self.record.idle_trials, self.record.ran_trials
        if not idle:
            self._refuse_deception()
            return
        often = "never ran" if idle == trials else f"did not run in {idle} of {trials} trials"
        why = " after its build had failed" if self.record.build_failed else ""
        kinds = self.record.values["deceptions"]
        if not kinds or (idle == trials and not {"torch_only", "never_invoked", "not_in_forward"}.intersection(kinds)):
            self.record.values["deceptions"] = (*kinds, "never_invoked")
        if not self.protocol.refuses_kind(self.record.values["deceptions"]):
            return
        raise Stop("deceptive", "run", f"the outputs are right, but the file's CUDA kernels {often}{why}.")

    def _refuse_deception(self) -> None:
        kind = self.record.honesty.kind() if self.protocol.ours else ""
        if kind:
            self.record.values["deceptions"] = (*self.record.values["deceptions"], kind)
            raise Stop("deceptive", "run", f"{MESSAGES[kind]}.")

    def _intervene(self, vary: bool) -> None:
        """Forwards on new inputs without the file's own kernels. At the very end: garbage may be the process's end."""
        if not self.protocol.ours:
            return
        self.stage = "run"
        drawn = self._draw(MUTED_STEP) if vary else {}
        if not drawn.get("family"):
            drawn = self._draw(MUTED_STEP | {"name": "muted given", "family": "given", "core": True})
        command = {"inputs": drawn["name"], "seed": drawn["seed"], "sizes": drawn["sizes"], "filled": False}
        command |= {"sample_seed": secrets.randbits(31), "output": OUTPUT, "witnesses": WITNESSES}
        self.run_left = min(self.run_left, MUTED_S)
        self.record.honesty.muted = self._mute(command)
        again = self.record.honesty.computes_otherwise and not drawn.get("lent")
        if again and self._mute(command | {"filled": True}) == "copies_inputs":
            self.record.honesty.muted = "copies_inputs"
        self._refuse_deception()

    def _mute(self, command: Message) -> str:
        self._tell(command | {"do": "muted"})
        try:
            with self.record.clock("run"):
                said = self._candidate_says("muted")
        except Stop as stop:
            return f"ended: {stop.message}"[:200]
        command |= {"do": "judge muted", "wrote": said.get("wrote") is True}
        return str(self._ask(command, OUTPUT, WITNESSES)["kind"])

    def _profile(self) -> None:
        """At the very end too, for a profiler that ends the process takes nothing with it then."""
        if not self.options.profile or self.backend == "emulated" or self.replay.trial is None:
            return
        self._tell(self.replay.trial | {"do": "profile", "inputs": self.drawn})
        try:
            said = self._candidate_says("profiled")
        except Stop:
            self.record.add_labels("profile_failed")
            return
        self.record.values["profile"] = claims.gpu_times(said.get("times"))

    def _time(self) -> None:
        if self.backend == "emulated":
            self.record.values["no_timing"] = "emulation says nothing about speed on a GPU"
        elif not self.options.timing:
            self.record.values["no_timing"] = "not asked for"
        else:
            self._measure_by_protocol()

    def _measure_by_protocol(self) -> None:
        """KernelBench's answer stands, whatever is met in its timing: there it is a label."""
        try:
            self._measure()
        except Stop as stop:
            if self.protocol.ours or (self.shares and endings.is_short_of_memory(stop)):
                raise
            self.record.values["no_timing"] = stop.message
            self.record.add_labels(f"timing:{stop.outcome}")

    def _measure(self) -> None:
        self.stage = "time"
        with self._turn():  # the reference runs
            self._draw(TIMING_STEP)
        seconds, cache_dir, compiled = self.options.timing_s, self.options.cache_dir, self.options.compile_baseline
        with self.record.after(self.gpu.alone()), self.record.clock("time"):
            try:
                contest = timing.run(self._ask_oracle, self._ask_candidate, self._check_timed, seconds)
                facts = timing.facts(contest, self._ask_oracle, cache_dir, self.problem.id, compiled)
            except timing.Busy as error:
                if self.shares and isinstance(error, timing.Stalled):
                    raise Stop("out_of_memory", "time", f"{error}.") from None
                self.record.values["no_timing"] = str(error)
                return
            except timing.Malformed as error:
                raise Stop("runtime_error", "time", str(error)) from None
            except timing.Implausible as error:
                self.record.values["deceptions"] = (*self.record.values["deceptions"], error.kind)
                raise Stop("deceptive", "time", f"the kernel's times are not true: {error}") from None
        self.record.values["timing"] = contest.timing(**facts)

    def _ask_oracle(self, step: Message) -> Message:
        return self._ask({"do": "time", "inputs": "timing"} | step)

    def _ask_candidate(self, step: Message) -> Message:
        self._tell({"do": "time", "inputs": "timing", "output": OUTPUT} | step)
        return self._candidate_says("timed")

    def _check_timed(self, step: Message) -> None:
        with self.record.clock("compare"):
            judged = self._ask({"do": "time", "inputs": "timing", "output": OUTPUT} | step, OUTPUT)
        if not judged["equal"]:
            raise Stop("wrong", "compare", f"the timed run: {judged['message']}", tuple(judged["errors"]))

    def _ask(self, command: Message, *values: str) -> Message:
        """The oracle's answer. It is handed the named values that the candidate wrote."""
        with self.files.opened(self.candidate, *values) as files:
            return self._reference(lambda: self.session.ask(command, (self.candidate,), files=files), varied=False)

    def _reference(self, ask: Callable[[], Message], varied: bool) -> Message:
        try:
            return ask()
        except ReferenceFailed as failure:
            raise ReferenceBroken(str(failure), varied) from None

    def _tell(self, message: Message) -> None:
        """Send the candidate something, on its clock: it may never read it, and what it was told of is lost then."""
        started = time.monotonic()
        try:
            self.candidate.send(message, timeout_s=self.run_left)
        except DeadlineExceeded:
            raise self._overdue() from None
        finally:
            self.run_left -= time.monotonic() - started

    def _overdue(self) -> Stop:
        return Stop("timeout", self.stage, f"the kernel file ran for over {self._run_timeout_s:g} s.")

    def _candidate_says(self, event: str) -> Message:
        """The candidate's next report of this kind. What it asks to be built meanwhile counts on the compile clock."""
        while True:
            started = time.monotonic()
            try:
                message = wait_for(self.candidate, (), started + self.run_left)
            except DeadlineExceeded:
                raise self._overdue() from None
            except ChildEnded as end:
                self.was_killed = end.ended.signal == signal.SIGKILL and not end.ended.reason
                raise endings.died(self.candidate, end, self.stage, self.options.memory_mb) from None
            self.run_left -= time.monotonic() - started
            kind = message.get("event")
            if kind == event:
                return message
            self._raise_reported(message)
            if kind == "build":
                self._build(message)
            elif kind != "started":
                self.record.honesty.note(message)

    def _raise_reported(self, message: Message) -> None:
        if "fault" in message:
            text = self.feedback.locate((claims.text(message.get("message", "")),))[0]
            raise self._unless_full(endings.fault(claims.text(message["fault"], 40), text))
        if message.get("event") != "failed":
            return
        build = message.get("build")
        if isinstance(build, int) and build in self.record.failed_builds:
            raise self.record.failed_builds[build]
        raise self._unless_full(endings.reported(message, self.stage))

    def _unless_full(self, stop: Stop) -> Stop:
        """`stop`, unless the disk is full and not of the candidate's own files: then its failure is ours."""
        if is_crowded_out(self.files.root):
            raise MachineryError("there is no space left on the disk for the files of a verification")
        return stop

    def _build(self, message: Message) -> None:
        """Build what the candidate asks for and tell it the result. Only what the builder says decides an outcome."""
        try:
            sources = Sources.from_json(message.get("sources"))
        except ValueError:
            raise Stop("runtime_error", self.stage, "it asked for a build as load_inline never does.") from None
        self.builds += 1
        if self.builds > MOST_BUILDS:
            raise Stop("runtime_error", self.stage, f"it asked for over {MOST_BUILDS} builds.")
        started = time.monotonic()
        others = (self.candidate,)
        left, name = max(1.0, self.compile_left), str(message.get("name"))
        answer = self.place.builds.build(self.place.spawner, sources, name, left, others, self.options.sanitize)
        if answer.built is not None:
            answer = replace(answer, built=self.files.show(answer.built))
        self.replay.note_build(sources.to_json(), answer.to_json())
        self.feedback.note_build(sources, str(answer.built.path) if answer.built else "")
        self.record.build_wall += time.monotonic() - started
        self.record.seconds["compile"] = self.record.seconds.get("compile", 0.0) + answer.seconds
        self.compile_left -= answer.seconds
        if answer.kind == "timeout" or self.compile_left <= 0:
            raise Stop("timeout", "compile", f"compiling took over {self.options.compile_timeout_s:g} s.")
        if answer.kind == "unsupported":  # not the kernel's fault, so no fallback of its own may hide it
            raise Stop("unsupported", "compile", answer.message)
        request = message.get("request")
        if answer.built is not None:
            self.record.values["headers"] = answer.built.headers
        else:
            self.record.build_failed = True
            if isinstance(request, int):
                lines = self.feedback.locate(answer.lines)
                self.record.failed_builds[request] = endings.build_failure(replace(answer, lines=lines))
        self._tell(answer.to_json() | {"request": request})
