"""What is hidden, how often, and with which weight."""

from __future__ import annotations

import pytest
import torch

from dice.train.noise import NOISES, Corruption, corrupt, step_generator


def layout(rows: int = 64, length: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of four documents of 16 tokens: 6 of prompt, then 10 trainable; the last document is padding."""
    position = torch.arange(length) % 16
    documents = (torch.arange(length) // 16).expand(rows, length)
    trainable = ((position >= 6) & (torch.arange(length) < 48)).expand(rows, length)
    return trainable, documents


def draw(noise: str, step: int = 0, **options: object) -> Corruption:
    trainable, documents = layout()
    return corrupt(trainable, documents, 4, noise, step_generator(0, "test", step, "cpu"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("noise", NOISES)
def test_only_trainable_tokens_are_hidden(noise: str, stratified: bool) -> None:
    trainable, _ = layout()
    for step in range(20):
        hidden = draw(noise, step, stratified=stratified)
        assert not (hidden.masked & ~trainable).any()
        assert torch.equal(hidden.weight > 0, hidden.masked)


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("noise", ["block", "count"])
def test_weights_are_unbiased(noise: str, stratified: bool) -> None:
    """E[masked * weight] = 1 for every trainable token: the sum of weights estimates the number of tokens."""
    trainable, _ = layout()
    options = {} if noise == "count" else {"t_min": 0.05}
    weights = torch.stack([draw(noise, step, stratified=stratified, **options).weight for step in range(300)])
    mean = weights.mean((0, 1))[trainable[0]]
    error = weights.std((0, 1))[trainable[0]] / (weights.shape[0] * weights.shape[1]) ** 0.5
    assert ((mean - 1).abs() < 5 * error).all()


def test_block_noise_has_one_t_per_block_and_sample_noise_one_per_document() -> None:
    trainable, documents = layout()
    for noise, unit in (("block", torch.arange(64) // 4), ("sample", documents[0])):
        hidden = draw(noise)
        several = 0
        for row in range(64):
            for number in unit.unique():
                weights = hidden.weight[row][(unit == number) & hidden.masked[row]]
                assert weights.unique().numel() <= 1
                several += weights.numel() > 1
        assert several > 50
        assert hidden.weight[hidden.masked].unique().numel() > 100


def test_t_range_is_kept_and_stratified_draws_cover_it() -> None:
    hidden = draw("block", t_min=0.2, t_max=0.8)
    t = 1 / hidden.weight[hidden.masked]
    assert float(t.min()) >= 0.2 and float(t.max()) <= 0.8 + 1e-6
    assert float(t.max()) > 0.79


def test_stratified_counts_are_even() -> None:
    """Each number of hidden tokens comes up equally often among full blocks, within one stratum."""
    trainable = torch.ones(40, 64, dtype=torch.bool)
    hidden = corrupt(trainable, torch.zeros(40, 64, dtype=torch.long), 4, "count", step_generator(0, "s", 0, "cpu"))
    counts = hidden.masked.view(-1, 4).sum(-1).bincount(minlength=5)
    assert counts[0] == 0
    assert (counts[1:] - 160).abs().max() <= 1
    weights = hidden.weight.view(-1, 4).amax(-1)
    assert torch.allclose(weights, 4.0 / hidden.masked.view(-1, 4).sum(-1))


def test_count_noise_hides_one_of_a_single_trainable_token() -> None:
    trainable = torch.zeros(1, 8, dtype=torch.bool)
    trainable[0, 3] = True
    hidden = corrupt(trainable, torch.zeros(1, 8, dtype=torch.long), 4, "count", step_generator(0, "s", 0, "cpu"))
    assert torch.equal(hidden.masked, trainable)
    assert hidden.weight[0, 3] == 1.0


def test_sample_noise_hides_something_in_each_row_and_not_in_each_document() -> None:
    """As released: a document may stay whole, a row never; what is forced at last weighs 1/t like any other."""
    hidden = draw("sample", t_min=1e-4, t_max=2e-4)
    per_document = hidden.masked.view(64, 4, 16).sum(-1)
    assert (per_document.sum(1) >= 1).all() and (per_document[:, :3] == 0).any()
    assert (per_document.sum(1) == 1).sum() > 50 and (per_document[:, 3] == 0).all()
    assert (hidden.weight[hidden.masked] >= 1 / 2e-4 - 1).all()
    assert (per_document[:, :3].sum(0) > 8).all(), "whichever document it falls on"


def test_sample_noise_draws_t_again_where_a_row_would_stay_whole() -> None:
    """One trainable token a row. Drawn up to ten times, its weights are those of a t that is likely to hide it, and
    near uniform draws of t under which it is hidden: E[1/t] = 2 at most; forced at once they would be far larger."""
    trainable = torch.zeros(4000, 8, dtype=torch.bool)
    trainable[:, 3] = True
    documents = torch.zeros(4000, 8, dtype=torch.long)
    for stratified in (True, False):
        generator = step_generator(0, "again", 0, "cpu")
        hidden = corrupt(trainable, documents, 4, "sample", generator, stratified=stratified)
        assert torch.equal(hidden.masked, trainable)
        weights = hidden.weight[hidden.masked]
        # P(t | hidden) = 2t, so the mean of 1/t is 2; 1 in 1024 rows is forced, with t from what never hid it.
        assert 1.8 < float(weights.mean()) < 2.4


@pytest.mark.parametrize("noise", NOISES)
def test_draws_depend_on_seed_and_step_only(noise: str) -> None:
    assert torch.equal(draw(noise, 7).weight, draw(noise, 7).weight)
    assert not torch.equal(draw(noise, 7).weight, draw(noise, 8).weight)
