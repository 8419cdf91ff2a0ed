"""Mixtures of experts: the experts' computation, shared experts, dispatch and combination. Tokens are (T, hidden)."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.mlp import SwiGLU
from dice.data.structural.modules.routing import BiasedSigmoidRouter


class SparseMixture(nn.Module):
    """Softmax router, best two or more rescaled; expert after expert computes the tokens that were sent to it."""

    def __init__(self, hidden_size: int, expert_size: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(hidden_size, expert_size) for _ in range(num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == index)
            out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
        return out


class SharedExpertMixture(nn.Module):
    """Sparse experts beside a shared one that every token takes, gated by a sigmoid of its own."""

    def __init__(self, hidden_size: int, expert_size: int, shared_size: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(num_experts, hidden_size, 2 * expert_size) * hidden_size**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * expert_size**-0.5)
        self.shared_expert = SwiGLU(hidden_size, shared_size)
        self.shared_expert_gate = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(dim=-1), self.top_k, dim=-1)
        out = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        for index in range(len(self.gate_up)):
            token, rank = (chosen == index).nonzero(as_tuple=True)
            gate, up = (x[token] @ self.gate_up[index]).chunk(2, dim=-1)
            hidden = (F.silu(gate) * up) @ self.down[index]
            out = out.index_add(0, token, hidden * weights[token, rank].unsqueeze(-1))
        return out


class FineGrainedMixture(nn.Module):
    """Many small experts under a biased sigmoid router with groups, plus a shared expert."""

    def __init__(
        self, hidden_size: int, expert_size: int, num_experts: int, top_k: int, num_groups: int, top_groups: int
    ) -> None:
        super().__init__()
        self.router = BiasedSigmoidRouter(hidden_size, num_experts, top_k, num_groups, top_groups)
        self.gate_proj = nn.Parameter(torch.randn(num_experts, hidden_size, expert_size) * hidden_size**-0.5)
        self.up_proj = nn.Parameter(torch.randn(num_experts, hidden_size, expert_size) * hidden_size**-0.5)
        self.down_proj = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * expert_size**-0.5)
        self.shared_experts = SwiGLU(hidden_size, expert_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.router(x)
        hidden = F.silu(torch.einsum("th,ehi->eti", x, self.gate_proj)) * torch.einsum("th,ehi->eti", x, self.up_proj)
        routed = torch.einsum("eti,eih->eth", hidden, self.down_proj)
        return torch.einsum("te,eth->th", table, routed) + self.shared_experts(x)


class ClampedMixture(nn.Module):
    """Experts with biases and clamped gates, all computed for all tokens in batched products."""

    def __init__(self, hidden_size: int, expert_size: int, num_experts: int, top_k: int, limit: float = 7.0) -> None:
        super().__init__()
        self.top_k = top_k
        self.limit = limit
        self.router = nn.Linear(hidden_size, num_experts)
        self.gate_up_proj = nn.Parameter(torch.randn(num_experts, hidden_size, 2 * expert_size) * hidden_size**-0.5)
        self.gate_up_proj_bias = nn.Parameter(torch.randn(num_experts, 2 * expert_size))
        self.down_proj = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * expert_size**-0.5)
        self.down_proj_bias = nn.Parameter(torch.randn(num_experts, hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.router(x).topk(self.top_k, dim=-1)
        table = x.new_zeros(len(x), len(self.down_proj)).scatter(1, chosen, best.softmax(dim=-1))
        gate_up = torch.matmul(x, self.gate_up_proj) + self.gate_up_proj_bias[:, None]
        gate, up = gate_up[..., 0::2].clamp(max=self.limit), gate_up[..., 1::2].clamp(-self.limit, self.limit)
        hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        out = torch.bmm(hidden, self.down_proj) + self.down_proj_bias[:, None]
        return (out * table.t()[..., None]).sum(dim=0)


class TopOneMixture(nn.Module):
    """One expert per token, fed with the token scaled by its sigmoid score, plus a shared expert."""

    def __init__(self, hidden_size: int, expert_size: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.gate_up_proj = nn.Parameter(torch.randn(num_experts, hidden_size, 2 * expert_size) * hidden_size**-0.5)
        self.down_proj = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * expert_size**-0.5)
        self.shared_expert = SwiGLU(hidden_size, expert_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, chosen = self.router(x).max(dim=-1, keepdim=True)
        out = self.shared_expert(x)
        scaled = x * torch.sigmoid(score)
        for index, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            token = torch.nonzero(chosen[:, 0] == index)[:, 0]
            gate, up = torch.chunk(scaled[token] @ gate_up, 2, dim=-1)
            out = out.index_add(0, token, (up * F.silu(gate)) @ down)
        return out


class CapacityMixture(nn.Module):
    """Tokens are dispatched to slots of experts by one-hot products, computed in batches, and combined again."""

    def __init__(self, hidden_size: int, expert_size: int, num_experts: int, capacity: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.capacity = capacity
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.wi = nn.Parameter(torch.randn(num_experts, hidden_size, expert_size) * hidden_size**-0.5)
        self.wo = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * expert_size**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probability, chosen = self.gate(x).softmax(dim=-1).max(dim=-1)
        sent = F.one_hot(chosen, self.num_experts)
        place = (sent.cumsum(dim=0) * sent).sum(dim=-1) - 1
        slot = F.one_hot(place.clamp(max=self.capacity), self.capacity + 1)[:, : self.capacity]
        dispatch = (sent[:, :, None] * slot[:, None]).to(x.dtype)
        inputs = torch.einsum("tec,th->ech", dispatch, x)
        outputs = torch.relu(inputs @ self.wi) @ self.wo
        return torch.einsum("tec,ech->th", dispatch * probability[:, None, None], outputs)


class SortedExperts(nn.Module):
    """Equal shares of sorted tokens go through their experts' gated layers in batched products."""

    def __init__(self, hidden_size: int, expert_size: int, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.w1 = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * hidden_size**-0.5)
        self.w3 = nn.Parameter(torch.randn(num_experts, expert_size, hidden_size) * hidden_size**-0.5)
        self.w2 = nn.Parameter(torch.randn(num_experts, hidden_size, expert_size) * expert_size**-0.5)

    def forward(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """`order` (T,): the tokens, those of the first expert first."""
        shares = x[order].unflatten(0, (self.num_experts, -1))
        hidden = F.silu(torch.bmm(shares, self.w1.mT)) * torch.bmm(shares, self.w3.mT)
        return torch.empty_like(x).index_copy(0, order, torch.bmm(hidden, self.w2.mT).flatten(0, 1))


class GatherExperts(nn.Module):
    """Decoding with few tokens: each token gathers the weights of its own experts."""

    def __init__(self, hidden_size: int, expert_size: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(num_experts, 2 * expert_size, hidden_size) * hidden_size**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, hidden_size, expert_size) * expert_size**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).topk(self.top_k, dim=-1)
        gate, up = torch.einsum("tkih,th->tki", self.gate_up[chosen], x).chunk(2, dim=-1)
        out = torch.einsum("tkhi,tki->tkh", self.down[chosen], F.silu(gate) * up)
        return torch.einsum("tk,tkh->th", weights.softmax(dim=-1), out)


class CombineExperts(nn.Module):
    """Back from the experts: the rows of each token are found again, weighted, summed and added to the stream."""

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, rows: torch.Tensor, place: torch.Tensor, scores: torch.Tensor, residual: torch.Tensor):
        """`rows` (T * top_k, hidden) in the order of experts; `place` (T * top_k,): where a token's rows lie."""
        mine = rows.index_select(0, place).unflatten(0, (-1, self.top_k))
        return residual + (mine * scores.softmax(dim=-1)[..., None]).sum(dim=1)


class DispatchTokens(nn.Module):
    """On the way to the experts: tokens are normalised and laid out in the order of their experts."""

    def __init__(self, hidden_size: int, num_experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.norm = nn.RMSNorm(hidden_size, eps=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        score, expert = self.gate(x).sigmoid().max(dim=-1)
        order = torch.argsort(expert, stable=True)
        return x[order] * score[order, None]
