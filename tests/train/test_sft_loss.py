"""The loss is Equation 2: checked against a slow float64 reference that knows no packing, masks by layout or chunks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training_helpers import MASK_ID, PAD_ID, VOCAB, random_documents, tiny_model

import dice.train.loss
from dice.bench.train import stock_loss
from dice.model.sdar import SDAR
from dice.train.attention import DenseMask
from dice.train.blocks import Recompute, set_blocks
from dice.train.engine import Engine
from dice.train.loss import masked_cross_entropy
from dice.train.noise import Corruption, corrupt, step_generator
from dice.train.packing import Document, PackedRows, pack
from dice.train.sft_objective import split_noise, weighted_loss


def batch_of(documents: list[Document], block_size: int, row_tokens: int = 64) -> PackedRows:
    rows = pack(documents, row_tokens=row_tokens, block_size=block_size, pad_id=PAD_ID)
    return rows.take(torch.arange(len(rows)))


def our_loss(model: SDAR, batch: PackedRows, noise: Corruption, block_size: int) -> Tensor:
    engine = Engine(model.hidden, DenseMask(block_size), "dense")
    return weighted_loss(engine, model, batch, noise, MASK_ID)[0]


def slow_loss(model: SDAR, batch: PackedRows, noise: Corruption, block_size: int) -> Tensor:
    """Sum over documents and blocks: run [clean blocks before | noisy block] alone, score its hidden tokens."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        for number in batch.documents[row].unique():
            here = (batch.documents[row] == number).nonzero().squeeze(1)
            tokens, masked, weight = batch.tokens[row, here], noise.masked[row, here], noise.weight[row, here]
            for start in range(0, len(here), block_size):
                end = start + block_size
                hidden_here = masked[start:end]
                if not hidden_here.any():
                    continue
                block = torch.where(hidden_here, MASK_ID, tokens[start:end])
                block_of = torch.arange(end) // block_size
                mask = block_of[:, None] >= block_of[None, :]
                ids = torch.cat((tokens[:start], block))[None]
                logits = model(ids, torch.arange(end)[None], mask[None, None])[0, start:end]
                nll = -logits.log_softmax(-1).gather(-1, tokens[start:end, None]).squeeze(-1)
                total = total + (nll * weight[start:end].double())[hidden_here].sum()
    return total


def assert_equals_slow_reference(model: SDAR, batch: PackedRows, noise: Corruption, block_size: int) -> None:
    """The loss, and its gradient by every weight."""
    ours, theirs = our_loss(model, batch, noise, block_size), slow_loss(model, batch, noise, block_size)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)
    weights = list(model.parameters())
    gradients = zip(torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights), strict=True)
    for (name, _), (found, expected) in zip(model.named_parameters(), gradients, strict=True):
        assert float((found - expected).norm()) <= 1e-6 * float(expected.norm()) > 0, name


@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("noise", ["block", "sample", "count"])
def test_equals_slow_reference(block_size: int, noise: str) -> None:
    model = tiny_model(block_size)
    batch = batch_of(random_documents(7), block_size)
    assert int(batch.documents.max()) >= 1, "the batch must really be packed"
    hidden = corrupt(batch.trainable, batch.documents, block_size, noise, step_generator(0, noise, 0, "cpu"))
    assert_equals_slow_reference(model, batch, hidden, block_size)


@pytest.mark.parametrize("prompt_length", [4, 5, 6, 7])
@pytest.mark.parametrize("noise", ["all hidden", "block", "sample", "count"])
def test_prompt_may_end_inside_a_block(prompt_length: int, noise: str) -> None:
    """A first response block that also holds prompt tokens: they stay clean in it and are seen by its hidden ones."""
    model = tiny_model(4)
    document = Document(random_documents(1, seed=3)[0].ids[:14], prompt_length)
    batch = batch_of([document], 4)
    hidden = Corruption(batch.trainable, batch.trainable.float())
    if noise != "all hidden":
        hidden = corrupt(batch.trainable, batch.documents, 4, noise, step_generator(1, noise, 0, "cpu"), t_min=0.5)
    assert_equals_slow_reference(model, batch, hidden, 4)
    if noise == "all hidden":
        assert int(hidden.masked.sum()) == 16 - prompt_length
        changed = Document(document.ids.copy(), prompt_length)
        changed.ids[prompt_length - 1] = (changed.ids[prompt_length - 1] + 1) % VOCAB
        before, after = (our_loss(model, rows, hidden, 4).item() for rows in (batch, batch_of([changed], 4)))
        assert before != pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("noise", ["block", "sample", "count"])
def test_whatever_is_recomputed_the_gradient_is_the_same(noise: str) -> None:
    model, batch = tiny_model(4), batch_of(random_documents(7), 4)
    hidden = corrupt(batch.trainable, batch.documents, 4, noise, step_generator(0, noise, 0, "cpu"))
    weights = list(model.parameters())
    kept = torch.autograd.grad(our_loss(model, batch, hidden, 4), weights)
    for recompute in (Recompute("ffn"), Recompute("ffn", 1), Recompute("block", 1), Recompute("block")):
        set_blocks(model, compiled=False, recompute=recompute)
        again = torch.autograd.grad(our_loss(model, batch, hidden, 4), weights)
        assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True)), recompute


def test_no_cross_talk_between_packed_documents() -> None:
    """Rewriting one document leaves the hidden states of its row's other documents bit for bit."""
    model, documents = tiny_model(4), random_documents(6, longest=30)
    batch = batch_of(documents, 4)
    row = int(batch.documents.max(1).values.argmax())
    engine = Engine(model.hidden, DenseMask(4), "dense")
    before = engine(batch.tokens, batch)[row]
    first = batch.documents[row] == 0
    batch.tokens[row, first] = batch.tokens[row, first].flip(0)
    after = engine(batch.tokens, batch)[row]
    others = ~first.repeat(2)
    assert int(others.sum()) > 0
    assert torch.equal(before[others], after[others])
    assert not torch.allclose(before[~others], after[~others])


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_gradient_does_not_depend_on_the_micro_batch(size: int) -> None:
    model, batch = tiny_model(4), batch_of(random_documents(14), 4)
    assert len(batch) >= 6
    batch = batch.take(torch.arange(6))
    noise = corrupt(batch.trainable, batch.documents, 4, "block", step_generator(0, "g", 0, "cpu"))
    our_loss(model, batch, noise, 4).backward()
    whole = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    for micro, part in zip(batch.split(size), split_noise(noise, size), strict=True):
        our_loss(model, micro, part, 4).backward()
    for expected, weight in zip(whole, model.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=1e-9, atol=1e-12)


def test_chunked_cross_entropy_has_the_right_value_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dice.train.loss, "CHUNK_LOGITS", 3 * 11)  # three rows of an 11-token vocabulary at a time
    torch.manual_seed(0)
    hidden = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.randint(11, (10,)), torch.rand(10, dtype=torch.float64)
    found = masked_cross_entropy(hidden, head, labels, weights)
    (found.total * 3).backward()
    ours = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    logits = hidden @ head.T
    plain = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    ((plain * weights).sum() * 3).backward()
    torch.testing.assert_close(found.nll, plain.detach())
    assert torch.equal(found.hit, logits.argmax(-1) == labels)
    torch.testing.assert_close(ours, (hidden.grad, head.grad))


class LargestTensor(TorchDispatchMode):
    """The elements of the largest tensor that any operator returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return found


def test_a_full_vocabulary_never_has_all_its_logits_in_memory() -> None:
    """600 hidden tokens of SDAR's vocabulary: 91M logits, of which 2^26 are held at once."""
    vocabulary, tokens = 151_936, 600
    hidden, head = torch.randn(tokens, 2, requires_grad=True), torch.randn(vocabulary, 2, requires_grad=True)
    labels = torch.randint(vocabulary, (tokens,))
    with LargestTensor() as ours:
        found = masked_cross_entropy(hidden, head, labels, torch.ones(tokens))
        found.total.backward()
    assert ours.elements <= dice.train.loss.CHUNK_LOGITS < tokens * vocabulary
    expected = torch.nn.functional.cross_entropy((hidden @ head.T).detach(), labels, reduction="sum")
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_stock_loss_that_ours_is_measured_against_is_the_same_loss() -> None:
    model, batch = tiny_model(4), batch_of(random_documents(7), 4)
    noise = corrupt(batch.trainable, batch.documents, 4, "block", step_generator(0, "s", 0, "cpu"))
    engine = Engine(model.hidden, DenseMask(4), "dense")
    stock = stock_loss(engine, model, batch, noise, MASK_ID)
    weights, ours = list(model.parameters()), our_loss(model, batch, noise, 4)
    assert stock.item() == pytest.approx(ours.item(), rel=1e-6)  # its logits are float32
    for one, other in zip(torch.autograd.grad(ours, weights), torch.autograd.grad(stock, weights), strict=True):
        assert float((one - other).norm()) <= 1e-5 * float(one.norm())


def test_nothing_hidden_is_a_loss_of_zero() -> None:
    hidden, head = torch.zeros(0, 5, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    found = masked_cross_entropy(hidden, head, torch.zeros(0, dtype=torch.long), torch.zeros(0))
    found.total.backward()
    assert found.total.item() == 0.0
    assert float(head.grad.abs().sum()) == 0.0


def test_count_noise_is_equation_2_with_t_integrated_out() -> None:
    """Exact expectations over every hidden subset of a block, for arbitrary per-subset token losses."""
    for n in (1, 2, 4, 5):
        generator = torch.Generator().manual_seed(n)
        subsets = [s for k in range(1, n + 1) for s in itertools.combinations(range(n), k)]
        losses = {s: float(torch.rand(len(s), generator=generator).sum()) for s in subsets}
        by_count = sum((1 / n) * (n / len(s)) * losses[s] / math.comb(n, len(s)) for s in subsets)
        # E over t ~ U(0, 1) of (1/t) t^k (1-t)^(n-k) is the Beta function B(k, n-k+1).
        beta = {k: math.gamma(k) * math.gamma(n - k + 1) / math.gamma(n + 1) for k in range(1, n + 1)}
        by_time = sum(beta[len(s)] * losses[s] for s in subsets)
        assert by_count == pytest.approx(by_time, rel=1e-12)
