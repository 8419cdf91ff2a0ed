"""Kernels that other people's models wrote and their authors published, and what the verifier says of them, emulated.

    python benchmarks/published_kernels.py pairs --cuda-l1 DIR --leaderboard DIR --kevin DIR --kernelbench DIR --out P
    python benchmarks/published_kernels.py verify P --out V
    python benchmarks/published_kernels.py summary P V [--out FILE.json]

DIR is a clone of deepreinforce-ai/CUDA-L1, anneouyang/KernelBenchLeaderboard, yoenoo/eh_kernelbench and
ScalingIntelligence/KernelBench, and `COMMITS` says what is read from each. Every answer chosen holds a `__global__`
function; each source gives `--count` of them, one of each problem before a second one of any. `verify` can be
interrupted and goes on where it was. Nothing of the clones' text is kept in this repository:
`verifier/published_kernels.json` holds where each answer stands, and what became of it; `judged_by_reading` in it is
written by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dice.files.atomic import write_json
from dice.files.journal import Journal, read_rows
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.reference import scale

COMMITS = {
    "cuda-l1": "51e8356",
    "leaderboard": "170ca79",
    "kevin": "3d3526e",  # the answers were taken out of the tree later
    "kernelbench": "129232e",  # version 0.1, which the third source was asked
}
GPUS = ("3090", "a100", "h100", "h20", "l40")
# PyTorch took what `type()` gives there until some versions ago. Such answers are judged as if they asked as one does
# today: else nothing could be learnt of their kernels.
OLD_DISPATCH = re.compile(r"(AT_DISPATCH_\w+\(\s*\w+)\.type\(\)")
ANSWER = re.compile(r"results/level_(\d)_problem_(\d+)_sample_(\d+)_kernel\.py")
SCALES = (0.25, 0.05, 0.01, 0.002)  # the first that brings one forward of the reference below
SECONDS = 0.15  # or, of networks that do not shrink so far,
MOST_SECONDS = 20.0
RUN_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Published:
    """One answer: where it stands, the problem it is for, and what its authors say of it."""

    name: str
    source: str
    commit: str
    path: str
    level: int
    number: int
    author: str
    problem: str
    kernel: str
    modernised: bool = False
    scale: dict[str, Any] = field(default_factory=dict)  # how the problem was made smaller, to be emulated


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout


def cuda_l1(folder: Path) -> Iterator[Published]:
    """A row has the reference, and the fastest code that was found on a GPU, held to be right by its authors."""
    for gpu in GPUS:
        path = f"optimized_cuda_code/{gpu}.json"
        for line in git(folder, "show", f"{COMMITS['cuda-l1']}:{path}").splitlines():
            row = json.loads(line)
            level, number = row["level_id"], row["task_id"]
            yield Published(
                f"cuda-l1/{gpu}/{level}_{number}",
                "cuda-l1",
                COMMITS["cuda-l1"],
                f"{path}#{level}/{number}",
                level,
                number,
                f"CUDA-L1 on {gpu}",
                row["ref_code"],
                row["custom_code"] or "",
            )


def leaderboard(folder: Path) -> Iterator[Published]:
    """Answers that KernelBench's own evaluation held to be right, in its first version."""
    commit = COMMITS["leaderboard"]
    for row in json.loads(git(folder, "show", f"{commit}:docs/assets/raw_data.json")):
        level, number = row["level"], row["problem_id"] + 1  # it counts from zero
        path = f"docs/assets/solutions/{row['file']}.py"
        problem = git(folder, "show", f"{commit}:docs/assets/problems/l{level}_p{number}.py")
        yield Published(
            f"leaderboard/{row['display_name']}/{level}_{number}/{row['file'][:6]}",
            "leaderboard",
            commit,
            path,
            level,
            number,
            row["display_name"],
            problem,
            row["code"],
        )


def kevin(folder: Path, kernelbench: Path) -> Iterator[Published]:
    """Up to sixteen answers to each problem of level 1, right or not, of which nothing was published but the text."""
    problems = {}
    for path in git(kernelbench, "ls-tree", "-r", "--name-only", COMMITS["kernelbench"], "KernelBench").splitlines():
        found = re.fullmatch(r"KernelBench/level(\d)/(\d+)_.*\.py", path)
        if found:
            problems[int(found[1]), int(found[2])] = path
    for path in git(folder, "ls-tree", "-r", "--name-only", COMMITS["kevin"], "results").splitlines():
        found = ANSWER.fullmatch(path)
        if found is None:
            continue
        level, number, sample = (int(part) for part in found.groups())
        problem = git(kernelbench, "show", f"{COMMITS['kernelbench']}:{problems[level, number]}")
        kernel = git(folder, "show", f"{COMMITS['kevin']}:{path}")
        name = f"kevin/{level}_{number}/{sample}"
        yield Published(name, "kevin", COMMITS["kevin"], path, level, number, "Kevin-32B", problem, kernel)


def chosen(answers: Iterable[Published], count: int) -> Iterator[Published]:
    """`count` answers with CUDA in them, no text twice: one of each problem, then another of each, in a fixed order
    that depends on their texts alone."""
    by_problem: dict[tuple[int, int], dict[str, Published]] = defaultdict(dict)
    for answer in answers:
        key = hashlib.sha256(answer.kernel.encode()).hexdigest()
        if "__global__" in answer.kernel and re.search(r"\bload(_inline)?\s*\(", answer.kernel):
            by_problem[answer.level, answer.number].setdefault(key, answer)
    queues = [[mine[key] for key in sorted(mine)] for _, mine in sorted(by_problem.items())]
    order = sorted(queues, key=lambda mine: hashlib.sha256(mine[0].kernel.encode()).hexdigest())
    rounds = max(map(len, order))
    found = (small(mine[turn]) for turn in range(rounds) for mine in order if turn < len(mine))
    return itertools.islice(filter(None, found), count)


def write_pairs(args: argparse.Namespace) -> None:
    sources = (cuda_l1(args.cuda_l1), leaderboard(args.leaderboard), kevin(args.kevin, args.kernelbench))
    found = [answer for answers in sources for answer in chosen(answers, args.count)]
    args.out.write_text("".join(json.dumps(asdict(answer)) + "\n" for answer in found))
    print(Counter((answer.source, answer.level) for answer in found))


def small(pair: Published) -> Published | None:
    """With its problem at a size that is emulated in seconds; None where it has no such size."""
    kernel = OLD_DISPATCH.sub(r"\1.scalar_type()", pair.kernel)
    pair = replace(pair, kernel=kernel, modernised=kernel != pair.kernel)
    with tempfile.TemporaryDirectory() as folder:
        for seconds in (SECONDS, MOST_SECONDS):
            for factor in SCALES:
                with suppress(scale.TooLarge):
                    source, changes = scale.fit(pair.problem, Path(folder), factor, seconds)
                    return replace(pair, problem=source, scale=changes)
    return None


def verify(args: argparse.Namespace) -> None:
    pairs = [Published(**json.loads(line)) for line in args.pairs.read_text().splitlines()]
    options = Options(timing=False, trials=3, run_timeout_s=RUN_TIMEOUT_S)
    with Journal(args.out, "measurement") as journal, Verifier(backend="emulated", options=options) as verifier:
        done = {row["name"] for row in journal.rows()}
        for pair in pairs:
            if pair.name in done or (args.names and pair.name not in args.names):
                continue
            started = time.monotonic()
            verdict = verifier.verify(Problem(pair.problem, pair.name), Kernel(pair.kernel, pair.name))
            seconds = round(time.monotonic() - started, 2)
            journal.append({"name": pair.name, "seconds": seconds, "verdict": verdict.to_json()})
            print(f"{seconds:6.1f} s {pair.name}: {verdict.outcome} {verdict.message[:160]}", flush=True)


def tables(pairs: list[Published], rows: dict[str, Any]) -> dict[str, Any]:
    """Outcomes and provenance by source, and the reasons for which right kernels were no programs."""
    told: dict[str, Any] = {}
    reasons: Counter[str] = Counter()
    for source in dict.fromkeys(pair.source for pair in pairs):
        verdicts = [rows[pair.name]["verdict"] for pair in pairs if pair.source == source and pair.name in rows]
        right = [verdict for verdict in verdicts if verdict["outcome"] == "correct"]
        told[source] = {
            "chosen": sum(pair.source == source for pair in pairs),
            "judged": len(verdicts),
            "outcomes": dict(Counter(verdict["outcome"] for verdict in verdicts).most_common()),
            "by_construction": sum(verdict["provenance"] == "construction" for verdict in right),
        }
        reasons.update(v["evidence"].get("not_captured", "")[:120] for v in right if v["provenance"] != "construction")
    return told | {"not_captured": dict(reasons.most_common())}


def summarise(args: argparse.Namespace) -> None:
    pairs = [Published(**json.loads(line)) for line in args.pairs.read_text().splitlines()]
    rows = {row["name"]: row for row in read_rows(args.verdicts)}
    result = tables(pairs, rows)
    print(json.dumps(result, indent=1))
    if args.out:
        kept = ("name", "commit", "path", "level", "number", "author")
        result["answers"] = [
            {key: getattr(pair, key) for key in kept} | {"outcome": rows[pair.name]["verdict"]["outcome"]}
            for pair in pairs
            if pair.name in rows
        ]
        before = json.loads(args.out.read_text()) if args.out.exists() else {}
        by_hand = {key: before[key] for key in ("judged_by_reading", "before") if key in before}
        write_json(args.out, {"commits": COMMITS, **result, **by_hand})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    writing = commands.add_parser("pairs")
    for folder in ("--cuda-l1", "--leaderboard", "--kevin", "--kernelbench"):
        writing.add_argument(folder, type=Path, required=True)
    writing.add_argument("--count", type=int, default=90, help="answers of each source")
    writing.add_argument("--out", type=Path, required=True)
    writing.set_defaults(run=write_pairs)
    judging = commands.add_parser("verify")
    judging.add_argument("pairs", type=Path)
    judging.add_argument("--names", nargs="+", help="these alone")
    judging.add_argument("--out", type=Path, required=True)
    judging.set_defaults(run=verify)
    counting = commands.add_parser("summary")
    counting.add_argument("pairs", type=Path)
    counting.add_argument("verdicts", type=Path)
    counting.add_argument("--out", type=Path)
    counting.set_defaults(run=summarise)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
