"""Writes the table of docs/recipes.md that holds our recipes against the paper's: values come from the dataclasses.

python docs/tools/recipes.py            # rewrites it
python docs/tools/recipes.py --check    # changes nothing; exit code 1 where it is out of date

Every field in which a `dice_*` recipe differs from its `paper_*` one must have a row in `ROWS`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "recipes.md"
sys.path.insert(0, str(ROOT))

from dice.recipes import RL_RECIPES, SFT_RECIPES  # noqa: E402

MARKED = re.compile(r"(<!-- recipes -->)\n.*?(<!-- end -->)", re.DOTALL)
SIZES = ("1_7b", "4b", "8b")
HEAD = ("setting", "paper (text)", "released code", "`paper_*`", "`dice_*`", "why ours differs")


@dataclass(frozen=True)
class Row:
    """What the paper says of a setting, what its code does, and why our recipes do otherwise."""

    paper: str
    code: str
    why: str


ROWS: dict[str, Row] = {
    "sft.noise": Row(
        "t per block (Eq. 2)", "t per sample (`sample`)", "t integrated out: the same mean gradient, smaller weights"
    ),
    "sft.stratified": Row("nothing", "independent draws", "less variance in a batch, each draw distributed as before"),
    "rl.protocol": Row(
        "compiles and runs equivalently", "the same, within 1e-2", "a reward that deception earns teaches deception"
    ),
    "rl.provenance": Row("nothing", "nothing", "only kernels that are known by construction to compute are rewarded"),
    "rl.trials": Row("nothing", "1", "one draw lets wrong kernels pass"),
    "rl.infill_form": Row(
        "core between given prefix and suffix", "the whole file, prefix and suffix only shown",
        "as the text: in a scaffold none of the three deceptions can be written",
    ),
    "rl.infill_prompt": Row("with an example in parts (A.1.1)", "the same", "the reply is begun already"),
    "rl.order": Row(
        "from basic to complex", "in turn, and from the start again", "as the text: no easy problems after the hardest"
    ),
    "rl.policy.minibatch": Row("nothing", "256 rows, a row for each round", "about as many: 64 responses of 4 rounds"),
    "rl.policy.minibatch_unit": Row("nothing", "rows", "updates of one size, however fast responses were denoised"),
    "rl.policy.old_logprobs": Row("nothing", "a pass over all samples", "exact traces have them, to rounding"),
    "rl.policy.fresh_optimizer": Row(
        "nothing", "new AdamW and bfloat16 weights each step", "moments that last, and steps below bfloat16's rounding"
    ),
    "rl.compile_timeout_s": Row("nothing", "180 s for both", "builds take a second here"),
    "rl.run_timeout_s": Row("nothing", "180 s for both", "kernels that hang cost less"),
}  # fmt: skip


def differences() -> dict[str, tuple[Any, Any]]:
    """Field -> (paper_*, dice_*), where any size's recipes differ. Raises `ValueError` where sizes disagree."""
    found: dict[str, tuple[Any, Any]] = {}
    for kind, recipes in (("sft", SFT_RECIPES), ("rl", RL_RECIPES)):
        for size in SIZES:
            paper, ours = (_flat(asdict(recipes[f"{who}_{size}_{kind}"]()), kind) for who in ("paper", "dice"))
            for name in paper:
                pair = (paper[name], ours[name])
                if pair[0] != pair[1] and found.setdefault(name, pair) != pair:
                    raise ValueError(f"{name} differs in one way at one size and in another at {size}")
    return found


def _flat(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}.{name}") if isinstance(value, dict) else {f"{prefix}.{name}": value}
    return flat


def table() -> str:
    found = differences()
    if set(found) != set(ROWS):
        raise ValueError(f"rows and differences are not the same fields: {sorted(set(found) ^ set(ROWS))}")
    lines = [HEAD, ("---",) * len(HEAD)]
    for name, row in ROWS.items():
        paper, ours = (f"`{value}`" for value in found[name])
        lines.append((f"`{name}`", row.paper, row.code, paper, ours, row.why))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def filled() -> str:
    return MARKED.sub(lambda match: f"{match[1]}\n{table()}\n{match[2]}", PAGE.read_text())


def main(check: bool = False) -> int:
    text = filled()
    if text == PAGE.read_text():
        return 0
    if check:
        print("docs/recipes.md is out of date: run python docs/tools/recipes.py")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] == ["--check"]))
