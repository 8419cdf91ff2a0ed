"""What data, size and further training buy: models of several sizes from random weights, or nano trained on.

    PYTHONPATH=. python3 benchmarks/scaling_gpu.py OUT [--seconds 520] [--gpus 0 1 2 3] [--sizes 2m 9m 30m 100m]
    PYTHONPATH=. python3 benchmarks/scaling_gpu.py OUT --start nano --seconds 520

It draws a corpus, trains a model of each size on it, a GPU each and all at once, and evaluates them: one greedy answer,
as written, to the held-out problems of the same draw and to those of `--problems`, then several at a temperature, then
KernelBench's levels 1 and 2. All sizes get the same pairs in the same order, nano's tokenizer, and the same seconds of
training, so that they get equal compute as far as they use their GPUs equally well. Checkpoints at equal numbers of
tokens (powers of two) are kept and evaluated too: running averages of the weights in the middle of a schedule, whose
learning rate stands beside them. It has fallen less for the model that has seen the fewer of its own tokens, so
`--train-tokens N`, in another OUT, trains all to the end of a schedule of N tokens instead.

The learning rate is inversely proportional to the width, which is both what is known of AdamW and what the recipes of
nano and mini say (2e-3 at 384, 1e-3 at 768), and to go on from nano it is that of `runs/nano_wide.sh`, 1.5e-3; both
grow with the square root of the batch over 32 rows. `--start nano` trains on all GPUs, data-parallel, 16 rows each.

After `--seconds` nothing runs any more: what is under way is stopped, and what has too little time is not begun. The
same command goes on (exit code 75: there is more to do), also where a call was killed. Training is shortened, once and
for all, to what leaves this call time to evaluate, unless `--whole` says that another call is to come. Rows go to
OUT/scaling.json as they come. In a new OUT with that file alone, what it says of a model is not found out again.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs import Job, Jobs
from scaling_rows import Kept, Table, line
from scaling_study import ROW_TOKENS, SHIPPED, SIZES, USUAL_TRAIN_S, Study

from dice.errors import UserError
from dice.verify.options import visible_gpus

AGAIN = 75  # the exit code of a run that is not finished
HERE = Path(__file__).parent

# Seconds of a call: from the start of a training to its first step (the pairs are tokenised, blocks compiled), for
# evaluating what it made, for a training to write its checkpoint and end, and for an evaluation to end.
START_S, EVALUATE_S, LEAVE_S, CLOSE_S = 110.0, 120.0, 25.0, 5.0
LEAST_TRAIN_S = 30.0  # of each model


def training_seconds(wanted: float, left: float, rounds: int) -> float:
    """Of each model: `wanted`, or less where the call, which has so many seconds left, must also evaluate. Models are
    trained in `rounds`, one after the other, where there are more of them than GPUs."""
    room = (left - EVALUATE_S) / rounds - START_S
    return max(LEAST_TRAIN_S, min(wanted, math.floor(room)))


class Call:
    """One call: the stages in their order, each until its own deadline."""

    def __init__(self, study: Study, seconds: float, begun: float) -> None:
        self.study, self.deadline = study, begun + seconds
        self.kept = Kept(study)
        self.table = Table(study, self.kept, "cuda" if study.gpus else "emulated")

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self) -> bool:
        """Whether everything is done."""
        self.table.restore()
        self.table.write()
        try:
            return self._train() and self._evaluate()
        finally:
            self.kept.keep()
            print("\n".join(map(line, self.table.write())), flush=True)

    def _train(self) -> bool:
        """Draw the corpus and train. Where a training failed the others count."""
        study = self.study
        lacking = [name for name in study.names if not (study.out / "done" / f"train-{name}").exists()]
        if lacking and not self._jobs([study.corpus()], 1, grace_s=CLOSE_S):
            return False
        if (study.out / "corpus" / "heldout.parquet").exists():
            study.write_table()
        head, side_by_side = self.table.head, 1 if study.args.start else study.slots
        rounds = math.ceil(len(lacking) / side_by_side) or 1
        if head["train_seconds"] is None:
            shortened = training_seconds(study.wanted_seconds, self.left, rounds)
            head["train_seconds"] = study.wanted_seconds if study.args.whole or study.args.train_tokens else shortened
        self._tell(f"each model is trained for {head['train_seconds']:g} s")
        for name in lacking:
            wait_until_free(study.out / "train" / name / ".lock", self.left - START_S)
        jobs = [study.training(name, head["train_seconds"]) for name in study.names]
        early = [
            replace(study.evaluation(name, model), needs=(f"train-{name}",)) for name, model in self._finals().items()
        ]
        more = early if study.args.train_tokens else []  # else all trainings end at once
        self._jobs([*jobs, *more], side_by_side, grace_s=LEAVE_S, together=bool(study.args.start))
        self.kept.keep()
        over = self.table.failed.keys() | {path.name for path in (study.out / "done").iterdir()}
        return {job.name for job in jobs} <= over

    def _finals(self) -> dict[str, Path]:
        return {name: self.study.out / "train" / name / "model" for name in self.study.names}

    def _evaluate(self) -> bool:
        """All models, the most telling figures first."""
        study, out = self.study, self.study.out
        ended = {name: path for name, path in self._finals().items() if (out / "done" / f"train-{name}").exists()}
        finals = {name: path for name, path in ended.items() if path.exists()}  # or it was left on another machine
        if not finals:
            return not self.table.failed
        jobs = [study.evaluation(name, path) for name, path in finals.items()]
        jobs.append(study.evaluation(SHIPPED, "nano"))
        for name, tokens in self.kept.shared():
            if name in finals:
                jobs.append(study.evaluation(f"{name}-{tokens}", self.kept.model(name, tokens)))
        jobs += [study.sampling(name, path) for name, path in finals.items()]
        if study.args.kernelbench:
            jobs += [study.kernelbench(name, path) for name, path in finals.items()]
        return self._jobs(jobs, study.slots, grace_s=CLOSE_S)

    def _jobs(self, jobs: list[Job], parallel: int, *, grace_s: float, together: bool = False) -> bool:
        """Run them until the call has so much time left as they may take to end. `together`: each on all GPUs."""
        gpus = (",".join(self.study.gpus),) if together and self.study.gpus else self.study.gpus
        runner = Jobs(self.study.out, jobs, parallel, gpus, keep_going=True, watch=self._watch)
        done = runner.run(max(0.0, self.left - grace_s - CLOSE_S), grace_s)
        self.table.failed |= runner.failed
        lacking = [job.name for job in jobs if not runner.is_done(job.name)]
        self._tell(f"not done: {', '.join(lacking)}" if lacking else "done")
        return done

    def _watch(self) -> None:
        self.kept.keep()
        self.table.write(at_most_every_s=10.0)

    def _tell(self, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}; {self.left:.0f} s are left", flush=True)


def wait_until_free(lock: Path, seconds: float) -> None:
    """While a training that a killed call left is still ending."""
    import fcntl

    deadline = time.monotonic() + seconds
    while lock.exists() and time.monotonic() < deadline:
        with lock.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.5)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("out", type=Path)
    add("--seconds", type=float, default=520.0, help="of this call, without the start of Python (seconds)")
    add("--gpus", nargs="+", help="by their names in CUDA_VISIBLE_DEVICES; default: all")
    add("--sizes", nargs="+", choices=sorted(SIZES), default=["2m", "9m", "30m", "100m"])
    add("--start", choices=["nano"], help="train nano on, on all GPUs, in place of models from random weights")
    add("--pairs", type=int, default=150_000)
    add("--heldout", type=int, default=240, help="held-out problems of the same draw")
    add("--styles", choices=["plain", "wide"], default="wide")
    add("--seed", type=int, default=303, help="of the corpus")
    add("--train-seconds", type=float, help=f"of each model, over all calls: {USUAL_TRAIN_S:g}, or with --start all")
    add("--train-tokens", type=int, help="of each model, in place of seconds")
    add("--whole", action="store_true", help="do not shorten training for the evaluation's sake: another call comes")
    add("--batch-rows", type=int, help=f"rows of {ROW_TOKENS} tokens a step, a power of two")
    add("--least-tokens", type=int, default=1 << 24, help="the first number of tokens at which checkpoints are kept")
    add("--problems", nargs="+", type=Path, default=[HERE / "plain.jsonl"], help="JSON lines with name and problem")
    add("--kernelbench", type=Path, help="KernelBench's folder of problems, with level1 and level2")
    add("--samples", type=int, default=8, help="answers to each problem at temperature 0.8")
    add("--max-new-tokens", type=int, default=2048)
    add("--backend", choices=["auto", "cuda", "emulated"], default="auto")
    args = parser.parse_args(arguments)
    step = (args.batch_rows or 32) * ROW_TOKENS
    if step & (step - 1) or args.least_tokens & (args.least_tokens - 1) or args.least_tokens < step:
        parser.error("--batch-rows and --least-tokens must be powers of two, and --least-tokens a step at least")
    if args.start and args.whole and not args.train_seconds:
        parser.error("--start with --whole needs --train-seconds: the schedule has to end")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    begun, args = time.monotonic(), parse(arguments)
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    try:
        call = Call(Study(out, args, tuple(args.gpus or visible_gpus())), args.seconds, begun)
        done = call.run()
    except UserError as error:
        print(f"scaling_gpu.py: {error}", file=sys.stderr)
        return 1
    return int(bool(call.table.failed)) or (0 if done else AGAIN)


if __name__ == "__main__":
    sys.exit(main())
