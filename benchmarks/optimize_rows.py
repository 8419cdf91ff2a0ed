"""What runs of `optimize_gpu.py` found, as one file of rows for the documents.

    python benchmarks/optimize_rows.py OUT.json RUN... --machine "one NVIDIA H200, ..." --command "..." [--note TEXT]

RUN: folders that `optimize_gpu.py` wrote, of one code and one kind of machine; of a problem that several have, the last
one counts. A row is a problem's outcome, speed-up over eager PyTorch, share of the module's time that was replaced, and
what it took; with `--compiled` also torch.compile's time from `compiled_gpu.py`, as a share of eager's in that run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dice.files import JsonObject
from dice.files.atomic import write_json
from dice.files.journal import read_rows

KEPT = ("outcome", "speedup", "kernel_ms", "share", "regions", "replaced", "seconds", "stages", "also", "why")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--note", default="")
    parser.add_argument("--compiled", type=Path, help="what compiled_gpu.py wrote")
    args = parser.parse_args()
    groups: dict[str, dict[str, JsonObject]] = {}
    for run in args.runs:
        for row in read_rows(run / "results.jsonl"):
            group, name = row["problem"].split("/", 1)
            groups.setdefault(group, {})[name] = {key: row[key] for key in KEPT if row.get(key) not in (None, "")}
    for row in read_rows(args.compiled) if args.compiled else ():
        group, name = row["problem"].split("/", 1)
        if "compiled_ms" in row and name in groups.get(group, {}):
            groups[group][name]["compile_speedup"] = row["eager_ms"] / row["compiled_ms"]
    said = {"machine": args.machine, "command": args.command, "note": args.note}
    write_json(args.out, said | {"groups": {group: dict(sorted(rows.items())) for group, rows in groups.items()}})


if __name__ == "__main__":
    main()
