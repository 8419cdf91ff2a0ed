"""How noisy the gradient of a step of RL is, and so how many problems a step needs.

    PYTHONPATH=. python3 benchmarks/rl_noise.py OUT --model nano --problems PROBLEMS [--count 512] [--responses 16]
        [--chunk 16] [--seconds 500] [--backend auto]

It samples and verifies responses to so many problems, as a step of RL does, and takes the gradient of each chunk of
`--chunk` problems by itself, at the same weights. From those (McCandlish et al., 2018, appendix A.1, with a problem and
its group of responses as the example):

- the mean cosine of the gradients of two disjoint batches, for batches of a chunk, two, four and so on;
- the squared norm of the true gradient and the trace of the covariance of a problem's, both without bias, and their
  quotient, the noise scale: with so many problems a step, signal and noise are equal. Intervals are by bootstrap over
  the chunks;
- how often responses are right, problem by problem: a group in which all rewards are equal teaches nothing.

OUT/noise.json has all of it, after every chunk. After `--seconds` no further chunk is begun.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dice.files import JsonObject
from dice.files.atomic import write_json
from dice.recipes import nano_rl
from dice.train.rl.config import RLConfig
from dice.train.rl.loop import _prepare
from dice.train.rl.policy import Policy, ScoredTrace
from dice.train.rl.reward import advantages, reward
from dice.train.rl.rollout import Batch, Rollouts, write_here
from dice.train.rl.verification import VerifierPool
from dice.train.run import run_context
from dice.train.runlog import versions

NONE = 1e200  # stands for no number where quotients are put in order
Reals = npt.NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--at-once", type=int, default=8, help="chunks whose responses are decoded together")
    parser.add_argument("--max-new-tokens", type=int, default=1536)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated", "emulated_first"))
    args = parser.parse_args()
    recipe = nano_rl()
    measure(
        replace(
            recipe, model=args.model, out=args.out, infill_steps=0, generate_steps=-(-args.count // args.chunk),
            generate_data=args.problems, problems=args.chunk, responses=args.responses, order="shuffled",
            max_new_tokens=args.max_new_tokens, backend=args.backend,
            policy=replace(recipe.policy, clip_grad=1e9, kl_coef=0.0),
        ).check(), args.at_once, args.seconds,
    )  # fmt: skip


def measure(config: RLConfig, at_once: int, seconds: float) -> None:
    """A step of the run is a chunk here; the weights stay what they are."""
    assert config.out is not None
    begun = time.monotonic()
    gradients: list[Tensor] = []  # of each chunk, mean over its problems
    right: dict[str, list[int]] = {}
    with run_context(config.out, "rl", config.device, 1) as context:
        setup = _prepare(config, context)
        opening = VerifierPool.open(config, context.world, context.stopped, context.log.say)
        with context.world.opened(opening) as pool:
            policy = setup.policy
            rollouts = Rollouts(
                lambda: policy.sampler, setup.prompt_builder, pool, setup.decoding, context.stopped, context.world,
                lambda: 0, partial(write_here, engine=None),
            )  # fmt: skip
            for first in range(0, config.steps, at_once):
                if time.monotonic() - begun > seconds:
                    break
                steps = range(first, min(first + at_once, config.steps))
                requests = [
                    replace(request, group=request.group + (step - first) * config.problems)
                    for step in steps
                    for request in setup.curriculum.requests(step, setup.curriculum.picks(step))
                ]
                batch = rollouts.decode(requests, [first * 1_000_003 + place for place in range(len(requests))])
                gradients += chunk_gradients(policy, rollouts, batch, config, right)
                result = summary(torch.stack(gradients), list(right.values()), config)
                result |= {"seconds": time.monotonic() - begun, "versions": versions(context.world.device)}
                write_json(config.out / "noise.json", result | {"config": config.to_json(), "right_of_each": right})
                told = {key: result[key] for key in ("problems", "flat", "noise_scale", "cosines")}
                print(json.dumps(told), flush=True)


def chunk_gradients(
    policy: Policy, rollouts: Rollouts, batch: Batch, config: RLConfig, right: dict[str, list[int]]
) -> list[Tensor]:
    """The mean gradient over the problems of each chunk [weights], by the update itself, which is not made."""
    groups, found = batch.groups(), []
    for first in range(0, len(groups), config.problems):
        samples = []
        for group in groups[first : first + config.problems]:
            verdicts = rollouts.verdicts(batch, group)
            rewards = [reward(verdicts[index], config) for index in group]
            judged = [worth for worth in rewards if worth is not None]
            right[batch.requests[group[0]].problem.id] = [sum(map(bool, judged)), len(judged)]
            samples += [
                (batch.traces[index], advantage)
                for index, advantage in zip(group, advantages(rewards), strict=True)
                if advantage is not None
            ]
        found.append(gradient(policy, samples, config) / config.problems)
    return found


def gradient(policy: Policy, samples: list[ScoredTrace], config: RLConfig) -> Tensor:
    """Summed over groups, of the loss whose mean is over a group's responses; zero without samples."""
    weights = policy.weights
    if not samples:
        return torch.zeros(sum(weight.numel() for weight in weights.params))
    read = list(policy._read(samples))
    minibatch = policy._batch(read)
    taken: list[Tensor] = []

    def take(lr: float, step: int) -> None:
        gradients = [weight.grad for weight in weights.params if weight.grad is not None]
        taken.append(torch.cat([one.reshape(-1).float().cpu() for one in gradients]))

    with mock.patch.object(weights, "update", take):
        policy._update(policy._engine_for(minibatch), minibatch, changed=False)
    return taken[0] * (len(samples) / config.responses)


def summary(gradients: Tensor, right: list[list[int]], config: RLConfig) -> JsonObject:
    """Of the gradients of n chunks [n, weights]."""
    products = (gradients.double() @ gradients.double().T).numpy()
    rates = [correct / judged for correct, judged in right if judged]
    rng = np.random.default_rng(0)
    signal, noise = scale(products, np.arange(len(products)), config.problems)
    drawn = (rng.integers(0, len(products), len(products)) for _ in range(2000))
    estimates = np.array([scale(products, chosen, config.problems) for chosen in drawn])
    quotients = np.where(estimates[:, 0] > 0, estimates[:, 1] / np.maximum(estimates[:, 0], 1e-300), NONE)
    return {
        "problems": len(right),
        "flat": sum(rate in (0.0, 1.0) for rate in rates),
        "never_right": sum(rate == 0.0 for rate in rates),
        "rates": dict(sorted(Counter(round(rate * 8) / 8 for rate in rates).items())),
        "signal": signal,
        "noise": noise,
        # Problems; None: no number is known to be enough, as the gradient cannot be told from zero.
        "noise_scale": noise / signal if signal > 0 else None,
        "noise_scale_95": [at if at < NONE else None for at in np.quantile(quotients, (0.025, 0.975)).tolist()],
        "signal_95": [float(np.quantile(estimates[:, 0], q)) for q in (0.025, 0.975)],
        "cosines": cosines(products, config.problems, rng),
    }


def scale(products: Reals, chosen: npt.NDArray[np.int64], problems: int) -> tuple[float, float]:
    """|G|^2 and the trace of the covariance of a problem's gradient, from the chosen chunks' inner products.

    Products of different chunks alone estimate |G|^2: a bootstrap's copies of one chunk are no different chunks.
    """
    part = products[np.ix_(chosen, chosen)]
    different = chosen[:, None] != chosen[None, :]
    signal = float(part[different].mean()) if different.any() else 0.0
    return signal, problems * (float(np.diag(part).mean()) - signal)


def cosines(products: Reals, problems: int, rng: np.random.Generator) -> dict[int, list[float]]:
    """By problems of a batch: the mean cosine of two disjoint batches, over random ones, and its standard deviation."""
    found, size = {}, 1
    while 2 * size <= len(products):
        values = []
        for _ in range(400):
            order = rng.permutation(len(products))
            first, second = order[:size], order[size : 2 * size]
            norms = [products[np.ix_(one, one)].sum() for one in (first, second)]
            if min(norms) > 0:
                values.append(products[np.ix_(first, second)].sum() / np.sqrt(norms[0] * norms[1]))
        if values:
            found[size * problems] = [float(np.mean(values)), float(np.std(values))]
        size *= 2
    return found


if __name__ == "__main__":
    main()
