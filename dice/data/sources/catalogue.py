"""What is known of the published data sets: where they are, under which licence, and what their columns are called.

This is data. One reader (`reader.py`) reads them all; a set that publishes new names needs a line here and no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

# What a column can hold, and the names under which a set may have it, most telling first. A dot leads into a nested
# column.
Names = Mapping[str, tuple[str, ...]]
NAMES: Names = {
    "problem": (
        "problem",
        "pytorch_code",
        "original_python_code",
        "reward_model.ground_truth",
        "py_code",
        "python_code",
        "code",
    ),
    "kernel": ("kernel", "cuda_code", "kernel_code", "solution", "py_code"),
    "prompt": ("prompt", "prompts", "instruction", "question"),
    "response": ("response", "responses", "completion", "output", "answer"),
    "messages": ("messages", "conversations"),
    "reasoning": ("reasoning", "reasoning_content", "thinking", "cot", "thought"),
    "prefix": ("prefix",),
    "middle": ("middle",),
    "suffix": ("suffix",),
    "name": ("name", "id", "problem_id", "task_id", "uuid", "extra_info.uuid", "idx"),
    "level": ("level", "extra_info.level"),
    "family": ("family",),
    "entry_point": ("entry_point", "extra_info.entry_point", "reward_model.entry_point", "module_name"),
    "turn": ("best_round",),  # of several answers in `messages`, the one to take, from 1
}
TEXTS = ("problem", "kernel", "prompt", "response", "messages", "reasoning")  # one of these makes a row usable


@dataclass(frozen=True, slots=True)
class Source:
    """A published data set."""

    name: str
    about: str
    licence: str = ""  # SPDX identifier; "" where its publisher states none
    hub: str = ""  # its id on the Hugging Face hub
    files: tuple[str, ...] = ()  # its file names there
    paths: tuple[str, ...] = ()  # patterns of local paths that are this set's
    columns: Names = field(default_factory=dict)  # where its names differ from, or say more than, `NAMES`
    difficulty: Mapping[str, str] = field(default_factory=dict)  # its levels in our words, where they mean the same

    def names(self, role: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns.get(role, ()), *NAMES[role])))


_LEVELS = {"1": "single", "2": "fusion", "3": "model"}
OWN = Source("own", "Files of one's own: any table with a problem, a kernel, or a prompt and a response.")
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "cudallm-sft",
            "cudaLLM's answers by DeepSeek-R1: 8,920 pairs.",
            "Apache-2.0",
            "ByteDance-Seed/cudaLLM-data",
            ("sft_cuda_llm_r1.parquet",),
            ("*sft_cuda_llm_r1*.parquet",),
            {"prompt": ("prompts", "prompt"), "response": ("responses", "response")},
        ),
        Source(
            "cudallm-rl",
            "cudaLLM's problems: 71,996.",
            "Apache-2.0",
            "ByteDance-Seed/cudaLLM-data",
            ("rl_cuda_llm_0424.parquet",),
            ("*rl_cuda_llm_0424*.parquet",),
            {"problem": ("reward_model.ground_truth", "extra_info.original_python_code")},
        ),
        Source(
            "concur",
            "ConCuR: 4,892 triples of module, concise reasoning and kernel.",
            "",
            "lkongam/ConCuR",
            ("data-00000-of-00001.arrow",),
            ("*/ConCuR/*.arrow", "*/concur/*.arrow", "*--ConCuR/*.arrow", "*/ConCuR.arrow", "*/concur.arrow"),
        ),
        Source(
            "cuke-released",
            "The CuKe pairs that the paper's authors released.",
            "",
            "",
            ("CuKe_dataset.json",),
            ("*CuKe_dataset*.json",),
        ),
        Source(
            "dice-rl",
            "The problems and infilling rows that the paper's authors released for reinforcement learning.",
            "",
            "",
            ("end_to_end_kernel_generation_4000.json", "kernel_infilling_992.json"),
            ("*end_to_end_kernel_generation_*.json", "*kernel_infilling_*.json"),
            {"problem": ("pytorch_code",), "kernel": ("cuda_code",)},
            _LEVELS,
        ),
        Source(
            "drkernel-rl",
            "cudaLLM's problems as DR.Kernel packs them: 71,996, with operators and entry points.",
            "MIT",
            "hkust-nlp/drkernel-rl-data",
            ("cuda_llm_rl_thinking_1025.parquet",),
            ("*drkernel-rl-data*.parquet", "*cuda_llm_rl_thinking_*.parquet"),
            {"problem": ("reward_model.ground_truth",)},
        ),
        Source(
            "drkernel-coldstart",
            "DR.Kernel's 8,920 five-turn conversations; their kernels are Triton, so problems alone are taken.",
            "MIT",
            "hkust-nlp/drkernel-coldstart-8k",
            ("drkernel-coldstart-8k.parquet",),
            ("*drkernel-coldstart-8k*.parquet",),
            {"problem": ("original_python_code",)},
        ),
        Source(
            "kernelbench",
            "KernelBench's task files. A benchmark: to evaluate on and to decontaminate against, never to train on.",
            "MIT",
            "ScalingIntelligence/KernelBench",
            ("data/level_*.parquet",),
            ("*/KernelBench/level[0-9]/*.py", "*/kernelbench_level[0-9].json", "*KernelBench/*level_[0-9]*.parquet"),
            {"problem": ("code", "pytorch_code")},
            _LEVELS,
        ),
        Source(
            "synth",
            "The synthetic corpus of `dice data synth`; of its folder, the training pairs.",
            "Apache-2.0",
            paths=("*/train/train-[0-9][0-9][0-9][0-9][0-9].parquet",),
        ),
    )
}


def find_source(path: Path) -> Source:
    """The known set that a local file belongs to by its path; `OWN` where it is none."""
    text = path.absolute().as_posix()
    return next((one for one in SOURCES.values() if any(fnmatch(text, pattern) for pattern in one.paths)), OWN)
