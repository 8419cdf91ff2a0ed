"""The dataset card: a README with the YAML header that the Hugging Face hub reads."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dice.files import JsonObject
from dice.files.markdown import table

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
PARTS = {
    "base": "samples of {base}, correct and honest",
    "structural": "attention and MLP blocks of LLMs, with a confirmed speed-up",
    "fast": "pairs of other sources, correct, honest, and more than {speedup:g}x as fast as eager PyTorch{bound}",
}
KEPT_AS_IS = "samples of {base}, kept as they are: also those that were not verified, or failed"


def card(report: JsonObject, command: str) -> str:
    """Markdown that follows from the report alone."""
    return "\n\n".join((_header(report), *_body(report, command))) + "\n"


def _header(report: JsonObject) -> str:
    stated = [name for name in report["licences"] if name != "not stated"]
    single = len(report["licences"]) == 1 and bool(stated)
    licence = [f"license: {stated[0].lower()}"] if single else ["license: other", "license_name: mixed"]
    size = next((name for most, name in SIZES if report["kept"] < most), "n>1M")
    lines = [
        "---",
        "pretty_name: CuKe",
        *licence,
        "language:",
        "- en",
        "task_categories:",
        "- text-generation",
        "tags:",
        "- code",
        "- cuda",
        "- pytorch",
        "size_categories:",
        f"- {size}",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        "    path: data/train.parquet",
        "---",
    ]
    return "\n".join(lines)


def _body(report: JsonObject, command: str) -> Iterable[str]:
    settings, eager = report["settings"], report["speedup"]["eager"]
    bound = " (the lower bound of its 95% interval)" if settings["confident"] else ""
    words = {"base": ", ".join(settings["base"]) or "no source", "speedup": settings["min_speedup"], "bound": bound}
    yield "# CuKe"
    kept_as_is = sum(count for name, count in report["checked"].items() if name != "correct")
    each = "Each kernel" if not kept_as_is else f"Each of the {report['checked'].get('correct', 0)} that are `correct`"
    yield (
        f"{report['kept']} PyTorch modules with CUDA kernels that replace them, for supervised fine-tuning. {each}"
        " was compiled, run and compared with its module, and does its work in its own CUDA code. Built by DICE from"
        f" {report['rows_in']} rows by the rules of the paper *DICE: Diffusion Large Language Models Excel at"
        " Generating CUDA Kernels* (arXiv 2602.11715, section 3)."
    )
    parts = PARTS | ({"base": KEPT_AS_IS} if settings["keep_base"] else {})
    yield table(
        ("part", "samples", "what"),
        [(part, report["parts"][part], text.format(**words)) for part, text in parts.items()],
    )
    if kept_as_is:
        yield f"Of the base, {kept_as_is} samples are not known to be correct; the column `checked` says which:"
        yield table(("checked", "samples"), report["checked"].items())
    yield "## Columns"
    yield (
        "`prompt`, `response` (published, else written by DICE) and the same as chat `messages`; `problem`, `kernel`,"
        " `reasoning`; `name`, `source`, `origin`, `licence`, `family`, `difficulty`, `part`,"
        " `checked` (the verdict in a word), `id`; `speedup` over eager PyTorch and `speedup_low`, the lower"
        " bound of its 95% interval; `verdict` and `meta` as JSON."
        " `CuKe_dataset.json` holds prompt and response alone."
    )
    yield "## Sources"
    yield table(
        ("source", "rows in", "kept"),
        [(name, counts["in"], counts["kept"]) for name, counts in report["sources"].items()],
    )
    yield "## Licences"
    yield table(("licence", "samples"), report["licences"].items())
    if "not stated" in report["licences"]:
        yield "Rows without a stated licence are not free to use for that: ask their publishers."
    yield "## What was left out"
    removed = report["removed"]
    rows = [(f"`{name}`", one["rows"], one["what"]) for name, one in removed.items()]
    total = sum(one["rows"] for one in removed.values())
    yield table(
        ("rule", "rows", "a row that"), [*rows, ("kept", report["kept"], ""), ("in all", report["rows_in"], "")]
    )
    yield (
        f"{total} rows removed, each counted for the first rule that it breaks; `report.json` has reasons and examples."
    )
    if report["benchmarks"]:
        yield f"Decontaminated against benchmark problems (hash of their fingerprints: `{report['benchmarks']}`)."
    yield "## Speed-up over eager PyTorch"
    buckets = [(name, count, f"{eager['percent'][name]}%") for name, count in eager["buckets"].items()]
    yield table(("speed-up", "samples", "share"), buckets)
    yield f"{eager['values']} samples timed, median {eager['median']}x." if eager["values"] else "No sample was timed."
    yield "## Build it again"
    yield f"```bash\n{command}\n```"
    yield f"Settings: `{json.dumps(settings, sort_keys=True)}`."
