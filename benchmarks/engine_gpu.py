"""The engine on this machine's GPU: its kernels and texts checked, then its speed beside the limit, within minutes.

    python benchmarks/engine_gpu.py --out FOLDER [--seconds 450] [--only STAGE ...]

Writes FOLDER/engine_gpu.json after each stage (and after each row of speed); what it holds is not done again. The
stages: `kernels` (each against plain PyTorch), `texts` (the engine against the plain decoder, float32 and bfloat16,
with preemption and aborts), `nano` (the shipped model: equal texts, speed, fp8), `8b` and `4b` (random weights; what
`dice bench decode` measures), `profile` (where a step's time goes), `soak`, `rollouts` (a step of RL), and with two
GPUs `tp` (a model cut over both: texts, speed at 8B, replacing its weights, and the end of a rank). A stage that
fails says why, and the next one is done; one for which no time is left is left for the next call. Exit code 1 when
something failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
for place in (ROOT, ROOT / "tests" / "decode", ROOT / "tests" / "decode" / "engine"):
    sys.path.insert(0, str(place))

import kernel_checks as checks  # noqa: E402
from decoding_helpers import CONFIG, prompt_of  # noqa: E402
from engine_helpers import plain, requests, submit  # noqa: E402

from dice.bench.decode import DecodeBench, DecodePlan, random_model  # noqa: E402
from dice.decode.block_diffusion import denoise, new_texts  # noqa: E402
from dice.decode.engine.batch import new_engine, ranks_of  # noqa: E402
from dice.decode.engine.engine import Engine, Handle  # noqa: E402
from dice.decode.engine.plan import Room  # noqa: E402
from dice.decode.engine.ranks import Ranks  # noqa: E402
from dice.decode.generate import ENGINE, generate  # noqa: E402
from dice.decode.request import DecodeConfig  # noqa: E402
from dice.decode.trace import Trace  # noqa: E402
from dice.errors import MachineError  # noqa: E402
from dice.files.atomic import write_json  # noqa: E402
from dice.model.checkpoint import load_model  # noqa: E402
from dice.model.sdar import SDAR  # noqa: E402
from dice.recipes import SHAPES  # noqa: E402

Figures = dict[str, Any]
SOAK_S = 90.0  # of new texts; those under way are written to their end
DEVICE = torch.device("cuda")
LARGE: Figures = {"heads": (32, 8, 128), "width": 4096, "vocabulary": 151936, "page_size": 64, "context": 512}


class Run:
    """What is known so far, and how much time is left. `failures`: what did not hold, by stage."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.file, self.ends = out / "engine_gpu.json", time.monotonic() + seconds
        out.mkdir(parents=True, exist_ok=True)
        self.known: Figures = (
            json.loads(self.file.read_text()) if self.file.exists() else {"stages": {}, "failures": {}}
        )
        self.known["machine"] = machine()

    def stage(self, name: str, least_seconds: float, work: Callable[[Figures], None]) -> None:
        """Do `work`, which fills in what it is given, unless it is done or time is short."""
        found = self.known["stages"].setdefault(name, {})
        if found.get("done"):
            return
        if self.left() < least_seconds:
            print(f"{name}: left for the next call, {self.left():.0f} s are left", flush=True)
            return
        print(f"{name} ...", flush=True)
        begun = time.monotonic()
        self.known["failures"].pop(name, None)
        try:
            work(found)
            found["done"] = not found.pop("unfinished", False)
        except Exception:
            self.known["failures"][name] = traceback.format_exc()[-3000:]
            print(self.known["failures"][name], flush=True)
        found["seconds"] = round(time.monotonic() - begun, 1)
        self.save()

    def left(self) -> float:
        return self.ends - time.monotonic()

    def save(self) -> None:
        write_json(self.file, self.known)


def machine() -> Figures:
    import triton

    query = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version,clocks.sm,clocks.max.sm",
        "--format=csv,noheader",
    ]
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "nvidia_smi": smi,
    }


def kernels(found: Figures) -> None:
    """Every kernel in float32 on odd sizes, and in bfloat16 on SDAR-8B's."""
    odd = checks.Case(device="cuda")
    large = checks.Case(device="cuda", dtype=torch.bfloat16, **LARGE)
    every: dict[str, Callable[[], Any]] = {
        "rows float32": lambda: checks.check_rows(odd),
        "rows bfloat16": lambda: checks.check_rows(large),
        "few rows float32": lambda: checks.check_few_rows(odd),
        "few rows bfloat16": lambda: checks.check_few_rows(large),
        "step blocks of 4": lambda: checks.check_step(odd, Room(5, 10)),
        "step little room": lambda: checks.check_step(odd, Room(3, 4)),
        "step of the next token": lambda: checks.check_step(replace(odd, block_size=1, shift=True), Room(5, 5)),
        "step blocks of 1": lambda: checks.check_step(replace(odd, block_size=1), Room(5, 10)),
        "step blocks of 16": lambda: checks.check_step(replace(odd, block_size=16), Room(5, 10), ends=False),
        "step large vocabulary": lambda: checks.check_step(replace(odd, vocabulary=151936), Room(5, 10), ends=False),
        "step of a cut vocabulary": lambda: checks.check_split(odd, 2),
        "step of a large cut vocabulary": lambda: checks.check_split(replace(odd, vocabulary=151936), 2),
        "prefixes bfloat16": lambda: checks.check_prefixes(replace(large, slots=40), 264),
        "drawing": lambda: holds(checks.check_drawing(replace(odd, slots=5), 20000) < 0.03),
    }
    shapes = {
        "float32": odd, "bfloat16": large, "bfloat16, block 16": replace(large, block_size=16),
        "bfloat16, block 1": replace(large, block_size=1),
    }  # fmt: skip
    for name, case in shapes.items():
        for programs in (1, 264):
            every[f"attention {name}, {programs} programs"] = partial(checks.check_attention, case, programs)
    failed = []
    for name, check in every.items():
        try:
            check()
            found[name] = "holds"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[-600:]}"
            failed.append(name)
        torch.cuda.synchronize()
    holds(not failed, f"kernels that differ: {', '.join(failed)}")


def holds(condition: bool, message: str = "") -> None:
    if not condition:
        raise AssertionError(message)


def small_model(dtype: torch.dtype = torch.float32, **changes: Any) -> SDAR:
    torch.manual_seed(0)
    model = SDAR(replace(CONFIG, head_dim=16, max_position_embeddings=512, **changes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0, 0.3)
    return model.to(DEVICE, dtype)


def texts(found: Figures) -> None:
    """In float32 every text is the plain decoder's; in bfloat16 rounding turns some close choices."""
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        for block_size in (4, 8, 16):
            model = small_model(dtype)
            wanted = requests(60, block_size, seed=block_size)
            engine = new_engine(model, 12, 192, block_size)
            handles = submit(engine, wanted)
            engine.run()
            expected = [plain(model, one) for one in wanted]
            found[f"{name}, block {block_size}"] = agreement(handles, expected)
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        model = small_model(dtype)
        wanted = [replace(one, prompt=prompt_of(300 + index % 5, seed=1)) for index, one in enumerate(requests(64, 4))]
        engine = new_engine(model, 48, 384, 4)
        handles = submit(engine, wanted)
        engine.run()
        found[f"{name}, one prompt"] = agreement(handles, [plain(model, one) for one in wanted])
    model = small_model()
    endless = {"max_new_tokens": 90, "stop_ids": frozenset()}  # for texts that end early leave room to the others
    wanted = [replace(one, config=replace(one.config, **endless)) for one in requests(24, 4, seed=2)]
    tight = Engine(
        model, slots=16, context=256, cache_tokens=400, page_size=16, block_size=4, make_runner=graph_runner(),
        prefill_tokens=64,
    )  # fmt: skip
    handles = submit(tight, wanted)
    gone = random.Random(0).sample(handles, 6)
    while tight.step():
        for handle in gone[:]:
            if handle.state == "writing" and handle.text.step > 5:
                tight.abort(handle)
                gone.remove(handle)
    pairs = [(h, plain(model, one)) for h, one in zip(handles, wanted, strict=True) if h.state == "finished"]
    found["preemption"] = agreement([h for h, _ in pairs], [t for _, t in pairs]) | {"preempted": tight.preempted}
    holds(tight.pages.free == tight.pages.count, "pages were lost")
    holds(tight.preempted > 0, "nothing was preempted")
    causal = small_model(family="qwen3", block_size=1, mask_token_id=-1)
    config, prompts = (
        DecodeConfig(max_new_tokens=40, seed=3),
        [prompt_of(length, seed=length) for length in range(1, 30)],
    )
    from dice.decode.autoregressive import generate_autoregressive

    engine = new_engine(causal, 12, 128)
    handles = [engine.submit(prompt, config, seed) for seed, prompt in enumerate(prompts)]
    engine.run()
    expected = generate_autoregressive(causal, prompts, config, seeds=range(len(prompts)))
    found["autoregressive"] = agreement(handles, expected)
    exact = [name for name in found if not name.startswith("bfloat16") and name not in ("seconds", "done")]
    worse = [name for name in exact if found[name]["equal"] < found[name]["texts"] * 0.98]
    holds(not worse, f"texts differ: { {name: found[name] for name in worse} }")


def graph_runner() -> Any:
    from dice.decode.engine.cuda import GraphRunner

    return GraphRunner


def agreement(handles: list[Handle], expected: list[Trace]) -> Figures:
    """How many texts are equal, the share of tokens before the first that differs, and the largest difference of
    log-probabilities where all of a text is equal."""
    equal, share, worst = 0, [], [0.0]
    for handle, theirs in zip(handles, expected, strict=True):
        ours = handle.trace
        assert ours is not None
        same = (ours.token_ids, ours.steps) == (theirs.token_ids, theirs.steps)
        equal += same
        pairs = list(zip(ours.token_ids, theirs.token_ids, strict=False))
        share.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs)) / max(1, len(pairs)))
        if same:
            worst.append(max(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)))
    return {"texts": len(expected), "equal": equal, "agrees_before": statistics.mean(share), "logprob_gap": max(worst)}


def nano(found: Figures) -> None:
    """The shipped model: greedy texts against the plain decoder, tokens a second of one text and of many, fp8."""
    prompts = [prompt_of(200 + 7 * n, seed=n) for n in range(250)]
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        model = load_model(ROOT / "dice" / "nano", dtype, "cuda")
        greedy = DecodeConfig(max_new_tokens=256, temperature=0.0, stop_ids=frozenset(), max_active=128)
        generate(model, prompts[:1], greedy)
        begun = time.perf_counter()
        one = generate(model, prompts[:1], greedy)
        single = time.perf_counter() - begun
        begun = time.perf_counter()
        theirs = denoise(model, new_texts(model, prompts[:1], greedy, [0]), greedy)
        slow = time.perf_counter() - begun
        generate(model, prompts, greedy)
        begun = time.perf_counter()
        every = generate(model, prompts, greedy)
        many = time.perf_counter() - begun
        found[name] = {
            "tokens_per_s_one": len(one[0].token_ids) / single,
            "plain_tokens_per_s_one": len(theirs[0].token_ids) / slow,
            "seconds_250_texts": many, "tokens_250_texts": sum(len(trace.token_ids) for trace in every),
            "same_as_plain": one[0].token_ids == theirs[0].token_ids,
        }  # fmt: skip
    model = load_model(ROOT / "dice" / "nano", torch.bfloat16, "cuda")
    config = DecodeConfig(max_new_tokens=128, temperature=0.0, stop_ids=frozenset())
    engine = new_engine(model, 64, 1024, fp8=True)
    handles = [engine.submit(prompt, config, seed) for seed, prompt in enumerate(prompts[:64])]
    engine.run()
    found["fp8"] = agreement(handles, denoise(model, new_texts(model, prompts[:64], config, range(64)), config))


def speed(run: Run, name: str, wanted: list[tuple[str, int, int, int]], ranks: int = 1) -> Callable[[Figures], None]:
    """`wanted`: (who, batch, context, tokens a step), in order of importance. `ranks`: GPUs of the engine."""

    def work(found: Figures) -> None:
        shape, vocabulary = SHAPES[name]
        rows = found.setdefault("rows", [])

        def keep(row: Figures) -> None:
            rows.append(row)
            print(json.dumps(row), flush=True)
            run.save()

        plan = DecodePlan(shape, vocabulary, 4, (), (), (), 64, fp8=True, tensor_parallel=ranks)
        bench = DecodeBench(plan, DEVICE, lambda text: print(text, flush=True), keep)
        found["ceilings"] = asdict(bench.ceilings)
        have = {(row["who"], row["batch"], row["context"], row["t"]) for row in rows}
        for who, batch, context, count in wanted:
            if (who, batch, context, count) in have:
                continue
            if run.left() < 25:
                found["unfinished"] = True
                return
            bench.plan = replace(plan, batches=(batch,), contexts=(context,), revealed=(count,))
            bench.run([who])

    return work


def tensor_parallel(run: Run, wanted: list[tuple[str, int, int, int]]) -> Callable[[Figures], None]:
    """One model on two GPUs. What it is compared with, one GPU, is the stage `8b`."""

    def work(found: Figures) -> None:
        holds(torch.cuda.device_count() > 1, "two GPUs are needed")
        for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
            model, asked = small_model(dtype), requests(60, 4, seed=4)
            model.tensor_parallel = 2
            engine = new_engine(model, 12, 192, 4)
            handles = submit(engine, asked)
            engine.run()
            found[name] = agreement(handles, [plain(model, one) for one in asked])
            run.save()
            found[f"{name}, once a rank was killed"] = killed(engine, ranks_of(model))
        holds(found["float32"]["equal"] >= 59, f"texts differ: {found['float32']}")
        found["seconds to replace 8B"] = replacing()
        speed(run, "8b", wanted, ranks=2)(found)

    return work


def killed(engine: Engine, ranks: Ranks) -> str:
    """What is said, and after how long, when a rank is killed while texts are written."""
    submit(engine, requests(12, 4, seed=9))
    for _ in range(5):
        engine.step()
    begun = time.perf_counter()
    ranks._processes[0].kill()
    faulthandler.dump_traceback_later(30)  # where it hangs, if it does
    try:
        engine.run()
    except MachineError as error:
        return f"{error} ({time.perf_counter() - begun:.1f} s)"
    finally:
        faulthandler.cancel_dump_traceback_later()
    raise AssertionError("the engine went on without its rank")


def replacing() -> list[float]:
    """Of 8B's weights, given on the first GPU: three times."""
    shape, vocabulary = SHAPES["8b"]
    config = DecodePlan(shape, vocabulary, 4, (), (), (), 1).model
    model = random_model(config, DEVICE, torch.bfloat16, 0)
    model.tensor_parallel = 2
    engine, seconds = new_engine(model, 8, 1024, 4), []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        engine.refresh()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    ranks_of(model).close()
    return seconds


def profile(found: Figures) -> None:
    """Which kernels take how long in a step of SDAR-8B, for one text and for many."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    shape, vocabulary = SHAPES["8b"]
    plan = DecodePlan(shape, vocabulary, 4, (1,), (1024,), (2,), 8)
    model = random_model(plan.model, DEVICE, torch.bfloat16, 0)
    for batch in (1, 128):
        engine = new_engine(model, batch, 1536, 4)
        config = DecodeConfig(
            max_new_tokens=400, denoising_steps=2, remasking="sequential", stop_ids=frozenset(), temperature=1.0
        )
        for seed in range(batch):
            engine.submit(prompt_of(1024, seed=seed), config, seed)
        for _ in range(40 + batch // 4):
            engine.step()
        torch.cuda.synchronize()
        with profiler(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(8):
                engine.step()
            torch.cuda.synchronize()
        found[f"batch {batch}"] = [
            {"kernel": event.key[:90], "calls": event.count / 8, "us_a_step": event.self_device_time_total / 8}
            for event in sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:22]
        ]
        found[f"sizes {batch}"] = {f"{room.texts} texts, {room.blocks} blocks": ms for room, ms in engine.timings()}
        ways = [kind[0].few_rows or kind[0].few_rows_gated for kind in engine._runner.forward.alike()]
        found["products of few rows"] = ["cuBLAS" if way is None else str(way) for way in ways]
        engine.abort_all()
        del engine
        torch.cuda.empty_cache()


def rollouts(found: Figures) -> None:
    """What a step of RL writes at SDAR-8B's sizes, on one GPU: 16 answers to each of 64 prompts."""
    shape, vocabulary = SHAPES["8b"]
    model = random_model(DecodePlan(shape, vocabulary, 4, (), (), (), 1).model, DEVICE, torch.bfloat16, 0)
    engine = new_engine(model, 256, 3504, 4)
    config = DecodeConfig(
        max_new_tokens=2000, denoising_steps=2, remasking="sequential", stop_ids=frozenset(), temperature=1.0
    )
    for number in range(64 * 16):
        engine.submit(prompt_of(1500, seed=number // 16), config, number)
    begun = time.perf_counter()
    while engine._waiting:  # each answer is begun once an earlier one has made room
        engine.step()
    found["seconds_until_the_last_was_begun"] = time.perf_counter() - begun
    engine.run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    found |= {
        "what": "64 prompts of 1,500 tokens x 16 answers of 2,000 tokens, two a forward", "seconds": seconds,
        "tokens_per_s": 64 * 16 * 2000 / seconds, "forwards": engine.forwards, "preempted": engine.preempted,
        "cache_tokens": engine.pages.count * engine.pages.size,
        "ms_of_the_device": {f"{room.texts} texts, {room.blocks} blocks": ms for room, ms in engine.timings()},
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
    }  # fmt: skip


def soak(found: Figures) -> None:
    """2,000 texts of random lengths, some given up, in a cache too small for them; fewer where they take too long."""
    model, chance = small_model(), random.Random(5)
    engine = Engine(
        model, slots=48, context=448, cache_tokens=2016, block_size=4, page_size=16, make_runner=graph_runner()
    )
    before, wanted = 0, 2000
    handles: list[Handle] = []
    begun = time.perf_counter()
    while len(handles) < wanted or not all(handle.done for handle in handles):
        if time.perf_counter() - begun > SOAK_S:
            wanted = len(handles)
        while len(handles) < wanted and sum(not handle.done for handle in handles[-200:]) < 96:
            prompt = prompt_of(chance.randint(1, 200), seed=chance.randint(0, 400))
            config = DecodeConfig(
                max_new_tokens=chance.randint(1, 200), temperature=chance.choice((0.0, 1.0)),
                top_p=chance.choice((None, None, None, 0.9)),
            )  # fmt: skip
            handles.append(engine.submit(prompt, config, len(handles)))
        engine.step()
        if chance.random() < 0.05:
            alive = [handle for handle in handles[-200:] if not handle.done]
            if alive:
                engine.abort(chance.choice(alive))
        if len(handles) == 1000 and not before:
            before = torch.cuda.memory_allocated()
            found["graphs_at_half"] = engine._runner.graphs  # type: ignore[attr-defined]
    engine.run()
    found |= {
        "seconds_of_work": time.perf_counter() - begun, "texts": len(handles),
        "preempted": engine.preempted, "forwards": engine.forwards,
        "finished": sum(handle.state == "finished" for handle in handles),
        "aborted": sum(handle.state == "aborted" for handle in handles),
        "graphs": engine._runner.graphs,  # type: ignore[attr-defined]
        "memory_grown_bytes": torch.cuda.memory_allocated() - before,
    }  # fmt: skip
    holds(engine.pages.free == engine.pages.count, "pages were lost")
    holds(found["finished"] + found["aborted"] == len(handles), "texts were lost")
    holds(engine.preempted > 0, "nothing was preempted")
    holds(found["graphs"] < 60, f"{found['graphs']} graphs were recorded")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here.", file=sys.stderr)
        return 3
    os.environ[ENGINE] = "1"  # `generate` is to take it
    run = Run(args.out, args.seconds)
    eight = [
        ("engine", 1, 1024, 1), ("engine", 1, 1024, 2), ("engine", 32, 1024, 2), ("engine", 128, 1024, 1),
        ("engine", 128, 1024, 2), ("plain", 1, 1024, 1), ("transformers", 1, 1024, 1), ("engine fp8", 1, 1024, 2),
        ("engine fp8", 128, 1024, 2), ("engine", 128, 1024, 4), ("engine", 64, 1024, 2), ("engine", 128, 2048, 2),
    ]  # fmt: skip
    four = [("engine", 128, 1024, 1), ("engine", 128, 1024, 2), ("engine", 1, 1024, 2), ("engine fp8", 128, 1024, 1)]
    stages: dict[str, tuple[float, Callable[[Figures], None]]] = {
        "kernels": (30, kernels), "texts": (40, texts), "8b": (60, speed(run, "8b", eight)), "nano": (30, nano),
        "profile": (40, profile), "4b": (45, speed(run, "4b", four)), "soak": (SOAK_S + 30, soak),
        "rollouts": (280, rollouts),
    }  # fmt: skip
    if torch.cuda.device_count() > 1 or "tp" in (args.only or ()):
        two = [row for row in eight if row[0] == "engine"]
        stages["tp"] = (120, tensor_parallel(run, two))
    for name, (least, work) in stages.items():
        if args.only is None or name in args.only:
            run.stage(name, least, work)
            torch.cuda.empty_cache()
    for name, text in run.known["failures"].items():
        print(f"{name} FAILED: {text.strip().splitlines()[-1]}", file=sys.stderr)
    return 1 if run.known["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
