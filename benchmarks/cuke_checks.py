"""What the pipeline should have kept of the pool, found again by other means than its own rules."""

from __future__ import annotations

import difflib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import synth_sample
from cuke_pool import Row

from dice import synth
from dice.data.sample import Sample, read_sets
from dice.kernel import SplitError

BASE = "concur"
THRESHOLD = 2.0
RIGHT = ("right", "slow", "exact copy", "near copy", "look-alike")
ALIKE = 0.7  # of the characters of two kernels that were taken for one: much, seen by other means
SPLIT_PAIRS = 2000
Where = tuple[str, str]  # source, origin


def check(truth: Sequence[Row], folder: Path, place: str) -> dict[str, Any]:
    """Counts, and `broken`: a sentence for each promise that does not hold."""
    known = {_key(row.problem, row.kernel): row for row in truth}
    parts = {"pool": list(read_sets([folder / f"{place}_pool"]))}
    parts["structural"] = list(read_sets([folder / f"{place}_structural"]))
    samples = [(name, sample) for name, found in parts.items() for sample in found]
    broken = [f"{len(truth)} rows in the pool, {len(samples)} after import"] * (len(truth) != len(samples))
    kept = {_where(row): row for row in pq.read_table(folder / "cuke" / "data" / "train.parquet").to_pylist()}
    removed = {_where(row): row for row in pq.read_table(folder / "cuke" / "removed.parquet").to_pylist()}
    report = json.loads((folder / "cuke" / "report.json").read_text())
    total = report["kept"] + sum(rule["rows"] for rule in report["removed"].values())
    if not total == report["rows_in"] == len(samples) or len(kept) != report["kept"]:
        broken.append(f"the report does not add up: {report['rows_in']} in, {total} accounted for, {len(kept)} written")
    groups: dict[int, list[tuple[str, Sample, Row]]] = defaultdict(list)
    for name, sample in samples:
        row = known.get(_key(sample.problem, sample.kernel))
        if row is None:
            broken.append(f"not in the pool: {sample.source} {sample.origin}")
        else:
            groups[row.group].append((name, sample, row))
    expectation: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    texts = {_where_of(sample): sample for _, sample in samples}
    for members in groups.values():
        broken += _check_verdicts(members)
        broken += _check_group(members, kept, removed, texts, expectation, explained)
    broken += _check_rl(folder / "rl", [sample for _, sample in samples], known)
    return {
        "rows": dict(Counter(row.kind for row in truth)),
        "outcomes": _outcomes(groups),
        "synthetic": _synthetic(groups),
        "expectation": dict(expectation),
        "explained": dict(explained),
        "split": _split(),
        "broken": sorted(broken),
    }


def _check_verdicts(members: Sequence[tuple[str, Sample, Row]]) -> list[str]:
    broken = []
    for _, sample, row in members:
        outcome = sample.verdict.outcome if sample.verdict else "none"
        wanted = {"deceptive": "deceptive", **dict.fromkeys(RIGHT, "correct")}.get(row.kind)
        if wanted and outcome != wanted:
            broken.append(f"{row.kind}: verdict {outcome}: {sample.source} {sample.origin}")
        if row.kind == "wrong" and outcome in ("correct", "none"):
            broken.append(f"{row.kind}: verdict {outcome}: {sample.source} {sample.origin}")
    return broken


def _check_group(
    members: Sequence[tuple[str, Sample, Row]],
    kept: dict[Where, Any],
    removed: dict[Where, Any],
    texts: dict[Where, Sample],
    expectation: Counter[str],
    explained: Counter[str],
) -> list[str]:
    """One of the group is kept when one qualifies; else each that qualifies must have a reason that others can see."""
    kind = members[0][2].kind
    fit = [sample for name, sample, _ in members if _qualifies(name, sample)]
    here = [sample for _, sample, _ in members if _where_of(sample) in kept]
    wanted = bool(fit) and kind != "look-alike"
    expectation["keep" if wanted else "leave out"] += 1
    where = f"{kind}: {members[0][1].source} {members[0][1].origin}"
    if len(here) > 1 or (here and not wanted):
        return [f"kept {len(here)} of {where}"]
    if here or not fit:
        return []
    for sample in fit:
        out = removed[_where_of(sample)]
        if out["rule"] == "in_benchmark":
            explained["look-alike" if kind == "look-alike" else "near a benchmark problem"] += 1
            continue
        twins = [texts[place] for place in texts if _cited(place) in out["why"]]
        if out["rule"] not in ("near_duplicate", "exact_duplicate") or not twins:
            return [f"left out by {out['rule']}: {where}"]
        ratio = max(difflib.SequenceMatcher(None, sample.kernel, twin.kernel).ratio() for twin in twins)
        explained["near another pair"] += 1
        if ratio < ALIKE:
            return [f"left out as a twin at {ratio:.0%}: {where}"]
    return []


def _qualifies(part: str, sample: Sample) -> bool:
    verdict = sample.verdict
    if verdict is None or verdict.outcome != "correct" or any("precision" in label for label in verdict.labels):
        return False
    if sample.source == BASE and part == "pool":
        return True
    if verdict.timing is None:
        return False
    return verdict.timing.speedup_low > 1 if part == "structural" else verdict.timing.speedup > THRESHOLD


def _check_rl(folder: Path, samples: Sequence[Sample], known: dict[tuple[str, str], Row]) -> list[str]:
    broken = []
    report = json.loads((folder / "report.json").read_text())
    correct = {sample.kernel for sample in samples if sample.verdict and sample.verdict.correct}
    degenerate = {_norm(row.problem) for row in known.values() if row.kind in ("degenerate", "look-alike")}
    for name in ("infilling", "generation"):
        rows = pq.read_table(folder / f"kernel_{name}.parquet").to_pylist()
        counts = report[name]
        if counts["rows_in"] != counts["kept"] + sum(one["rows"] for one in counts["removed"].values()):
            broken.append(f"the report on {name} does not add up")
        order = [(int(row["level"]), row["score"], row["sample"]) for row in rows]
        if order != sorted(order):
            broken.append(f"{name} is not easy to hard")
        if any(_norm(row["pytorch_code"]) in degenerate for row in rows):
            broken.append(f"{name} has a problem that should be out")
        if len(json.loads((folder / f"kernel_{name}.json").read_text())) != len(rows):
            broken.append(f"{name}: JSON and Parquet differ")
        for row in rows if name == "infilling" else ():
            if row["prefix"] + row["middle"] + row["suffix"] != row["cuda_code"] or row["cuda_code"] not in correct:
                broken.append(f"infilling row {row['id']} is not a correct kernel in three parts")
    return broken


def _split() -> dict[str, Any]:
    """How many synthetic pairs can be split into prefix, core and suffix, and what keeps the others from it."""
    why: Counter[str] = Counter()
    for index in range(SPLIT_PAIRS):
        kernel = synth.generate(1, index).kernel
        try:
            parts = kernel.split()
            why["split"] += parts.prefix + parts.core + parts.suffix == kernel.source
        except SplitError as error:
            why[str(error)] += 1
    return {"pairs": SPLIT_PAIRS, **why}


def _outcomes(groups: dict[int, list[tuple[str, Sample, Row]]]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for members in groups.values():
        for _, sample, row in members:
            found[row.kind][sample.verdict.outcome if sample.verdict else "none"] += 1
    return {kind: dict(outcomes.most_common()) for kind, outcomes in sorted(found.items())}


def _synthetic(groups: dict[int, list[tuple[str, Sample, Row]]]) -> dict[str, Any]:
    """What the untouched pairs say of the corpus that they are a sample of: how many are right, how fast, by family."""
    rows = []
    for sample, row in ((sample, row) for members in groups.values() for _, sample, row in members):
        verdict = sample.verdict
        if row.kind != "right" or verdict is None:
            continue
        known: dict[str, str | float] = {"family": row.family, "style": row.composition.rsplit(" ", 1)[1]}
        known["outcome"] = verdict.outcome
        if verdict.correct and verdict.timing:
            known["speedup"] = round(verdict.timing.speedup, 3)
        rows.append(known | ({} if verdict.correct else {"message": verdict.message, "problem": sample.problem}))
    return synth_sample.report(rows)


def _key(problem: str, kernel: str) -> tuple[str, str]:
    return _norm(problem), _norm(kernel)


def _norm(text: str) -> str:
    return " ".join(text.split())


def _where(row: dict[str, Any]) -> Where:
    return row["source"], row["origin"]


def _where_of(sample: Sample) -> Where:
    return sample.source, sample.origin


def _cited(place: Where) -> str:
    return f"({place[0]} {place[1]})"
