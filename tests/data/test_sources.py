"""Every published data set, in its own form, becomes samples; what cannot is counted with the reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_files import (
    REASONING,
    chat,
    concur,
    concur_fenced,
    cudallm_rl,
    cuke,
    drkernel_coldstart,
    drkernel_rl,
    generation,
    hosted,
    infilling,
    kernel,
    kernelbench,
    kernelbench_bare,
    notes_of,
    problem,
    prompt,
    response,
    sft_messages,
    sft_prompts,
    triton_kernel,
    write,
)

from dice import prompts
from dice.cli import main
from dice.data.sample import Sample, read_samples, write_samples
from dice.data.sources import SOURCES, ImportReport, find_source, read, read_problems, resolve
from dice.data.sources.columns import lookup
from dice.data.sources.hub import stated_licence
from dice.errors import UserError
from dice.synth import corpus
from dice.verdict import Timing, Verdict
from tests.conftest import PATIENCE_S, ROOT


def load(*paths: Path, limit: int | None = None, **options: str) -> tuple[list[Sample], ImportReport]:
    report = ImportReport()
    return list(read(resolve(list(map(str, paths)), **options), report, limit)), report


def importing(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dice", "data", "import", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env)


def say(result: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert result.returncode == code and words in result.stderr and "Traceback" not in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


# file -> (its rows, its set, kind of sample, is there a prompt, a response, a reasoning)
PUBLISHED: dict[str, tuple[Callable[[int], dict[str, Any]], str, str, str]] = {
    "sft_cuda_llm_r1.parquet": (sft_prompts, "cudallm-sft", "pair", "prompt response reasoning"),
    "again/sft_cuda_llm_r1.parquet": (sft_messages, "cudallm-sft", "pair", "prompt response reasoning"),
    "rl_cuda_llm_0424.parquet": (cudallm_rl, "cudallm-rl", "problem", "prompt"),
    "ConCuR/data-00000-of-00001.arrow": (concur, "concur", "pair", "reasoning"),
    "concur/train/data-00000-of-00001.arrow": (concur_fenced, "concur", "pair", "response reasoning"),
    "CuKe_dataset.json": (cuke, "cuke-released", "pair", "prompt response reasoning"),
    "end_to_end_kernel_generation_4000.json": (generation, "dice-rl", "problem", ""),
    "kernel_infilling_992.json": (infilling, "dice-rl", "pair", ""),
    "cuda_llm_rl_thinking_1025.parquet": (drkernel_rl, "drkernel-rl", "problem", "prompt"),
    "drkernel-coldstart-8k.parquet": (drkernel_coldstart, "drkernel-coldstart", "problem", "prompt"),
    "KernelBench/data/level_1-00000-of-00001.parquet": (kernelbench, "kernelbench", "problem", ""),
    "kernel_infilling_evaluation.json": (hosted, "dice-rl", "hosted", ""),
    "rl_data/kernelbench_level1.json": (kernelbench_bare, "kernelbench", "problem", ""),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_in_its_own_form(tmp_path: Path, name: str) -> None:
    rows, source, kind, texts = PUBLISHED[name]
    samples, report = load(write(tmp_path / name, [rows(number) for number in range(100)]))
    assert list(report.sources) == [source]
    counts = report.sources[source]
    assert (counts.rows, counts.kept, counts.pairs, counts.problems) == (
        100,
        100,
        *((0, 100) if kind == "problem" else (100, 0)),
    )
    for number, sample in enumerate(samples):
        assert sample.problem.strip() == problem(number).strip()
        texts_of = {"pair": kernel(number).strip(), "hosted": hosted(number)["cuda_code"].strip(), "problem": ""}
        assert sample.kernel.strip() == texts_of[kind]
        assert (sample.source, sample.licence) == (source, SOURCES[source].licence)
        assert sample.origin == f"{Path(name).name}:{number + 1}"
        assert {part for part in ("prompt", "response", "reasoning") if getattr(sample, part)} == set(texts.split())
        assert not sample.reasoning or sample.reasoning.startswith(REASONING.strip())
        assert "prompt" not in texts or sample.prompt == prompt(number)


def test_every_published_set_is_tried() -> None:
    assert {source for _, source, _, _ in PUBLISHED.values()} | {"synth"} == set(SOURCES)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ConCuR/data-00000-of-00001.arrow", "concur"),
        ("hub/datasets--lkongam--ConCuR/snapshots/0/data-00000-of-00001.arrow", "concur"),
        ("concurrent/data-00000-of-00001.arrow", "own"),
        ("KernelBench/KernelBench/level3/1_MLP.py", "kernelbench"),
        (
            "hub/datasets--ScalingIntelligence--KernelBench/0/data/level_1-00000-of-00001.parquet",
            "kernelbench",
        ),
        ("my_kernelbench/level1.py", "own"),
        ("corpus/train/train-00003.parquet", "synth"),
        ("other/train/train-00000-of-00002.parquet", "own"),
        ("rl_data/kernel_infilling_992.json", "dice-rl"),
    ],
)
def test_a_path_tells_the_set_and_so_the_licence(path: str, source: str) -> None:
    assert find_source(Path(path)).name == source


def test_what_else_a_row_says_is_kept_if_it_is_short(tmp_path: Path) -> None:
    ((sample,), _) = load(write(tmp_path / "drkernel-coldstart-8k.parquet", [drkernel_coldstart(7)]))
    assert sample.meta == {"final_speedup": 1.5, "num_rounds": 5} and sample.name == "7"
    ((sample,), _) = load(write(tmp_path / "cuda_llm_rl_thinking_1025.parquet", [drkernel_rl(7)]))
    assert sample.meta["extra_info.ops"] == '["torch.relu"]' and sample.meta["extra_info.level"] == "0"
    ((sample,), _) = load(write(tmp_path / "end_to_end_kernel_generation_4000.json", [generation(7)]))
    assert sample.difficulty == "fusion" and sample.meta["level"] == "2"


@pytest.mark.parametrize(("level", "difficulty"), [("0", ""), ("1", "single"), ("2", "fusion"), ("3", "model")])
def test_each_released_level_means_a_difficulty(level: str, difficulty: str, tmp_path: Path) -> None:
    """One of the 4,000 released problems is of level 0, which is none."""
    row = generation(0) | {"level": level, "raw_answer": f"\\boxed{{{level}}}"}
    ((sample,), _) = load(write(tmp_path / "end_to_end_kernel_generation_4000.json", [row]))
    assert (sample.difficulty, sample.meta["level"], sample.meta["raw_answer"]) == (
        difficulty,
        level,
        row["raw_answer"],
    )


def test_the_published_split_is_kept(tmp_path: Path) -> None:
    row = infilling(3)
    ((sample,), _) = load(write(tmp_path / "kernel_infilling_992.json", [row]))
    start, end = sample.meta["core"]
    assert (sample.kernel[:start], sample.kernel[start:end], sample.kernel[end:]) == (
        row["prefix"],
        row["middle"],
        row["suffix"],
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".json", ".arrow"])
def test_a_table_of_ones_own(tmp_path: Path, suffix: str) -> None:
    truth = json.dumps({"ground_truth": problem(1), "style": "rule"})
    own = [{"reward_model": truth, "messages": json.dumps([*chat(1), {"from": "gpt", "value": response(1)}])}]
    ((sample,), report) = load(write(tmp_path / f"mine{suffix}", own), licence="CC0-1.0")
    assert report.sources["own"].pairs == 1 and sample.licence == "CC0-1.0"
    assert sample.problem == problem(1) and sample.kernel == kernel(1) and sample.prompt == prompt(1)


def test_names_propose_and_contents_decide(tmp_path: Path) -> None:
    swapped = {"problem": kernel(2), "kernel": problem(2), "code": "print()"}
    ((sample,), report) = load(write(tmp_path / "t.jsonl", [swapped]))
    assert (sample.problem, sample.kernel) == (problem(2), kernel(2))
    assert next(iter(report.columns.values())) == {"problem": "kernel", "kernel": "problem"}


@pytest.mark.parametrize("name", ["prompt", "messages", "what_to_do"])
def test_prompts_alone_pose_problems(tmp_path: Path, name: str) -> None:
    ((sample,), report) = load(write(tmp_path / "t.jsonl", [{name: chat(4)}]))
    assert sample.problem.strip() == problem(4).strip() and report.sources["own"].problems == 1
    with pytest.raises(UserError, match="no column holds"):
        load(write(tmp_path / "t.jsonl", [{name: "Write a poem."}]))


def test_a_column_may_be_empty_at_first(tmp_path: Path) -> None:
    rows = [{"pytorch_code": problem(n), "cuda_code": kernel(n) if n >= 100 else ""} for n in range(103)]
    _, report = load(write(tmp_path / "t.jsonl", rows))
    assert (report.sources["own"].problems, report.sources["own"].pairs) == (100, 3)


def test_nothing_usable_names_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"question": "How far?", "answer": {"text": "Far.", "n": 3}}])
    with pytest.raises(
        UserError, match="no column holds a problem.*problem, pytorch_code.*question, answer.text, answer.n"
    ):
        load(path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"problem": "", "kernel": ""}, "its columns are empty"),
        ({"problem": "class Model(:"}, "its problem is not valid Python"),
        ({"problem": problem().replace("get_init_inputs", "nothing")}, "its problem defines no get_init_inputs()"),
        ({"problem": problem(name="A") + problem(name="B")}, "its problem defines no class Model"),
        ({"problem": None, "kernel": triton_kernel()}, "its kernel is Triton, not CUDA"),
        ({"problem": problem(), "kernel": kernel() + "# \ud800"}, "its text is not valid Unicode"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    samples, report = load(write(tmp_path / "t.jsonl", [{"problem": problem(), "kernel": kernel()}, row]))
    assert len(samples) == 1 and report.sources["own"].dropped == {reason: 1}


@pytest.mark.parametrize(
    ("row", "remark", "left"),
    [
        ({"prompt": prompt(), "response": "I cannot."}, "its response holds no kernel", "problem"),
        (
            {"prompt": prompt(), "response": f"```python\n{triton_kernel()}```"},
            "its kernel is Triton, not CUDA",
            "problem",
        ),
        ({"prompt": "Write a kernel.", "response": response()}, "its prompt holds no problem", "kernel"),
        (
            {"prompt": prompt(), "response": "<think>It never ends: class ModelNew"},
            "its response holds no kernel",
            "problem",
        ),
    ],
)
def test_a_row_that_lost_something_is_counted(tmp_path: Path, row: dict[str, Any], remark: str, left: str) -> None:
    samples, report = load(write(tmp_path / "t.jsonl", [cuke(5), row]))
    assert report.sources["own"].remarks == {remark: 1} and not report.sources["own"].dropped
    assert bool(samples[1].problem) == (left == "problem") and bool(samples[1].kernel) == (left == "kernel")
    assert bool(samples[1].response) == (left == "kernel")


def test_a_module_of_another_name_gets_an_alias(tmp_path: Path) -> None:
    rows = [
        {"pytorch_code": problem(1, "Net") + problem(2, "Other"), "entry_point": "Other"},
        {"pytorch_code": problem(3, "Net"), "entry_point": ""},
    ]
    samples, _ = load(write(tmp_path / "t.jsonl", rows))
    assert [sample.problem.splitlines()[-1] for sample in samples] == ["Model = Other", "Model = Net"]
    assert all(sample.as_problem().check() for sample in samples)


def test_the_last_problem_of_a_prompt_is_meant() -> None:
    assert prompts.extract_problem(prompt(9)) == problem(9).strip() + "\n"  # not the example before it
    assert prompts.extract_problem(f"Optimise\n    ```\n    {problem(2)}\n    ```\n") is not None
    assert prompts.extract_problem(f"Optimise\n```py\n{problem(2)}") is not None  # cut
    assert prompts.extract_problem(f"```python\n{kernel()}\n```") is None
    assert prompts.extract_problem("```python\nclass Model(: get_inputs\n```") is None


def test_lookup_goes_through_nested_columns_and_json_text() -> None:
    row = {"a": '{"b": {"c": 1}}', "d.e": 2, "d": {"e": 3}, "f": "{no json}"}
    assert [lookup(row, path) for path in ("a.b.c", "d.e", "f.g", "a.x", "z")] == [1, 2, None, None, None]


def test_task_files_of_a_benchmark(tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level2"
    folder.mkdir(parents=True)
    for number in (10, 9):
        (folder / f"{number}_ReLU.py").write_text(problem(number))
    (folder / "11_broken.py").write_text("import torch\n")
    samples, report = load(tmp_path / "KernelBench")
    assert [(one.name, one.source, one.difficulty, one.origin) for one in samples] == [
        ("9_ReLU", "kernelbench", "fusion", "level2/9_ReLU.py"),
        ("10_ReLU", "kernelbench", "fusion", "level2/10_ReLU.py"),
    ]
    assert report.sources["kernelbench"].dropped == {"its problem defines no get_inputs()": 1}
    assert [one.level for one in read_problems([tmp_path / "KernelBench"])] == [2, 2, 2]  # broken ones too


def test_of_a_corpus_only_the_training_pairs(tmp_path: Path) -> None:
    corpus.build(tmp_path / "corpus", 12, 3, heldout=4, control=4, verify=False)
    samples, report = load(tmp_path / "corpus")
    assert report.sources["synth"].pairs == 12 and all(one.family and one.licence == "Apache-2.0" for one in samples)
    assert {one.meta["split"] for one in samples} == {"train"}
    assert len(load(tmp_path / "corpus" / "heldout.parquet")[0]) == 4


def test_the_audit_reads_problems_as_the_import_does(tmp_path: Path) -> None:
    write_samples(
        tmp_path / "s.parquet", [Sample(problem(1), name="a"), Sample("", kernel(1)), Sample("broken (", name="b")]
    )
    assert [(one.name, one.source) for one in read_problems([tmp_path / "s.parquet"])] == [
        ("a", problem(1)),
        ("b", "broken ("),
    ]
    path = write(tmp_path / "drkernel" / "x.parquet", [drkernel_rl(1)])
    assert [(one.name, one.source, one.level) for one in read_problems([path.parent])] == [
        ("cuda_llm_1", problem(1), 0)
    ]


def test_samples_pass_through_unchanged(tmp_path: Path) -> None:
    verdict = Verdict("correct", "done", timing=Timing(1.0, 2.0, 2.0, 10))
    made = [Sample(problem(1), kernel(1), source="concur", verdict=verdict, meta={"a": [1]}), Sample(problem(2))]
    write_samples(tmp_path / "s.parquet", made, {"who": "me"})
    samples, report = load(tmp_path / "s.parquet", licence="MIT")
    assert (
        samples == made and set(report.sources) == {"concur", ""} and notes_of(tmp_path / "s.parquet") == {"who": "me"}
    )


def test_many_samples_are_written_a_group_at_a_time(tmp_path: Path) -> None:
    notes: dict[str, Any] = {}

    def samples() -> Any:
        for number in range(2500):
            yield Sample(str(number))
            notes["last"] = number

    write_samples(tmp_path / "s.parquet", samples(), notes)
    assert [one.problem for one in read_samples(tmp_path / "s.parquet")] == list(map(str, range(2500)))
    assert notes_of(tmp_path / "s.parquet") == {"last": 2499}


TEXTS = st.sampled_from(
    [
        "",
        "text",
        problem(),
        problem(name="Net"),
        kernel(),
        prompt(),
        response(),
        "class Model(:",
        triton_kernel(),
        "\ud800",
    ]
)
CELLS = TEXTS | st.none() | st.integers() | st.just([]) | st.just([1]) | st.just({"ground_truth": problem()})
ROW = st.dictionaries(
    st.sampled_from(["problem", "kernel", "prompt", "response", "messages", "reward_model", "x"]), CELLS
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROW, max_size=12), st.integers(1, 14))
def test_the_counts_add_up(tmp_path: Path, rows: list[dict[str, Any]], limit: int) -> None:
    whole = {"problem": problem(), "kernel": kernel(), "prompt": prompt(), "response": response()}
    samples, report = load(write(tmp_path / "t.jsonl", [whole, *rows]), limit=limit)
    counts = report.sources["own"]
    assert counts.rows == min(limit, 1 + len(rows)) == len(samples) + counts.dropped.total()
    assert len(samples) == counts.kept == counts.pairs + counts.problems + counts.kernels
    assert counts.remarks.total() <= counts.kept
    assert len({sample.origin for sample in samples}) == len(samples)
    for sample in samples:
        assert sample.problem or sample.kernel
        if sample.problem:
            sample.as_problem().check()
    write_samples(tmp_path / "s.parquet", samples)
    assert list(read_samples(tmp_path / "s.parquet")) == samples


def test_the_command_writes_samples_and_counts(tmp_path: Path) -> None:
    rows = [cuke(0), {"prompt": "", "response": "none"}, cuke(1), cuke(2)]
    path, out = write(tmp_path / "CuKe_dataset.json", rows), tmp_path / "out" / "samples.parquet"
    result = importing(path, "-o", out, "--limit", "3", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["rows"], found["kept"]) == (3, 2)
    assert found["sources"]["cuke-released"]["dropped"] == {"its response holds no kernel": 1}
    assert found["columns"][str(path)]["response"] == "response"
    assert [one.problem.strip() for one in read_samples(out)] == [problem(0).strip(), problem(1).strip()]
    assert notes_of(out)["import"] == found["sources"]
    first = out.read_bytes()
    again = importing(path, "-o", out, "--limit", "3")
    assert "2 of 3 rows written" in again.stdout and "dropped: its response holds no kernel" in again.stdout
    assert out.read_bytes() == first and os.listdir(out.parent) == ["samples.parquet"]


def test_the_command_lists_the_sources() -> None:
    listed = json.loads(importing("--list", "--json").stdout)
    assert [one["name"] for one in listed] == list(SOURCES)
    assert "ByteDance-Seed/cudaLLM-data" in {one["hub"] for one in listed}
    text = importing("--list", COLUMNS="200").stdout
    assert all(name in text for name in SOURCES) and "Apache-2.0" in text and "not stated" in text


def test_misuse_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.parquet"
    good, empty = write(tmp_path / "t.jsonl", [cuke(0)]), tmp_path / "empty.jsonl"
    empty.write_text("")
    for arguments, words in (
        (("-o", out), "at least one SOURCE"),
        ((good,), "-o samples.parquet"),
        ((good, "-o", tmp_path / "o.json"), "must be a .parquet file"),
        ((good, "-o", out, "--limit", "0"), "--limit must be at least 1"),
        ((good, "-o", out, "--source", "nobody"), "no source nobody; the known ones are cudallm-sft"),
        ((tmp_path / "nowhere", "-o", out), "no file or folder"),
        (("data/nowhere.jsonl", "-o", out), "There is no file or folder data/nowhere.jsonl."),
        (("cuke-released", "-o", out), "download CuKe_dataset.json"),
        ((empty, "-o", out), "There are no rows in"),
        ((write(tmp_path / "o.parquet", [cuke(0)]), "-o", out), "is read from"),
    ):
        assert main(["data", "import", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err.strip().splitlines()[-1]
    say(importing(tmp_path / "nowhere", "-o", out), 2, "no file or folder")


def test_the_hub_out_of_reach_says_what_to_do(tmp_path: Path) -> None:
    away = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    words = "download sft_cuda_llm_r1.parquet from https://huggingface.co/datasets/ByteDance-Seed/cudaLLM-data"
    say(importing("cudallm-sft", "-o", tmp_path / "o.parquet", **away), 3, words)
    say(importing("who/what", "-o", tmp_path / "o.parquet", **away), 3, "cannot be reached")


def test_a_set_in_the_hubs_cache_needs_no_network(tmp_path: Path) -> None:
    folder = tmp_path / "datasets--who--what"
    snapshot = folder / "snapshots" / ("0" * 40)
    write(snapshot / "data" / "train.jsonl", [cuke(0)])
    (snapshot / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\nlicense: no\n")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    away = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    result = importing("who/what", "-o", tmp_path / "o.parquet", **away)
    assert result.returncode == 0, result.stderr
    assert [one.licence for one in read_samples(tmp_path / "o.parquet")] == ["mit"]


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\ntags:\n- a\nlicense: apache-2.0\n---\n# Set\n", "apache-2.0"),
        ("---\ntags:\n- a\n---\nlicense: mit\n", ""),
        ("license: mit\n", ""),
        (None, ""),
    ],
)
def test_the_licence_is_what_the_cards_head_states(tmp_path: Path, card: str | None, licence: str) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert stated_licence(tmp_path / "README.md") == licence


def test_thinking_that_the_template_opened_is_no_answer(tmp_path: Path) -> None:
    text = f"A draft:\n```python\n{kernel(1)}```\n</think>\n```python\n{kernel(2)}```"
    ((sample,), _) = load(write(tmp_path / "t.jsonl", [{"prompt": prompt(), "response": text}]))
    assert sample.kernel == kernel(2) and sample.reasoning.startswith("A draft:")


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    path, out = write(tmp_path / "t.jsonl", [cuke(number) for number in range(4000)]), tmp_path / "out"
    out.mkdir()
    command = ["env", "--default-signal=INT", sys.executable, "-m", "dice", "data", "import", str(path)]
    process = subprocess.Popen([*command, "-o", str(out / "s.parquet")], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    while not os.listdir(out):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "interrupted" in stderr and not os.listdir(out)


def test_samples_keep_their_place_among_other_files(tmp_path: Path) -> None:
    made = Sample(problem(1), kernel(1), source="teacher")
    write_samples(tmp_path / "a.parquet", [made, replace(made, problem=problem(2))])
    write(tmp_path / "b.jsonl", [cuke(3), cuke(4)])
    samples, report = load(tmp_path, limit=3)
    assert [one.source for one in samples] == ["teacher", "teacher", "own"] and report.rows == 3
