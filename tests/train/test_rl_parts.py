"""The pieces of BiC-RL one by one: scaffolds, requests, rewards, order, episodes, settings."""

from __future__ import annotations

import ast
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_helpers import TORCH, deceptive, kernel, problem

from dice.decode.trace import Trace
from dice.errors import UserError
from dice.kernel import Kernel, KernelParts
from dice.model.checkpoint import NANO_FOLDER
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM, extract_problem, infill_with_example, reply
from dice.recipes import tiny_rl
from dice.train.rl.config import RLConfig
from dice.train.rl.curriculum import Curriculum, Task, pick, read_tasks
from dice.train.rl.episode import Episode, read_episodes, write_episodes
from dice.train.rl.evaluation import HeldOut
from dice.train.rl.released import FILE, released_infill
from dice.train.rl.requests import KernelRequest, PromptBuilder, Scaffold
from dice.train.rl.reward import advantages, reward
from dice.verdict import OUTCOMES, Timing, Verdict

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(NANO_FOLDER)


def answer(tokenizer: Tokenizer, prompt: tuple[int, ...], text: str, block_size: int = 4) -> Trace:
    """The trace of a text that was denoised one token a step, with what follows it in its last block."""
    kept = len(ids := tokenizer.encode(text))
    ids += [tokenizer.pad_id] * (-(len(prompt) + kept) % block_size)
    return Trace(
        prompt, tuple(ids), tuple(range(len(ids))), (-0.5,) * len(ids), kept, block_size, tokenizer.mask_id,
        "low_confidence_dynamic", "sample", len(ids), "length",
    )  # fmt: skip


# Scaffolds


def scaffold() -> Scaffold:
    found = Scaffold.of(kernel().split())
    assert found is not None
    return found


def test_scaffold_gives_back_the_kernel_it_was_made_of() -> None:
    parts, frame = kernel().split(), scaffold()
    body = kernel().source[len(frame.beginning) : -len(frame.end)]
    assert frame.fill(f"{body}{frame.quotes}\nand whatever the model adds").source == kernel().source
    assert frame.beginning.startswith(parts.prefix) and frame.end.endswith(parts.suffix)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["\\", '"', "'", '"""', "\n", "n", "{", "import os", "__global__ void k() {}"])))
def test_nothing_that_is_written_leaves_the_scaffold(written: list[str]) -> None:
    """Whatever the model writes, the Python around it stays the given one: the paper's deceptions need other Python."""
    frame = scaffold()
    source = frame.fill("".join(written)).source
    assert source.startswith(frame.beginning) and source.endswith(frame.end)
    tree, given_tree = ast.parse(source), ast.parse(kernel().source)
    assert [type(node) for node in tree.body] == [type(node) for node in given_tree.body]
    assert ast.dump(tree.body[-1]) == ast.dump(given_tree.body[-1])  # ModelNew, which calls the kernel
    assert isinstance(tree.body[2], ast.Assign) and isinstance(tree.body[2].value, ast.Constant)


@pytest.mark.parametrize(
    "core",
    [
        'source = f"""{code}"""',  # what is between braces would be Python
        'one = """a"""\ntwo = """b"""',
        'source = "one line"',
        "source = make()",
    ],
)
def test_cores_that_are_not_one_plain_string_have_no_scaffold(core: str) -> None:
    assert Scaffold.of(KernelParts("import torch\n", core, "\nm = 1\n")) is None


@pytest.mark.parametrize("core", ["'''a'''", 'x: str = r"""a\n"""  ', 'source = """\n"""'])
def test_other_plain_strings_have_one(core: str) -> None:
    found = Scaffold.of(KernelParts("p", core, "s"))
    assert found is not None and found.beginning.startswith("p") and found.end.endswith("s")


# Requests


def test_a_scaffolded_request_begins_the_reply(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(tokenizer, compact=True, scaffolded=True)
    prompt_ids, frame = builder.build(problem("add"), kernel().split())
    assert frame is not None
    assert tokenizer.decode(prompt_ids).endswith(f"assistant\n```python\n{frame.beginning}")


def test_what_follows_the_core_is_neither_kernel_nor_trained_on(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(tokenizer, compact=True, scaffolded=True)
    prompt_ids, frame = builder.build(problem("add"), kernel().split())
    assert frame is not None
    body = kernel().source[len(frame.beginning) : -len(frame.end)]
    request = KernelRequest(problem("add"), prompt_ids, frame, 0, 0)
    written, trace = builder.parse(request, answer(tokenizer, prompt_ids, f'{body}"""\nclass ModelNew: pass\n' * 3))
    assert written == kernel()
    text = tokenizer.decode(trace.response_ids)
    assert text.startswith(f'{body}"""') and len(text) <= len(f'{body}"""\n\n')
    assert (len(prompt_ids) + len(trace.token_ids)) % 4 == 0
    assert len(trace.token_ids) - trace.kept < 4
    again, same = builder.parse(request, trace)  # as after a restart
    assert (again, same) == (written, trace)


def test_the_core_ends_where_a_stop_token_closes_it(tokenizer: Tokenizer) -> None:
    stops = PromptBuilder(tokenizer, compact=True, scaffolded=True).stop_ids()
    assert stops and all('"""' in tokenizer.decode([one]) or "'''" in tokenizer.decode([one]) for one in stops)


@settings(max_examples=40)
@given(st.booleans(), st.integers(0, 10_000), st.lists(st.integers(0, 2000), max_size=20))
def test_no_answer_raises(framed: bool, cut: int, noise: list[int]) -> None:
    """Cut anywhere, and whatever token ids it holds."""
    tokenizer = Tokenizer.from_folder(NANO_FOLDER)
    builder = PromptBuilder(tokenizer, compact=True, scaffolded=framed)
    prompt_ids, frame = builder.build(problem("add"), kernel().split())
    whole = answer(tokenizer, prompt_ids, reply(kernel()))
    ids = (*whole.token_ids[: cut % len(whole.token_ids)], *noise)
    trace = replace(
        whole, token_ids=ids, steps=tuple(range(len(ids))), logprobs=(-1.0,) * len(ids), kept=len(ids)
    )  # fmt: skip
    written, read = builder.parse(KernelRequest(problem("add"), prompt_ids, frame, 0, 0), trace)
    assert read.kept <= trace.kept
    assert written is None or isinstance(written, Kernel)


KERNEL_PARTS = kernel().split()


def test_the_infilling_prompt_may_show_its_example_in_parts(tokenizer: Tokenizer) -> None:
    """As in the released code: architecture, beginning, end and whole file of the example, then those of the task."""
    text = infill_with_example(problem("add"), KERNEL_PARTS)
    example = Kernel(EXAMPLE_KERNEL).split()
    shown = [EXAMPLE_PROBLEM, example.prefix, example.suffix, EXAMPLE_KERNEL]
    asked = [problem("add").source.strip(), KERNEL_PARTS.prefix, KERNEL_PARTS.suffix]
    places = [text.index(part) for part in shown] + [text.rindex(part) for part in asked]
    assert places == sorted(places) and text.count("The file begins:") == 2
    assert KERNEL_PARTS.core not in text and extract_problem(text) == problem("add").source.strip() + "\n"
    builder = PromptBuilder(tokenizer, compact=False, scaffolded=False, infill=infill_with_example)
    assert text in tokenizer.decode(builder.build(problem("add"), KERNEL_PARTS)[0])


RELEASED = '''import absent_module
KERNEL_INFILLING_SYSTEM_PROMPT = """<|im_start|>user\\nFill in.
{{pytorch_code}}
between {{ prefix }} and {{suffix}}; end. <|im_end|>\\n<|im_start|>assistant\\n
"""
'''


def test_the_released_prompt_is_read_from_a_checkout(tmp_path: Path) -> None:
    """Word for word but for the chat's own marks, of a file that is never run; text that looks like a field stays."""
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text(RELEASED)
    parts = KernelParts("{{suffix}}", "core", "end")
    for place in (tmp_path, file):
        made = released_infill(place)(Problem("class Model: pass\n", "p"), parts)
        assert made == "Fill in.\nclass Model: pass\n\nbetween {{suffix}} and end; end. "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no checkout of the released code"),
        ("x = (", "cannot be read as Python"),
        ("x = 1", "holds no infilling prompt"),
        (RELEASED.replace("{{suffix}}", ""), "holds no infilling prompt"),
    ],
)
def test_other_checkouts_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / FILE).parent.mkdir(parents=True)
        (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match=message):
        released_infill(tmp_path)


# Rewards


def verdict(outcome: str, **more: object) -> Verdict:
    return Verdict(outcome, "done", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_only_a_correct_kernel_is_rewarded_and_only_kernels_are_judged(outcome: str) -> None:
    expected = {"correct": 1.0, "infra_error": None, "unsupported": None}.get(outcome, 0.0)
    assert reward(verdict(outcome), tiny_rl()) == expected


@pytest.mark.parametrize(
    ("provenance", "wanted", "expected"),
    [("construction", "construction", 1.0), ("evidence", "construction", 0.0), ("evidence", "any", 1.0)],
)
def test_a_kernel_that_only_evidence_speaks_for_is_worth_what_is_asked(
    provenance: str, wanted: Literal["construction", "any"], expected: float
) -> None:
    told = verdict("correct", provenance=provenance)
    assert reward(told, replace(tiny_rl(), provenance=wanted)) == expected


@pytest.mark.parametrize(
    ("low", "extra"), [(0.0, 0.0), (0.9, 0.0), (1.0, 0.0), (math.sqrt(2), 0.25), (2.0, 0.5), (9.0, 0.5)]
)
def test_speed_counts_where_it_is_certain(low: float, extra: float) -> None:
    timing = Timing(1.0, 5.0, 5.0, 10, speedup_low=low, speedup_high=9.0)
    fast = verdict("correct", timing=timing)
    assert reward(fast, replace(tiny_rl(), speed_reward=0.5)) == pytest.approx(1 + extra)
    assert reward(fast, tiny_rl()) == 1.0
    assert reward(verdict("wrong", timing=timing), replace(tiny_rl(), speed_reward=0.5)) == 0.0


def test_advantages_are_z_scores_of_what_was_judged() -> None:
    found = advantages([1.0, None, 0.0, 0.0, 0.0])
    assert found[1] is None
    z = [one for one in found if one is not None]
    assert sum(z) == pytest.approx(0) and sum(one * one for one in z) / 4 == pytest.approx(1)
    assert z[0] == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("rewards", [[1.0, 1.0], [0.0, 0.0, None], [None, None], [1.0, None], []])
def test_groups_without_a_difference_teach_nothing(rewards: list[float | None]) -> None:
    assert advantages(rewards) == [None] * len(rewards)


# Order


def tasks(count: int) -> list[Task]:
    return [Task(replace(problem("add"), source=f"# {n}"), 1 + 3 * n // count, n / count) for n in range(count)]


@pytest.mark.parametrize("order", ["scheduled", "sequential", "shuffled", "adaptive"])
@pytest.mark.parametrize("count", [3, 16, 40])
def test_picks_are_distinct_and_repeatable(order: str, count: int) -> None:
    for step in range(12):
        picks = pick(order, tasks(count), step, 12, 16, 7, {})  # type: ignore[arg-type]
        assert len(set(picks)) == len(picks) == min(16, count)
        assert picks == pick(order, tasks(count), step, 12, 16, 7, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "steps"), [(992, 20), (4000, 100), (64, 100), (20, 3)])
def test_the_schedule_goes_from_easy_to_hard_and_never_back(count: int, steps: int) -> None:
    seen = [pick("scheduled", tasks(count), step, steps, 64, 0, {}) for step in range(steps)]
    lows, highs = [min(picks) for picks in seen], [max(picks) for picks in seen]
    if count > 64:
        means = [sum(picks) / len(picks) for picks in seen]
        assert means[0] < 0.1 * count and means[-1] > 0.9 * count
        width = max(64, -(-count // steps))
        assert all(high - low < width for low, high in zip(lows, highs, strict=True))
        assert len({index for picks in seen for index in picks}) > 0.6 * min(count, 64 * steps)


def test_sequential_takes_problems_in_turn_and_begins_again() -> None:
    """As the released code does: 20 steps of 64 are more than 992, so that the last ones see easy problems again."""
    seen = [pick("sequential", tasks(992), step, 20, 64, 0, {}) for step in range(20)]
    assert [index for picks in seen for index in picks] == [index % 992 for index in range(20 * 64)]
    assert seen[15] == [*range(960, 992), *range(32)]


def test_shuffled_epochs_see_everything_once() -> None:
    seen = [index for step in range(4) for index in pick("shuffled", tasks(64), step, 4, 16, 0, {})]
    assert sorted(seen) == list(range(64)) and seen != sorted(seen)


def test_adaptive_order_begins_easy_and_follows_what_was_measured() -> None:
    some = tasks(300)

    def chosen(success: dict[str, tuple[int, int]]) -> list[int]:
        return [index for step in range(20) for index in pick("adaptive", some, step, 20, 16, 0, success)]

    fresh = chosen({})
    assert sum(index < 150 for index in fresh) > 0.6 * len(fresh)
    # The first two levels are solved, the third works half of the time.
    success = {task.problem.id: ((16, 16) if task.level < 3 else (8, 16)) for task in some}
    assert sum(some[index].level == 3 for index in chosen(success)) > 0.7 * 320


def test_what_was_measured_comes_back(tokenizer: Tokenizer, rl_data: Path) -> None:
    """Also from a manifest of an earlier version, which held more."""
    builder = PromptBuilder(tokenizer, compact=True, scaffolded=True)
    config = replace(
        tiny_rl(), infill_data=rl_data / "kernel_infilling.json", generate_data=rl_data / "kernel_generation.json"
    )

    def curriculum() -> Curriculum:
        return Curriculum(config, builder, 2000, pytest.fail)

    first, second = curriculum(), curriculum()
    verdicts = [verdict("correct"), verdict("wrong"), verdict("infra_error"), verdict("correct")]
    first.record(
        [
            Episode(1, "generate", 0, n, problem("add"), answer(tokenizer, (5,), "t"), kernel(), one, None, None)
            for n, one in enumerate(verdicts)
        ]
    )
    assert first.success == {problem("add").id: (2, 3)}
    second.restore(json.loads(json.dumps(first.state() | {"examples": {}, "half": {}})))
    assert second.success == first.success


# Data and episodes


def test_tasks_come_from_both_forms_of_file(rl_data: Path, tmp_path: Path) -> None:
    infill = read_tasks(rl_data / "kernel_infilling.json", infill=True)
    assert [task.problem.source for task in infill] == [problem(name).source for name in TORCH]
    assert infill[0].parts == kernel().split()
    assert all(task.parts is None for task in read_tasks(rl_data / "kernel_generation.json", infill=False))
    for level, name in ((2, "add"), (1, "doubled")):
        (tmp_path / f"level{level}").mkdir()
        (tmp_path / f"level{level}" / f"{name}.py").write_text(problem(name).source)
    assert [(task.level, task.problem.name) for task in read_tasks(tmp_path, infill=False)] == [
        (1, "doubled"), (2, "add"),
    ]  # fmt: skip


def test_unusable_data_is_one_sentence(rl_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text in its column `prefix`"):
        read_tasks(rl_data / "kernel_generation.json", infill=True)
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(UserError, match="nothing to train on"):
        read_tasks(tmp_path / "empty.json", infill=False)
    with pytest.raises(UserError, match="There is no file"):
        read_tasks(tmp_path / "absent.json", infill=True)
    with pytest.raises(UserError, match="absent"):
        read_tasks(tmp_path / "absent.json", infill=False)


def test_episodes_come_back_as_they_were(tokenizer: Tokenizer, tmp_path: Path) -> None:
    one = Episode(
        3, "infill", 0, 1, problem("add"), answer(tokenizer, (5, 6, 7), "text"), deceptive(),
        verdict("deceptive", deceptions=("never_invoked",), seconds={"run": 0.5}), 0.0, -1.25,
    )  # fmt: skip
    other = replace(one, sample=2, kernel=None, verdict=verdict("no_kernel"), reward=None, advantage=None)
    write_episodes(tmp_path, 3, [one, other])
    back = list(read_episodes(tmp_path))
    assert [replace(episode, kernel=None) for episode in back] == [replace(one, kernel=None), other]
    assert back[0].kernel is not None and back[0].kernel.source == deceptive().source
    written = pq.read_table(tmp_path / "step-00000003.parquet")
    turns = pa.array([0, 0], pa.int32())  # a column that such files had once
    pq.write_table(written.append_column("turn", turns), tmp_path / "step-00000003.parquet")
    assert list(read_episodes(tmp_path)) == back
    (tmp_path / "step-00000004.parquet").write_bytes(b"not parquet")
    with pytest.raises(UserError, match="holds no episodes"):
        list(read_episodes(tmp_path))


# Settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "needs `model`"),
        ({"infill_steps": 0, "generate_steps": 0}, "nor both 0"),
        ({"infill_data": None}, "`infill_data` is needed"),
        ({"responses": 1}, "at least 2"),
        ({"temperature": 0.0}, "must be positive"),
        ({"speed_reward": -1.0}, "not be negative"),
        ({"trials": 0}, "trials must be positive"),
        ({"protocol": "kernelbench-v0"}, "goes with provenance any"),
        ({"infill_prompt": "released"}, "goes with `released_code`"),
        ({"released_code": Path("r")}, "infill_prompt released goes with"),
        ({"infill_prompt": "with_example", "prompt": "compact"}, "compact ones are plain"),
        ({"verify_workers": 0}, "at least 1"),
        ({"policy": replace(tiny_rl().policy, lr=0.0)}, "lr must be positive"),
    ],
)
def test_unusable_settings_are_one_sentence(change: dict[str, object], message: str) -> None:
    good = replace(tiny_rl(), model="nano", out=Path("o"), infill_data=Path("i"), generate_data=Path("g"))
    assert good.check() is good
    with pytest.raises(UserError, match=message):
        replace(good, **change).check()  # type: ignore[arg-type]


def test_stages_follow_one_another() -> None:
    config = RLConfig(infill_steps=2, generate_steps=1)
    assert [config.stage(step) for step in range(config.steps)] == ["infill", "infill", "generate"]


def test_problems_that_are_trained_on_are_not_called_held_out(tmp_path: Path) -> None:
    for name in ("matmul", "softmax"):
        shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    config, builder = (
        RLConfig(eval_data=tmp_path),
        cast(PromptBuilder, SimpleNamespace(build=lambda *_: ((1, 2, 3), None))),
    )
    training = {Problem.from_file(tmp_path / "softmax.py").id}
    apart, mixed = (HeldOut.read(config, builder, 10, print, ids) for ids in (set[str](), training))
    assert apart and apart.described == "2 held-out problems" and apart.trained_on == 0
    assert mixed and mixed.described == "2 problems, 1 of them also trained on" and mixed.trained_on == 1
