"""The two ends of a model: embeddings before the first layer, logits and losses after the last."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.norms import BiasFreeLayerNorm, RMSNorm, UnitOffsetRMSNorm


class ScaledEmbedding(nn.Module):
    """Token embedding times the square root of its width, then the first normalisation."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.scale = hidden_size**0.5
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.norm = UnitOffsetRMSNorm(hidden_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.embed_tokens(tokens) * self.scale)


class PositionEmbedding(nn.Module):
    """Token embedding plus learned position embedding."""

    def __init__(self, vocab_size: int, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden_size)
        self.wpe = nn.Embedding(max_positions, hidden_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.wte(tokens) + self.wpe(positions)


class SegmentEmbedding(nn.Module):
    """Sum of token, position and segment embeddings, layer-normalised."""

    def __init__(self, vocab_size: int, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.position_embeddings = nn.Embedding(max_positions, hidden_size)
        self.token_type_embeddings = nn.Embedding(2, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        return self.norm(self.word_embeddings(tokens) + self.token_type_embeddings(segments) + places)


class NormedEmbedding(nn.Module):
    """Token embedding that goes straight through a layer normalisation."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.word_embeddings_layernorm = nn.LayerNorm(hidden_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.word_embeddings_layernorm(self.word_embeddings(tokens))


class PatchEmbedding(nn.Module):
    """Image patches become tokens; a class token comes first, positions are learned."""

    def __init__(self, hidden_size: int, image_size: int, patch_size: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, hidden_size, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.randn(1, 1, hidden_size))
        self.positions = nn.Parameter(torch.randn(1, 1 + (image_size // patch_size) ** 2, hidden_size))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.projection(image).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(len(image), -1, -1)
        return torch.cat((first, patches), dim=1) + self.positions


class AudioStem(nn.Module):
    """Two convolutions over a spectrogram, the second with stride two, then learned positions."""

    def __init__(self, num_mels: int, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(num_mels, hidden_size, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(hidden_size, hidden_size, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(max_positions, hidden_size)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.conv2(F.gelu(self.conv1(spectrogram))))
        hidden = hidden.permute(0, 2, 1)
        return hidden + self.embed_positions.weight[: hidden.shape[1]]


class NormedHead(nn.Module):
    """Last normalisation and projection to the vocabulary."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(x))


class SoftCappedHead(nn.Module):
    """Tied logits, squashed into a range by tanh."""

    def __init__(self, hidden_size: int, vocab_size: int, cap: float = 30.0) -> None:
        super().__init__()
        self.cap = cap
        self.norm = UnitOffsetRMSNorm(hidden_size)
        self.embedding = nn.Parameter(torch.randn(vocab_size, hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.norm(x) @ self.embedding.T
        return torch.tanh(logits / self.cap) * self.cap


class ScaledHead(nn.Module):
    """Tied logits after a bias-free layer normalisation, times a fixed scale."""

    def __init__(self, hidden_size: int, vocab_size: int, logit_scale: float = 0.0625) -> None:
        super().__init__()
        self.logit_scale = logit_scale
        self.norm = BiasFreeLayerNorm(hidden_size)
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(x), self.embed_tokens.weight) * self.logit_scale


class TransformHead(nn.Module):
    """Head of a masked language model: dense, GELU, layer normalisation, tied logits with a bias."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.decoder = nn.Linear(hidden_size, vocab_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.dense(x))
        return self.decoder(self.layer_norm(hidden))


class LastTokenHead(nn.Module):
    """Logits of the last filled position of each sequence only, with a temperature, as log-probabilities."""

    def __init__(self, hidden_size: int, vocab_size: int, temperature: float = 0.7) -> None:
        super().__init__()
        self.temperature = temperature
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        last = x[torch.arange(len(x), device=x.device), lengths - 1]
        return torch.log_softmax(self.lm_head(last) / self.temperature, dim=-1)


class FutureTokenHead(nn.Module):
    """Input of a head for the token after next: state and embedding of the next token, normalised and projected."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.hnorm, self.enorm = RMSNorm(hidden_size), RMSNorm(hidden_size)
        self.eh_proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        following = self.embed_tokens(tokens[:, 1:])
        joined = torch.cat((self.enorm(following), self.hnorm(x[:, :-1])), dim=-1)
        return self.eh_proj(joined)


class ContrastiveHead(nn.Module):
    """Similarities of projected, normalised image and text vectors, times a learned temperature."""

    def __init__(self, hidden_size: int, projection_size: int) -> None:
        super().__init__()
        self.visual_projection = nn.Linear(hidden_size, projection_size, bias=False)
        self.text_projection = nn.Linear(hidden_size, projection_size, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor([2.6592]))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        image = self.visual_projection(image)
        text = self.text_projection(text)
        image, text = image / image.norm(dim=-1, keepdim=True), text / text.norm(dim=-1, keepdim=True)
        return self.logit_scale.exp() * image @ text.mT


class TokenLoss(nn.Module):
    """Cross-entropy of each token over the vocabulary with a penalty on the squared log of the partition sum."""

    def __init__(self, z_weight: float = 1e-2) -> None:
        super().__init__()
        self.z_weight = z_weight

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        partition = torch.logsumexp(logits, dim=-1)
        right = logits.gather(-1, targets[..., None]).squeeze(-1)
        return partition - right + self.z_weight * partition.pow(2)


class LinearTokenLoss(nn.Module):
    """Projection to the vocabulary and cross-entropy of each token, next tokens as targets, none for padding."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head(x[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0, reduction="none")


class SmoothedLoss(nn.Module):
    """Cross-entropy of each token against smoothed targets."""

    def __init__(self, smoothing: float = 0.1) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        log_probabilities = F.log_softmax(logits, dim=-1)
        sharp = -log_probabilities.gather(1, targets[:, None])[:, 0]
        even = -log_probabilities.mean(dim=1)
        return (1 - self.smoothing) * sharp + self.smoothing * even


class DistillationLoss(nn.Module):
    """Divergence of a student's from a teacher's softened distribution, for each token."""

    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        teacher = F.log_softmax(teacher / self.temperature, dim=-1)
        student = F.log_softmax(student / self.temperature, dim=-1)
        return self.temperature**2 * (teacher.exp() * (teacher - student)).sum(dim=-1)


class MaskedDiffusionLoss(nn.Module):
    """Cross-entropy at masked positions only, divided by the share of the sequence that was masked."""

    def __init__(self, mask_id: int) -> None:
        super().__init__()
        self.mask_id = mask_id

    def forward(self, logits: torch.Tensor, noised: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        masked = noised == self.mask_id
        share = masked.float().mean(dim=1, keepdim=True).clamp(min=1e-3)
        losses = F.cross_entropy(logits.transpose(1, 2), clean, reduction="none")
        return losses * masked / share


class PolicyLoss(nn.Module):
    """Clipped policy ratio of each token under new and old logits, times the advantage of its sequence."""

    def __init__(self, clip: float = 0.2, temperature: float = 1.0) -> None:
        super().__init__()
        self.clip = clip
        self.temperature = temperature

    def forward(
        self, logits: torch.Tensor, tokens: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        logits = logits / self.temperature
        chosen = torch.gather(logits, 2, tokens.unsqueeze(2)).squeeze(2) - logits.logsumexp(dim=2)
        ratio = torch.exp(chosen - old)
        clipped = torch.clamp(ratio, 1 - self.clip, 1 + self.clip)
        return -torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])


class ConfidenceHead(nn.Module):
    """What decides which masked tokens are revealed: entropy of each position, and how far the best token leads."""

    def __init__(self, margin_weight: float = 0.5) -> None:
        super().__init__()
        self.margin_weight = margin_weight

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        log_probabilities = logits.log_softmax(dim=-1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
        best = log_probabilities.topk(2, dim=-1).values
        return self.margin_weight * (best[..., 0] - best[..., 1]) - entropy
