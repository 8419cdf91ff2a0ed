"""Training at SDAR-8B's shapes on this machine's GPUs, with random weights: SFT, its checkpoint, a step of BiC-RL.

    python benchmarks/train8b_gpu.py --out FOLDER [--seconds 500] [--shape 8b] [--only STAGE ...]

Writes FOLDER/train8b_gpu.json after each stage; a stage that is there is not done again. Each stage starts its own
processes, is ended when its time is up, and is left for the next call where too little time is left. The stages:

    sft       on all GPUs, float32 moments, recomputing what the plan says: 50 steps, MFU, the peak beside the plan
    sft_one   the same on one GPU with bfloat16 moments, 15 steps
    blocks    on all GPUs, every block recomputed: what the choice brings
    save      a checkpoint of the training's state: how long a step waits for it, how long it is written beside steps;
              export and loading of the model, with the memory of the process
    rl        a step: 64 prompts x 16 answers of 2,000 tokens, two tokens a forward; for each answer that is written a
              stored one of the synthetic corpus is verified, because random weights write no kernels; the update goes
              from problem to problem as verdicts come. What a run does once, recording graphs and compiling, is done
              on two short answers before, and a kernel for each worker is verified
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dice import synth  # noqa: E402
from dice.bench.train import TrainBenchPlan, needed_flops, random_rows  # noqa: E402
from dice.decode.generate import DecodeConfig, generate  # noqa: E402
from dice.decode.trace import Trace  # noqa: E402
from dice.files.atomic import read_json, write_json  # noqa: E402
from dice.model.checkpoint import load_model, save_model  # noqa: E402
from dice.model.sdar import SDAR, SDARConfig  # noqa: E402
from dice.recipes import SHAPES, dice_8b_rl, dice_8b_sft  # noqa: E402
from dice.train.blocks import shard  # noqa: E402
from dice.train.checkpoints import Checkpoints  # noqa: E402
from dice.train.engine import Engine, pick_engine  # noqa: E402
from dice.train.noise import corrupt, step_generator  # noqa: E402
from dice.train.plan.choose import choose_recompute, recompute_for  # noqa: E402
from dice.train.plan.gpus import peak_flops  # noqa: E402
from dice.train.plan.memory import USABLE, Layout  # noqa: E402
from dice.train.rl.policy import Policy, ScoredTrace  # noqa: E402
from dice.train.rl.verification import VerifierPool  # noqa: E402
from dice.train.session import StopSignal  # noqa: E402
from dice.train.sft_objective import deal, split_noise, weighted_loss  # noqa: E402
from dice.train.weights import Weights, stored_bytes, without_moments  # noqa: E402
from dice.train.world import World, joined  # noqa: E402

Figures = dict[str, Any]
LEAST_SECONDS = {"sft": 150, "sft_one": 150, "blocks": 120, "save": 200, "rl": 600}
GRACE_S = 20.0  # between a stage's own end and the signal that ends it
PROMPTS, ANSWERS, PROMPT_TOKENS, ANSWER_TOKENS = 64, 16, 1500, 2000
IN_A_ROW = 2  # answers to a prompt, with all their rounds; of more, most blocks would have to be computed twice
HEAD = 0.1  # of what the head's weights are drawn as
MOST_AT_ONCE = 96  # texts: with more, a GPU of 141 GB has too little left for the kernels that are verified meanwhile


class Training:
    """SFT of a model with random weights on rows of random documents, as `dice train sft` runs it."""

    def __init__(
        self, name: str, world: World, *, moments: str, checkpointing: str, say: Callable[[str], None]
    ) -> None:
        shape, vocabulary = SHAPES[name]
        recipe = replace(
            dice_8b_sft(), lr=1e-6, moments=moments, activation_checkpointing=checkpointing,  # type: ignore[arg-type]
        )  # fmt: skip
        self.recipe, self.world, self.say = recipe, world, say
        rows = recipe.row_tokens if world.device.type == "cuda" else 256
        self.plan = TrainBenchPlan(shape, vocabulary, 4, rows, recipe.batch_rows, 1, 1, rows // 8, rows)
        self.dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
        torch.manual_seed(0)
        with torch.device(world.device):
            master = SDAR(self.plan.model)
        self.batch = random_rows(self.plan).to(world.device)
        self.batch = self.batch.take(torch.arange(self.plan.batch_rows, device=world.device))
        shard(master, world, self.dtype, reshard=True)
        self.weights = Weights(master, recipe, self.dtype)
        tokens = 2 * rows
        self.recompute = choose_recompute(
            recipe, self.plan.model, world, tokens=tokens, moments=moments, dtype=self.dtype, say=say
        )
        self.engine: Engine = pick_engine(
            self.weights.model, next(self.batch.split(1)), 4, self.plan.model.mask_token_id, attention="auto",
            compiled=world.device.type == "cuda", say=say, recompute=self.recompute, dtype=self.dtype,
        )  # fmt: skip
        self.layout = Layout(
            config=self.plan.model, gpus=world.size, tokens=tokens, moments=moments, compute_bytes=self.dtype.itemsize
        )

    def step(self, number: int) -> tuple[float, float]:
        """Seconds of one optimiser step over the whole batch, and the operations that it needed."""
        synchronize(self.world)
        begun = time.perf_counter()
        generator = step_generator(0, "train", number, self.world.device)
        noise = corrupt(self.batch.trainable, self.batch.documents, 4, "count", generator)
        trained = int(self.batch.trainable.sum())
        for micro, part in deal(list(zip(self.batch.split(1), split_noise(noise, 1), strict=True)), self.world):
            total, _ = weighted_loss(self.engine, self.weights.model, micro, part, self.plan.model.mask_token_id)
            (total / trained).backward()
        self.weights.clip(1.0)
        self.weights.update(1e-6, number)
        synchronize(self.world)
        (taken,) = self.world.all_reduce_max(time.perf_counter() - begun)
        return taken, needed_flops(self.plan.model, self.batch, noise)

    def measure(self, steps: int, ends: float) -> Figures:
        """So many steps, or as many as there is time for; the first two are not counted."""
        taken, needed = [], 0.0
        steps = steps if self.world.device.type == "cuda" else 2
        for number in range(steps + 2):
            if number == 2 and self.world.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds, needed = self.step(number)
            if number >= 2:
                taken.append(seconds)
            (late,) = self.world.all_reduce_max(float(time.time() > ends))
            if late and taken:
                break
        tokens, peak = self.plan.batch_rows * self.plan.row_tokens, peak_flops(self.world.device)
        used = torch.cuda.max_memory_allocated() if self.world.device.type == "cuda" else 0
        (most,) = self.world.all_reduce_max(float(used))
        available = 0.0
        if self.world.device.type == "cuda":
            available = torch.cuda.get_device_properties(self.world.device).total_memory * USABLE
        _, predicted = recompute_for(self.recipe, self.layout, available)
        median = statistics.median(taken)
        return {
            "steps": len(taken), "step_s": {"median": median, "least": min(taken), "most": max(taken)},
            "clean_tokens_per_s_a_gpu": tokens / median / self.world.size,
            "mfu": None if peak is None else needed / median / (peak * self.world.size),
            "peak_memory_bytes": most, "predicted_bytes": predicted.total, "predicted_split": asdict(predicted),
            "recompute": str(self.recompute), "engine": self.engine.name, "gpus": self.world.size,
        }  # fmt: skip


def synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def sft(args: argparse.Namespace, world: World, say: Callable[[str], None], *, steps: int, **how: str) -> Figures:
    return Training(args.shape, world, say=say, **how).measure(steps, args.ends)


def save(args: argparse.Namespace, world: World, say: Callable[[str], None]) -> Figures:
    """With moments where the disk has room for them."""
    training = Training(args.shape, world, moments="float32", checkpointing="auto", say=say)
    alone = [training.step(number)[0] for number in range(4)][2:]
    tensors = training.weights.tensors()
    found: Figures = {}
    free = os.statvfs(args.out).f_bavail * os.statvfs(args.out).f_frsize
    (lacking,) = world.all_reduce_max(float(free < 1.3 * stored_bytes(tensors)))
    if lacking:
        tensors = without_moments(tensors)
    with Checkpoints(args.out / "checkpoints", 1, world) as checkpoints:
        begun = time.perf_counter()
        checkpoints.save(1, tensors, {})
        found["snapshot_s"] = time.perf_counter() - begun
        say(f"{stored_bytes(tensors) / 1e9:.0f} GB copied to the host in {found['snapshot_s']:.0f} s")
        beside = [training.step(number)[0] for number in range(4, 10)]
        found["six_steps_s"] = sum(beside)
        world.all_gather(checkpoints.settle)
        found["written_s"] = time.perf_counter() - begun
        say(f"written after {found['written_s']:.0f} s, six steps took {found['six_steps_s']:.0f} of them")
    world.broadcast_from_leader(lambda: subprocess.run(["rm", "-rf", str(args.out / "checkpoints")], check=True))
    found |= {"bytes": stored_bytes(tensors), "step_alone_s": min(alone), "step_beside_s": statistics.median(beside)}
    begun = time.perf_counter()
    state = training.weights.export(world.leads)
    found["gather_s"] = time.perf_counter() - begun
    say(f"gathered in {found['gather_s']:.0f} s")
    config = training.plan.model
    del training, tensors
    begun = time.perf_counter()
    world.broadcast_from_leader(lambda: save_model(state, config, args.out / "model", dtype=torch.bfloat16))
    found["export_s"] = time.perf_counter() - begun
    state.clear()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    if world.leads:
        found["load"] = loading(args.out / "model", world)
    return found


def loading(folder: Path, world: World) -> Figures:
    """From the page cache, for the second time, with what the process held beyond what it held before."""
    load_model(folder, device=world.device)
    seen, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            seen[0] = max(seen[0], resident())

    before, watcher = resident(), threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    load_model(folder, device=world.device)
    synchronize(world)
    taken = time.perf_counter() - begun
    ended.set()
    watcher.join()
    files = sorted(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {"seconds": taken, "peak_bytes_above": max(0, seen[0] - before), "files": files}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rl(args: argparse.Namespace, world: World, say: Callable[[str], None]) -> Figures:
    """Decoding, with verification beside it, and the update; seconds of each, of the process that took longest."""
    cuda = world.device.type == "cuda"
    length, prompt_length = (ANSWER_TOKENS, PROMPT_TOKENS) if cuda else (16, 20)
    policy = sampled_policy(args, world, say, length, prompt_length)
    vocabulary = policy.model.config.vocab_size
    chance = torch.Generator().manual_seed(1)
    count, answers = (PROMPTS, ANSWERS) if cuda else (2, 2)
    prompts = [torch.randint(0, vocabulary - 1, (prompt_length,), generator=chance).tolist() for _ in range(count)]
    tasks = [prompt for prompt in prompts for _ in range(answers)][world.rank :: world.size]
    decoding = DecodeConfig(
        max_new_tokens=length, denoising_steps=2, remasking="low_confidence_static", temperature=1.0,
        stop_ids=frozenset(), max_active=MOST_AT_ONCE,
    )  # fmt: skip
    config = replace(dice_8b_rl(), backend=args.backend if cuda else "emulated", problems=count, responses=answers)
    with world.opened(VerifierPool.open(config, world, StopSignal(), say)) as pool:
        begun = time.perf_counter()
        first = generate(policy.sampler, tasks[:2], replace(decoding, max_new_tokens=16), seeds=(0, 1), engine=True)
        learn_once(policy, first)
        verification = Verification(pool, world, len(tasks))
        verification.warm()
        found: Figures = {"start_s": time.perf_counter() - begun}
        say(f"ready after {found['start_s']:.0f} s")
        begun = time.perf_counter()
        traces = generate(
            policy.sampler, tasks, decoding, None, range(len(tasks)), lambda place, _: verification.put(place),
            engine=True,
        )  # fmt: skip
        verification.pending.close()
        synchronize(world)
        found["decode_s"] = time.perf_counter() - begun
        say(f"decoded in {found['decode_s']:.0f} s")
        if cuda:
            torch.cuda.empty_cache()  # for the kernels, as the trainer does it
        parts = world.all_gather(lambda: traces)
        every = [parts[n % world.size][n // world.size] for n in range(count * answers)]
        found |= learned(policy, every, answers, verification, say)
    outcomes = dict(Counter(f"{one.outcome}, {one.backend}" for one in verification.pending.verdicts.values()))
    found["peak_bytes"] = float(torch.cuda.max_memory_allocated()) if cuda else 0.0
    update: Figures = found.pop("update")
    found = dict(zip(found, world.all_reduce_max(*found.values()), strict=True))
    peak = peak_flops(world.device)
    return found | {
        "outcomes_of_one_process": outcomes,
        "step_s": sum(found[name] for name in ("decode_s", "score_s", "wait_s", "update_s")),
        "answers": len(every), "tokens": sum(len(trace.token_ids) for trace in every), "update": update,
        "update_mfu": None if peak is None else update["work"] / found["update_s"] / (peak * world.size),
        "of_a_whole_step": len(every) / 1024, "gpus": world.size,
    }  # fmt: skip


def learned(
    policy: Policy, every: Sequence[Trace], answers: int, verification: Verification, say: Callable[[str], None]
) -> Figures:
    """From all answers, so many to each problem, as the trainer does it: problem after problem, as verdicts come."""
    begun = time.perf_counter()
    old = policy.score(every) if policy.must_score(every) else None
    score = time.perf_counter() - begun
    say(f"scored in {score:.0f} s")

    def samples() -> Iterator[ScoredTrace]:
        for first in range(0, len(every), answers):
            numbers = range(first, first + answers)
            verification.wait(numbers)
            say(f"{time.perf_counter() - begun:.0f} s: learning from problem {first // answers + 1}")
            yield from ((every[n], (-1.0) ** n) for n in numbers)

    begun = time.perf_counter()
    stats = policy.update_meanwhile(samples()) if old is None else policy.update(list(samples()), old)
    assert stats is not None
    synchronize(policy.world)
    update = time.perf_counter() - begun - verification.waited
    verify = verification.pending.seconds
    return {
        "score_s": score, "wait_s": verification.waited, "update_s": update, "verify_s": verify,
        "update": stats.to_json(),
    }  # fmt: skip


def learn_once(policy: Policy, traces: list[Trace]) -> None:
    """What a run does once, compiling for scoring and for the update."""
    every = [trace for part in policy.world.all_gather(lambda: traces) for trace in part]
    policy.score(every)
    policy.update([(trace, (-1.0) ** n) for n, trace in enumerate(every)])
    synchronize(policy.world)


def sampled_policy(
    args: argparse.Namespace, world: World, say: Callable[[str], None], length: int, prompt_length: int
) -> Policy:
    """The recipe's, of random weights. Rows hold a few answers to one prompt with all their rounds."""
    shape, vocabulary = SHAPES[args.shape]
    model = SDARConfig(vocab_size=vocabulary, mask_token_id=vocabulary - 1, block_size=4, **asdict(shape))
    cuda = world.device.type == "cuda"
    torch.manual_seed(0)
    with torch.device(world.device):
        weights = SDAR(model)
    with torch.no_grad():
        # The logits of random weights round five times as far as a trained model's, so that every answer would be
        # scored again; a smaller head rounds as a trained one does. It changes no time otherwise.
        weights.lm_head.weight.mul_(HEAD)
    recipe = dice_8b_rl().policy
    # An answer is read once clean and once in each of the two rounds of its blocks, of which its ends may cut two.
    row = prompt_length + IN_A_ROW * 3 * (length + 2 * model.block_size)
    minibatch = recipe.minibatch if cuda else 2
    config = replace(recipe, max_new_tokens=length, row_tokens=-(-row // 128) * 128, minibatch=minibatch)
    return Policy(weights, config, world=world, compute_dtype=torch.bfloat16 if cuda else torch.float32, say=say)


class Verification:
    """Stored kernels of the synthetic corpus in place of what random weights write, another one for each of a process's
    `count` answers, verified as the trainer verifies its own."""

    def __init__(self, pool: VerifierPool, world: World, count: int) -> None:
        self.pool, self.world, self.waited = pool, world, 0.0
        pairs = (synth.generate(7, world.rank * 100_000 + n) for n in range(count + pool.workers))
        self.pairs = [(pair.problem, pair.kernel) for pair in pairs]
        self.pending = pool.begin()

    def warm(self) -> None:
        """As the verifier of a run is after its first step: a kernel for each worker."""
        first = self.pool.begin()
        for key in range(-self.pool.workers, 0):
            first.put(key, *self.pairs[key])
        first.close()
        self.world.all_gather(lambda: self.pool.finish(first))

    def put(self, place: int) -> None:
        self.pending.put(place, *self.pairs[place])

    def wait(self, numbers: Sequence[int]) -> None:
        """For the verdicts on these answers, of all processes."""
        own = [n // self.world.size for n in numbers if n % self.world.size == self.world.rank]
        begun = time.perf_counter()
        found = self.world.all_gather(lambda: self.pool.finish(self.pending, own))
        self.waited += time.perf_counter() - begun
        for verdict in found[self.world.rank].values():
            if not verdict.correct:
                print(f"{verdict.outcome}, {verdict.backend}: {verdict.message[:300]}", flush=True)


def child(args: argparse.Namespace) -> int:
    """One process of a stage; the leader writes what it found."""
    with joined("auto") as world:
        say = (lambda text: print(text, flush=True)) if world.leads else (lambda text: None)
        stages: dict[str, Callable[[], Figures]] = {
            "sft": lambda: sft(args, world, say, steps=50, moments="float32", checkpointing="auto"),
            "blocks": lambda: sft(args, world, say, steps=10, moments="float32", checkpointing="block"),
            "sft_one": lambda: sft(args, world, say, steps=15, moments="bfloat16", checkpointing="auto"),
            "save": lambda: save(args, world, say),
            "rl": lambda: rl(args, world, say),
        }
        found = stages[args.child]()
        if world.leads:
            write_json(args.out / f"{args.child}.json", found)
    return 0


def stage(name: str, args: argparse.Namespace, gpus: int, seconds: float) -> tuple[Figures | None, str]:
    """What the stage found, or the end of what it said."""
    result = args.out / f"{name}.json"
    result.unlink(missing_ok=True)
    processes = 1 if name == "sft_one" else max(1, gpus)
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = [
        "--out",
        str(args.out),
        "--shape",
        args.shape,
        "--backend",
        args.backend,
        "--child",
        name,
        "--ends",
        str(time.time() + seconds - GRACE_S),
    ]
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    log = args.out / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*launch, str(Path(__file__).resolve()), *own], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
    text = log.read_text()
    print(text[-1500:], flush=True)
    return (read_json(result), "") if result.is_file() else (None, text[-3000:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument(
        "--backend",
        choices=("cuda", "emulated", "emulated_first"),
        default="cuda",
        help="of the kernels verified by rl",
    )
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    args.out.mkdir(parents=True, exist_ok=True)
    file, ends = args.out / "train8b_gpu.json", time.monotonic() + args.seconds
    known: Figures = read_json(file) if file.exists() else {"stages": {}, "failures": {}}
    gpus = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(n) for n in range(gpus)]
    known["machine"] = {"torch": torch.__version__, "gpus": names, "shape": args.shape}
    for name, least in LEAST_SECONDS.items():
        if name in known["stages"] or (args.only is not None and name not in args.only):
            continue
        left = ends - time.monotonic()
        if left < (least if gpus else 10):
            print(f"{name}: left for the next call, {left:.0f} s are left", flush=True)
            continue
        begun = time.monotonic()
        found, failure = stage(name, args, gpus, left)
        known["failures"].pop(name, None)
        if found is None:
            known["failures"][name] = failure
        else:
            known["stages"][name] = found | {"seconds": time.monotonic() - begun}
        write_json(file, known)
        print(json.dumps({name: found or failure}), flush=True)
    return 1 if known["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
