"""Tasks, prompts, answers written elsewhere, KernelBench's files, and transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dice.cli import main
from dice.data.sample import Sample, write_samples
from dice.errors import UserError
from dice.evaluate.baseline import summary
from dice.evaluate.hardware import KNOWN, find_gpu
from dice.evaluate.interchange import Baseline, eval_results, read_baselines, write_baselines
from dice.evaluate.models import Question
from dice.evaluate.models.answers import AnswersModel, read_answers
from dice.evaluate.prompts import VARIANTS, examples, prompt
from dice.evaluate.run_folder import Judgement, Task
from dice.evaluate.tasks import load_tasks, parse_ids
from dice.prompts import extract_kernel, extract_problem, one_shot
from dice.verdict import Timing, Verdict
from dice.verify import Verifier
from dice.verify.options import why_no_cuda
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

RELU = ROOT / "tests" / "cases" / "problems" / "relu.py"


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    for level, names in ((1, ("2_B", "10_C", "19_ReLU")), (2, ("2_B",))):
        (tmp_path / f"level{level}").mkdir()
        for name in names:
            (tmp_path / f"level{level}" / f"{name}.py").write_text(f"{RELU.read_text()}\n# {level} {name}\n")
    return tmp_path


def keys(tasks: list[Task]) -> list[str]:
    return [task.key for task in tasks]


def test_tasks_are_chosen_by_level_number_and_file(bench: Path, tmp_path: Path) -> None:
    assert keys(load_tasks(bench)) == ["level1/2_B", "level1/10_C", "level1/19_ReLU", "level2/2_B"]
    assert keys(load_tasks(bench, [1], "2-11")) == ["level1/2_B", "level1/10_C"]
    assert keys(load_tasks(bench / "level2")) == ["level2/2_B"]
    (tmp_path / "subset.txt").write_text("level1/2_B  # easy\n19_ReLU.py\n\n")
    assert keys(load_tasks(bench, subset=tmp_path / "subset.txt")) == ["level1/2_B", "level1/19_ReLU"]
    (tmp_path / "subset.txt").write_text("20_None\n")
    with pytest.raises(UserError, match="'20_None'"):
        load_tasks(bench, subset=tmp_path / "subset.txt")
    with pytest.raises(UserError, match="was chosen"):
        load_tasks(bench, ids="99")
    assert parse_ids("1-3, 7") == {1, 2, 3, 7}
    for text in ("", "3-1", "a"):
        with pytest.raises(UserError, match="no number"):
            parse_ids(text)


def test_a_difficulty_label_stands_for_a_level(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "softmax.py").read_text()
    labels = ("model", "single", "", "fusion")
    samples = [
        Sample(f"{text}# {name}", name=name, difficulty=label) for name, label in zip("abcd", labels, strict=True)
    ]
    write_samples(tmp_path / "labelled.parquet", samples)
    assert keys(load_tasks(tmp_path / "labelled.parquet")) == ["c", "level1/b", "level2/d", "level3/a"]


def test_other_problems_have_level_0(tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    table.write_text(
        "".join(json.dumps({"name": name, "code": RELU.read_text() + name}) + "\n" for name in ["#a", "#b"])
    )
    found = load_tasks(table)
    assert [(task.key, task.level, task.number) for task in found] == [("#a", 0, 1), ("#b", 0, 2)]


def test_prompts_hold_what_their_names_say(bench: Path) -> None:
    problem = load_tasks(bench)[0].as_problem()
    texts = {variant: prompt(problem, variant) for variant in VARIANTS}
    assert texts["one-shot"] == one_shot(problem)
    shown = {variant: text.count("class ModelNew") for variant, text in texts.items()}
    assert shown == {"one-shot": 1, "zero-shot": 0, "few-shot": 3, "compact": 0}
    gpu = find_gpu("nvidia h100 sxm")
    for variant in VARIANTS:
        assert "# 1 2_B" in (extract_problem(texts[variant]) or ""), variant
        assert gpu.facts in prompt(problem, variant, gpu) and gpu.facts not in texts[variant]
    assert "sm_90" in gpu.facts and "3350 GB/s" in gpu.facts and len(KNOWN) == 7
    with pytest.raises(ValueError, match="no prompt"):
        prompt(problem, "two-shot")


def test_the_examples_of_the_prompt_are_right() -> None:
    with Verifier(backend="emulated") as verifier:
        verdicts = [verdict for _, verdict in verifier.verify_many(examples())]
    assert [verdict.outcome for verdict in verdicts] == ["correct", "correct"], verdicts


def test_answers_are_found_in_every_form(bench: Path, tmp_path: Path) -> None:
    tasks = load_tasks(bench)
    folder = tmp_path / "folder"
    (folder / "level2").mkdir(parents=True)
    (folder / "level_1_problem_10_sample_3_kernel.py").write_text("A")
    (folder / "19_ReLU_kernel.py").write_text("B")
    (folder / "level2" / "2_B.py").write_text("C")
    (folder / "unknown.py").write_text("D")
    found = read_answers(folder, tasks)
    assert found == {("level1/10_C", 3): "A", ("level1/19_ReLU", 0): "B", ("level2/2_B", 0): "C"}

    rows = [
        {"problem": "level1/2_B", "kernel": "A"},
        {"problem": "level1/2_B", "kernel": "B"},
        {"level_id": 1, "task_id": 10, "ref_code": "?", "custom_code": "C"},
        {"ref_code": tasks[2].source, "custom_code": "D", "sample_id": 4},
        {"problem": "level2/2_B", "response": "Here:\n```python\nimport torch\nclass ModelNew: pass\n```\n"},
        {"problem": "nowhere", "kernel": "E"},
    ]
    table = tmp_path / "answers.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_answers(table, tasks)
    assert found.pop(("level2/2_B", 0)).startswith("Here")
    assert found == {
        ("level1/2_B", 0): "A", ("level1/2_B", 1): "B", ("level1/10_C", 0): "C", ("level1/19_ReLU", 4): "D",
    }  # fmt: skip
    plain = tmp_path / "answers.json"
    plain.write_text(json.dumps({"19_ReLU": "A", "level2/2_B": "B"}))
    assert set(read_answers(plain, tasks)) == {("level1/19_ReLU", 0), ("level2/2_B", 0)}

    questions = [Question(task, 0, "") for task in tasks]
    answers = dict(AnswersModel(plain, tasks).answer(questions))
    assert [answers[question].error != "" for question in questions] == [True, True, False, False]
    plain.write_text(json.dumps({"elsewhere": "A"}))
    with pytest.raises(UserError, match="holds no kernel for any"):
        AnswersModel(plain, tasks)


def test_kernelbench_results_and_baselines_go_both_ways(tmp_path: Path) -> None:
    task = Task("level1/19_ReLU", 1, 19, "19_ReLU", "")
    timed = Verdict("correct", "done", timing=Timing(2.0, 3.0, 1.5, 100, kernel_spread_ms=0.1349), device="H100")
    given = [
        timed,
        Verdict("wrong", "compare"),
        Verdict("compile_error", "compile"),
        Verdict("unsupported", "static"),
    ]
    content = eval_results([task], [Judgement(task.key, place, one) for place, one in enumerate(given)])
    entry = content["19"][0]
    assert set(entry) == {"sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"}
    assert entry["runtime"] == 2.0 and entry["runtime_stats"]["std"] == pytest.approx(0.1)
    assert [(one["compiled"], one["correctness"], one["runtime"]) for one in content["19"]] == [
        (True, True, 2.0), (True, False, -1.0), (False, False, -1.0),
    ]  # fmt: skip

    path = tmp_path / "baseline.json"
    measured = Baseline(**summary([1.0, 2.0, 3.0], "NVIDIA H100", "cuda:0"))
    assert (measured.mean, measured.min, measured.max, measured.num_trials) == (2.0, 1.0, 3.0, 3)
    write_baselines(path, {"level1": {"19_ReLU.py": measured}})
    assert json.loads(path.read_text())["level1"]["19_ReLU.py"]["std"] == 0.8165
    assert read_baselines(path) == {"level1": {"19_ReLU.py": measured}}
    path.write_text('{"level1": {"x.py": {"mean": 1}}}')
    with pytest.raises(UserError, match="no baseline file"):
        read_baselines(path)


def test_baselines_need_a_gpu(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not why_no_cuda():
        pytest.skip("there is a GPU here")
    assert main(["bench", "baseline", "--problems", str(bench), "-o", str(bench / "b.json")]) == 3
    assert "Baselines are timed on a GPU" in capsys.readouterr().err


def test_transformers_answers(bench: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from dice.evaluate.models.huggingface import TransformersModel

    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        shutil.copy(ROOT / "dice" / "nano" / name, tmp_path / name)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Qwen3Config(vocab_size=8192, num_key_value_heads=2, head_dim=8, eos_token_id=2, **size)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    question = Question(load_tasks(bench)[0], 0, "Write a kernel.", seed=3)
    for settings in (
        {"max_new_tokens": 7, "temperature": 0.0},
        {"max_new_tokens": 7, "temperature": 1.0, "top_p": 0.9},
    ):
        answers = [next(TransformersModel(str(tmp_path), settings).answer([question]))[1] for _ in range(2)]
        assert answers[0].text == answers[1].text and 0 < answers[0].tokens <= 7 and answers[0].prompt_tokens > 3
        assert extract_kernel(answers[0].text) is None
    with pytest.raises(UserError, match="no way to denoise"):
        TransformersModel(str(tmp_path), {"steps": 4})
    with pytest.raises(UserError, match="cannot load"):
        TransformersModel(str(tmp_path / "level1"), {})


def test_a_model_of_dreams_kind_is_told_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for code that comes with the weights, which has a `diffusion_generate` of its own."""
    transformers = pytest.importorskip("transformers")
    import torch

    from dice.evaluate.models import huggingface

    class Denoiser(torch.nn.Module):
        generation_config = transformers.GenerationConfig(eos_token_id=2)
        device = torch.device("cpu")

        def diffusion_generate(self, ids: torch.Tensor, attention_mask: torch.Tensor, **told: object) -> torch.Tensor:
            self.told = told
            return torch.cat([ids, torch.tensor([[100, 101, 2, 102]])], dim=1)

    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        shutil.copy(ROOT / "dice" / "nano" / name, tmp_path / name)
    monkeypatch.setattr(huggingface, "_load", lambda *_: Denoiser())
    settings = {"max_new_tokens": 4, "algorithm": "entropy", "algorithm_temperature": 0.1, "top_p": 0.95}
    model = huggingface.TransformersModel(str(tmp_path), settings)
    question = Question(Task("a", 0, 1, "a", ""), 0, "Write a kernel.")
    ((_, answer),) = model.answer([question])
    assert model.model.told == {"max_new_tokens": 4, "alg": "entropy", "alg_temp": 0.1, "top_p": 0.95, "steps": 4}
    assert answer.stop == "end" and answer.tokens == 3 and answer.forwards == 4
