"""Routers of mixtures of experts. Each gives a dense table (tokens, experts) of weights, zero where none is sent."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class SoftmaxRouter(nn.Module):
    """Softmax over all experts, the best few kept and rescaled to sum to one."""

    def __init__(self, hidden_size: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = F.softmax(self.gate(x), dim=-1)
        weights, chosen = probabilities.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return torch.zeros_like(probabilities).scatter(-1, chosen, weights)


class RawSoftmaxRouter(nn.Module):
    """Softmax over all experts in which those below the best few are set to zero, and nothing is rescaled."""

    def __init__(self, hidden_size: int, num_experts: int, top_k: int, scaling: float = 1.0) -> None:
        super().__init__()
        self.top_k = top_k
        self.scaling = scaling
        self.weight = nn.Parameter(torch.randn(num_experts, hidden_size) * hidden_size**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x, self.weight).softmax(dim=-1)
        threshold = scores.kthvalue(scores.shape[-1] - self.top_k + 1, dim=-1, keepdim=True).values
        return self.scaling * scores.where(scores >= threshold, 0.0)


class TopKThenSoftmaxRouter(nn.Module):
    """The best few logits are chosen first, and the softmax is over them alone."""

    def __init__(self, hidden_size: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(hidden_size, num_experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x)
        best, chosen = torch.topk(logits, self.top_k, dim=-1)
        table = torch.full_like(logits, float("-inf"))
        return table.scatter_(-1, chosen, best).softmax(dim=-1)


class GroupLimitedRouter(nn.Module):
    """Experts are chosen by softmax score, only from the groups whose best expert scores highest."""

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        top_k: int,
        num_groups: int,
        top_groups: int,
        scaling: float = 16.0,
    ) -> None:
        super().__init__()
        self.top_k, self.num_groups, self.top_groups, self.scaling = top_k, num_groups, top_groups, scaling
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(dim=-1)
        grouped = scores.unflatten(-1, (self.num_groups, -1))
        groups = grouped.amax(dim=-1).topk(self.top_groups, dim=-1).indices
        allowed = torch.zeros_like(grouped[..., 0]).scatter_(-1, groups, 1.0)
        limited = (grouped * allowed[..., None]).flatten(-2)
        weights, chosen = limited.topk(self.top_k, dim=-1)
        return torch.zeros_like(scores).scatter_(-1, chosen, self.scaling * weights)


class BiasedSigmoidRouter(nn.Module):
    """Sigmoid scores; a balancing bias takes part in choosing groups and experts but not in the weights."""

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        top_k: int,
        num_groups: int,
        top_groups: int,
        scaling: float = 2.5,
    ) -> None:
        super().__init__()
        self.top_k, self.num_groups, self.top_groups, self.scaling = top_k, num_groups, top_groups, scaling
        self.weight = nn.Parameter(torch.randn(num_experts, hidden_size) * hidden_size**-0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.sigmoid(F.linear(x, self.weight))
        choice = (scores + self.bias).unflatten(-1, (self.num_groups, -1))
        strength = choice.topk(2, dim=-1).values.sum(dim=-1)
        groups = strength.topk(self.top_groups, dim=-1).indices
        allowed = torch.zeros_like(strength, dtype=torch.bool).scatter(-1, groups, True)
        choice = choice.masked_fill(~allowed[..., None], float("-inf")).flatten(-2)
        chosen = choice.topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        weights = self.scaling * weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return torch.zeros_like(scores).scatter(-1, chosen, weights)


class CapacityRouter(nn.Module):
    """Each token goes to its best expert, which takes tokens in their order up to a capacity and drops the rest."""

    def __init__(self, hidden_size: int, num_experts: int, capacity_factor: float = 1.0) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.capacity_factor = capacity_factor
        self.classifier = nn.Linear(hidden_size, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = self.classifier(x).softmax(dim=-1)
        sent = F.one_hot(probabilities.argmax(dim=-1), self.num_experts)
        place = sent.cumsum(dim=-2) * sent
        capacity = int(self.capacity_factor * x.shape[-2] / self.num_experts)
        return probabilities * sent * (place <= capacity)


class TwoChoiceRouter(nn.Module):
    """First and second choice of each token, first choices served first, both limited by the experts' capacity."""

    def __init__(self, hidden_size: int, num_experts: int, capacity_factor: float = 1.25) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.capacity_factor = capacity_factor
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(self.gate(x), dim=-1)
        capacity = int(self.capacity_factor * 2 * x.shape[0] / self.num_experts)
        first = F.one_hot(scores.argmax(dim=-1), self.num_experts)
        second = F.one_hot(scores.masked_fill(first.bool(), 0.0).argmax(dim=-1), self.num_experts)
        place_first = first.cumsum(dim=0)
        place_second = second.cumsum(dim=0) + first.sum(dim=0)
        kept = first * (place_first <= capacity) + second * (place_second <= capacity)
        weights = scores * kept
        return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-9)


class ExpertChoiceRouter(nn.Module):
    """Experts choose tokens: each takes the same number of those that score highest for it."""

    def __init__(self, hidden_size: int, num_experts: int, capacity: int = 2) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.capacity = capacity
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(dim=-1)
        taken = self.capacity * x.shape[0] // self.num_experts
        weights, tokens = scores.transpose(0, 1).topk(taken, dim=-1)
        table = scores.new_zeros(self.num_experts, x.shape[0])
        return table.scatter_(1, tokens, weights).transpose(0, 1).contiguous()


class SigmoidTopOneRouter(nn.Module):
    """One expert per token, by logit; its sigmoid scales the token on its way in."""

    def __init__(self, hidden_size: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden_size, num_experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x)
        best = logits.max(dim=-1, keepdim=True)
        routed = torch.full_like(logits, -torch.inf).scatter_(-1, best.indices, best.values)
        return torch.sigmoid(routed)


class SoftDispatch(nn.Module):
    """Soft mixture: every slot of an expert is a weighted mean of all tokens, weights by learned slot vectors."""

    def __init__(self, hidden_size: int, num_slots: int) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(hidden_size, num_slots))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = F.normalize(x, dim=-1) @ (self.scale * F.normalize(self.slots, dim=0)) * x.shape[-1] ** 0.5
        return logits.softmax(dim=1).transpose(1, 2) @ x
