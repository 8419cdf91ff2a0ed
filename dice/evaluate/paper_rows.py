"""Every row of the paper's Tables 1, 2, 3, 8, 10 and 11: which model, decoded how (appendix A.4.4), and its numbers.

Published numbers are percent, by level: (Exec, fast_1, fast_2). They were measured on other machines, under the
protocol that this project calls `dice-paper`; `without_check` are those of Table 8 without the paper's robust check,
which is `kernelbench-v0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dice.errors import UserError

Kind = Literal["native", "endpoint", "answers", "transformers"]
Numbers = dict[int, tuple[float, float, float]]
DecodingSettings = dict[str, Any]  # options of one kind of model, as a command or a row gives them

AUTOREGRESSIVE, DIFFUSION = "Autoregressive LLMs", "Diffusion LLMs"


@dataclass(frozen=True, slots=True)
class PaperRow:
    """`family`: of native code (`models/native.py`); "" where only `otherwise` can run it. `model`: its id on the hub,
    or its name at the endpoint."""

    name: str
    table: int
    group: str
    type: str  # in the paper's words
    size: str
    model: str
    family: str
    otherwise: Kind
    settings: DecodingSettings
    published: Numbers
    without_check: Numbers = field(default_factory=dict)
    note: str = ""

    def to_json(self) -> dict[str, object]:
        chosen, why = resolve(self)
        return asdict(self) | {"kind": chosen, "why": why}


def _numbers(*values: float) -> Numbers:
    return {level: (values[3 * level - 3], values[3 * level - 2], values[3 * level - 1]) for level in (1, 2, 3)}


_NOTHING = _numbers(*[0.0] * 9)
# Static decoding as SDAR's engine has it: top_k 1 makes every confidence 1, which `compat` reproduces.
_SDAR: DecodingSettings = {
    "remasking": "low_confidence_static", "mode": "compat", "temperature": 1.0, "top_k": 1, "top_p": 1.0,
    "block_size": 4, "max_new_tokens": 4096,
}  # fmt: skip
# "The overall steps are equal to the generation sequence length", which is what a decoder does that is told no steps.
_LLADA: DecodingSettings = {"max_new_tokens": 1024, "block_size": 32, "temperature": 0.0}
# What the paper leaves to "default inference configurations" is as in the authors' own examples.
_DREAM: DecodingSettings = {"max_new_tokens": 1024, "algorithm": "entropy", "top_p": 0.95}
_STABLE_DIFFCODER: DecodingSettings = {
    "remasking": "low_confidence_static", "temperature": 0.0, "block_size": 4, "max_new_tokens": 4096,
}  # fmt: skip
_GREEDY: DecodingSettings = {"max_new_tokens": 4096, "temperature": 0.0}
_THINKING: DecodingSettings = {"max_new_tokens": 32768, "temperature": 0.6, "top_p": 0.95}
_CLOSED: DecodingSettings = {"max_new_tokens": 32768, "temperature": 1.0}
_NOT_STATED = "The paper does not state how this was decoded: greedily here."
_THINKS = "The paper does not state how this was decoded: as its authors recommend here."


ROWS: tuple[PaperRow, ...] = (
    # Table 1: 8B and similar
    PaperRow("Gemini-3-Pro", 1, AUTOREGRESSIVE, "General", "-", "gemini-3-pro-preview", "", "endpoint", _CLOSED,
        _numbers(14, 6, 5, 14, 7, 4, 8, 4, 2), note=_THINKS),
    PaperRow("Claude-Sonnet-4", 1, AUTOREGRESSIVE, "Code", "-", "claude-sonnet-4-20250514", "", "endpoint",
        _CLOSED, _numbers(44, 10, 6, 48, 24, 18, 4, 0, 0), note=_THINKS),
    PaperRow("CUDA-L1", 1, AUTOREGRESSIVE, "Kernel (CUDA)", "671B", "deepreinforce-ai/CUDA-L1", "", "answers", {},
        _numbers(65, 62, 60, 16, 13, 5, 28, 22, 16), note="Its authors publish kernels, not weights."),
    PaperRow("Kevin", 1, AUTOREGRESSIVE, "Kernel (CUDA)", "32B", "cognition-ai/Kevin-32B", "qwen2", "transformers",
        _THINKING, _numbers(47, 18, 9, 63, 22, 11, 44, 10, 6), note=_THINKS),
    PaperRow("Deepseek-Coder-Instruct-v1.5", 1, AUTOREGRESSIVE, "Code", "7B",
        "deepseek-ai/deepseek-coder-7b-instruct-v1.5",
        "llama", "transformers", _GREEDY, _numbers(13, 2, 0, 7, 2, 1, 0, 0, 0), note=_NOT_STATED),
    PaperRow("Qwen2.5-Coder-Instruct-7B", 1, AUTOREGRESSIVE, "Code", "7B", "Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2",
        "transformers", _GREEDY, _numbers(15, 1, 1, 0, 0, 0, 4, 0, 0), note=_NOT_STATED),
    PaperRow("Seed-Coder-Reasoning", 1, AUTOREGRESSIVE, "Code", "8B", "ByteDance-Seed/Seed-Coder-8B-Reasoning", "llama",
        "transformers", _THINKING, _numbers(0, 0, 0, 2, 0, 0, 0, 0, 0), _numbers(2, 2, 2, 4, 0, 0, 2, 0, 0), _THINKS),
    PaperRow("Qwen3-8B", 1, AUTOREGRESSIVE, "Reasoning (General)", "8B", "Qwen/Qwen3-8B", "qwen3", "transformers",
        _THINKING, _numbers(8, 1, 0, 25, 11, 6, 4, 2, 2), note=_THINKS),
    PaperRow("cudaLLM", 1, AUTOREGRESSIVE, "Reasoning (CUDA)", "8B", "ByteDance-Seed/cudaLLM-8B", "qwen3",
        "transformers", _THINKING, _numbers(46, 12, 7, 34, 12, 6, 6, 4, 0), note="32,768 tokens (appendix A.5)."),
    PaperRow("Mercury-Coder-Small", 1, DIFFUSION, "Code", "-", "mercury-coder-small", "", "endpoint",
        _CLOSED | {"max_new_tokens": 4096, "temperature": 0.0}, _numbers(26, 16, 4, 44, 22, 9, 24, 12, 10),
        note=_NOT_STATED),
    PaperRow("LLaDA-Instruct", 1, DIFFUSION, "General", "8B", "GSAI-ML/LLaDA-8B-Instruct", "llada", "transformers",
        _LLADA, _numbers(2, 0, 0, 0, 0, 0, 0, 0, 0), _numbers(2, 0, 0, 13, 8, 3, 26, 0, 0)),
    PaperRow("LLaDA-1.5", 1, DIFFUSION, "General", "8B", "GSAI-ML/LLaDA-1.5", "llada", "transformers", _LLADA,
        _numbers(1, 0, 0, 0, 0, 0, 0, 0, 0), _numbers(2, 0, 0, 10, 2, 0, 28, 8, 2)),
    PaperRow("Dream-v0-Instruct", 1, DIFFUSION, "General", "7B", "Dream-org/Dream-v0-Instruct-7B", "dream",
        "transformers",
        _DREAM | {"temperature": 0.2}, _numbers(2, 0, 0, 0, 0, 0, 2, 2, 2), _numbers(2, 0, 0, 3, 2, 1, 10, 6, 6)),
    PaperRow("SDAR-Chat-8B", 1, DIFFUSION, "General", "8B", "JetLM/SDAR-8B-Chat", "sdar", "transformers", _SDAR,
        _numbers(6, 2, 1, 2, 0, 0, 0, 0, 0), _numbers(9, 3, 2, 5, 1, 0, 22, 2, 0)),
    PaperRow("WeDLM", 1, DIFFUSION, "General", "8B", "tencent/WeDLM-8B-Instruct", "", "endpoint",
        {"max_new_tokens": 4096, "temperature": 0.2}, _numbers(14, 1, 1, 1, 0, 0, 0, 0, 0),
        note="Served by its own engine, wedlm."),
    PaperRow("DiffuCoder-Instruct", 1, DIFFUSION, "Code", "7B", "apple/DiffuCoder-7B-Instruct", "dream", "transformers",
        _DREAM | {"temperature": 0.3}, _numbers(1, 0, 0, 0, 0, 0, 0, 0, 0),
        _numbers(12, 6, 4, 46, 25, 13, 44, 24, 0)),
    PaperRow("Dream-Coder-v0-Instruct", 1, DIFFUSION, "Code", "7B", "Dream-org/Dream-Coder-v0-Instruct-7B", "dream",
        "transformers", _DREAM | {"temperature": 0.1}, _numbers(1, 1, 0, 8, 8, 5, 6, 0, 0)),
    PaperRow("Stable-DiffCoder", 1, DIFFUSION, "Code", "8B", "ByteDance-Seed/Stable-DiffCoder-8B-Instruct",
        "stable-diffcoder", "transformers", _STABLE_DIFFCODER, _numbers(27, 7, 4, 5, 4, 1, 10, 6, 2)),
    PaperRow("Trado-Instruct-8B", 1, DIFFUSION, "Code & Math", "8B", "Gen-Verse/TraDo-8B-Instruct", "sdar",
        "transformers", _SDAR, _numbers(4, 2, 0, 2, 0, 0, 6, 4, 0)),
    PaperRow("DICE-8B", 1, DIFFUSION, "Kernel (CUDA)", "8B", "DeadlyKitt3n/DICE-8B", "sdar", "transformers", _SDAR,
        _numbers(47, 15, 6, 35, 19, 1, 14, 6, 6), _numbers(47, 15, 6, 35, 19, 1, 20, 8, 6)),
    # Table 2: 4B and similar
    PaperRow("Llama-3.2-Instruct", 2, AUTOREGRESSIVE, "General", "3B", "meta-llama/Llama-3.2-3B-Instruct", "llama",
        "transformers", _GREEDY, _numbers(1, 0, 0, 0, 0, 0, 0, 0, 0), note=_NOT_STATED),
    PaperRow("SDAR-Chat-4B", 2, DIFFUSION, "General", "4B", "JetLM/SDAR-4B-Chat", "sdar", "transformers", _SDAR,
        _numbers(5, 0, 0, 1, 0, 0, 4, 0, 0)),
    PaperRow("Trado-Instruct-4B", 2, DIFFUSION, "Code & Math", "4B", "Gen-Verse/TraDo-4B-Instruct", "sdar",
        "transformers", _SDAR, _numbers(1, 1, 0, 0, 0, 0, 0, 0, 0)),
    PaperRow("Qwen2.5-Coder-Instruct-3B", 2, AUTOREGRESSIVE, "Code", "3B", "Qwen/Qwen2.5-Coder-3B-Instruct", "qwen2",
        "transformers", _GREEDY, _numbers(0, 0, 0, 1, 1, 1, 0, 0, 0), note=_NOT_STATED),
    PaperRow("Phi-4-Mini-Reasoning", 2, AUTOREGRESSIVE, "Reasoning", "4B", "microsoft/Phi-4-mini-reasoning", "",
        "transformers", _THINKING, _numbers(0, 0, 0, 0, 0, 0, 2, 0, 0), note=_THINKS),
    PaperRow("Qwen3-4B", 2, AUTOREGRESSIVE, "Reasoning", "4B", "Qwen/Qwen3-4B", "qwen3", "transformers", _THINKING,
        _numbers(3, 2, 2, 29, 14, 4, 14, 2, 0), note=_THINKS),
    PaperRow("DICE-4B", 2, DIFFUSION, "Kernel (CUDA)", "4B", "DeadlyKitt3n/DICE-4B", "sdar", "transformers", _SDAR,
        _numbers(27, 13, 4, 24, 15, 9, 12, 6, 4)),
    # Table 3: 1.7B and similar
    PaperRow("Gemma-2-It", 3, AUTOREGRESSIVE, "General", "2B", "google/gemma-2-2b-it", "", "transformers", _GREEDY,
        _NOTHING, note=_NOT_STATED),
    PaperRow("SDAR-Chat-1.7B", 3, DIFFUSION, "General", "1.7B", "JetLM/SDAR-1.7B-Chat", "sdar", "transformers", _SDAR,
        _NOTHING),
    PaperRow("Qwen2.5-Coder-Instruct-1.5B", 3, AUTOREGRESSIVE, "Code", "1.5B", "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "qwen2", "transformers", _GREEDY, _NOTHING, note=_NOT_STATED),
    PaperRow("Deepseek-Coder-Instruct-1.3B", 3, AUTOREGRESSIVE, "Code", "1.3B",
        "deepseek-ai/deepseek-coder-1.3b-instruct", "", "transformers", _GREEDY, _NOTHING, note=_NOT_STATED),
    PaperRow("Qwen3-1.7B", 3, AUTOREGRESSIVE, "Reasoning", "1.7B", "Qwen/Qwen3-1.7B", "qwen3", "transformers",
        _THINKING, _numbers(0, 0, 0, 1, 0, 0, 0, 0, 0), note=_THINKS),
    PaperRow("DICE-1.7B", 3, DIFFUSION, "Kernel (CUDA)", "1.7B", "DeadlyKitt3n/DICE-1.7B", "sdar", "transformers",
        _SDAR, _numbers(24, 12, 3, 6, 3, 2, 10, 6, 4)),
    # Table 10: longer outputs of the models with outputs of a fixed length
    PaperRow("LLaDA-Instruct (4096 tokens)", 10, DIFFUSION, "General", "8B", "GSAI-ML/LLaDA-8B-Instruct", "llada",
        "transformers", _LLADA | {"max_new_tokens": 4096}, _NOTHING),
    PaperRow("LLaDA-1.5 (4096 tokens)", 10, DIFFUSION, "General", "8B", "GSAI-ML/LLaDA-1.5", "llada", "transformers",
        _LLADA | {"max_new_tokens": 4096}, _numbers(0, 0, 0, 1, 0, 0, 0, 0, 0)),
    # Table 11: shorter outputs of cudaLLM
    PaperRow("cudaLLM (4096 tokens)", 11, AUTOREGRESSIVE, "Reasoning (CUDA)", "8B", "ByteDance-Seed/cudaLLM-8B",
        "qwen3", "transformers", _THINKING | {"max_new_tokens": 4096}, _numbers(27, 10, 2, 5, 5, 5, 2, 0, 0)),
)  # fmt: skip

# The families of `dice/model/family.py`; a test holds the two together. Said here too, so that listing rows loads no
# model code.
NATIVE = frozenset(
    {"sdar", "sdar-llama", "sdar-qwen2", "stable-diffcoder", "qwen3", "qwen2", "llama", "llada", "dream"}
)


def find(name: str) -> PaperRow:
    """The row of that name, in any case; also a beginning that only one row has. Raises `UserError`."""
    wanted = name.casefold().strip()
    exact = [row for row in ROWS if row.name.casefold() == wanted]
    found = exact or [row for row in ROWS if row.name.casefold().startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{name!r} may be {', '.join(row.name for row in found)}; give one of them.")
    raise UserError(f"The paper's tables have no row {name!r}; `dice eval --list-rows` shows them.")


def resolve(row: PaperRow) -> tuple[Kind, str]:
    """What can run the row here, and a sentence about it where that is not native code."""
    if row.family in NATIVE:
        return "native", ""
    if row.otherwise == "endpoint":
        return "endpoint", f"{row.name} is asked at an endpoint: give its --base-url."
    if row.otherwise == "answers":
        return "answers", f"{row.name} is judged by the kernels that its authors publish: give --answers."
    return "transformers", (
        f"{row.name} has no native code here: it is run by transformers (extra `baselines`), or at an endpoint that "
        "serves it, given by --base-url."
    )


def endpoint_settings(settings: Mapping[str, Any]) -> tuple[float, int]:
    """Temperature and longest answer, which is all that an endpoint is told."""
    return float(settings.get("temperature", 0.0)), int(settings.get("max_new_tokens", 4096))
