"""KernelBench's own problems under the audit, beside an earlier and cruder count of the same thing.

    dice data inspect KernelBench/level1 KernelBench/level2 KernelBench/level3 \\
        --timeout 25 --memory-mb 15000 -o benchmarks/audit/kernelbench.json
    python benchmarks/kernelbench_audit.py benchmarks/audit/kernelbench.json

prints, for each list of the earlier count, what both found and what only one did. The earlier count ran every problem
at batch size 2 and all other sizes as they are, and took the reference's output for other inputs as the answer that
never reads its inputs. The audit keeps what fits its limits (it shrinks the batch only as far as it must), and its
answer is the mean over four outputs, which is nearer to all of them than they are to each other.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

Numbers = dict[int, set[int]]

STRICT: Numbers = {1: {23}, 2: {9, 23, 36, 38, 42, 45, 65, 80, 83}, 3: {3, 7, 11, 12, 18, 28}}
LOOSE: Numbers = {
    1: {6, 23, 37, 39, 49, 53, 98},
    2: STRICT[2] | {8, 10, 22, 44, 49, 56, 58, 64, 66, 67, 77, 84, 89, 91, 96, 99},
    3: STRICT[3] | {4, 5, 35, 46, 47},
}
EARLIER: dict[tuple[str, str], Numbers] = {  # (answer, protocol)
    ("input_free", "kernelbench"): STRICT,
    ("input_free", "kernelbench-v0"): LOOSE,
    ("zeros", "kernelbench"): {1: {23}, 2: {9, 23, 38, 80, 83}, 3: set()},
    ("identity", "kernelbench"): {1: {19, 20, 31, 32}, 2: set(), 3: set()},
    ("identity", "kernelbench-v0"): {1: {19, 20, 31, 32}, 2: {51}, 3: set()},
}


def main(path: Path) -> None:
    report = json.loads(path.read_text())
    unfinished = {
        _key(row["name"], row["level"]): [one["kind"] for one in row["findings"]]
        for row in report["audits"]
        if not row["facts"].get("output") or any(one["kind"] == "too_slow" for one in row["findings"])
    }
    for (answer, protocol), earlier in EARLIER.items():
        names = report["summary"]["passes"][protocol][answer]
        now = {_key(name.partition("/")[2], int(name[5])) for name in names}
        then = {(level, number) for level, numbers in earlier.items() for number in numbers}
        print(f"{answer}, {protocol}: {len(then & now)} in both")
        print(f"  only in the earlier count: {_text(then - now)}")
        print(f"  only now: {_text(now - then)}")
        if lost := (then - now) & unfinished.keys():
            print(f"  of the former, not audited to the end: {_text(lost)}")
    print(f"not audited to the end: {_text(set(unfinished))}")


def _key(name: str, level: int) -> tuple[int, int]:
    found = re.match(r"\d+", name)
    assert found, f"{name} is no problem of KernelBench"
    return level, int(found.group())


def _text(keys: set[tuple[int, int]]) -> str:
    levels = {level: sorted(number for one, number in keys if one == level) for level in (1, 2, 3)}
    return "; ".join(f"L{level} {', '.join(map(str, found))}" for level, found in levels.items() if found) or "none"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
