"""Losses of the drafted positions, and the labels of the confidences.

With draft law q over the training vocabulary, the target's law p restricted to it (p sums to at most 1), and
y the target's likeliest token:

    cross entropy   -sum_i p_i log q_i
    distance        1 - sum_i min(p_i, q_i)        the total variation to the target at temperature 1
    miss            1 - q_y                        the total variation to the greedy target

The two distances are one quantity for the two laws the target is run at. All gradients by the logits are
taken in closed form while the rows are at hand, in float32, so nothing of [rows, vocabulary] but the logits
and their gradient is ever kept:

    q_i sum(p) - p_i,    q_i (S - [q_i < p_i]) with S = sum_j q_j [q_j < p_j],    q_i q_y - [i = y] q_y
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Shares of cross entropy, distance at temperature 1 and distance to the greedy target."""

    entropy: float = 0.1
    distance: float = 0.45
    miss: float = 0.45


class Teacher:
    """The target's law at every position of a batch, on the training vocabulary.

    Args:
        head: [vocabulary, hidden], the target's output weight.
        draft_ids: int64 [V], the target's ids of the training vocabulary.
    """

    def __init__(self, head: torch.Tensor, draft_ids: torch.Tensor) -> None:
        inside = torch.zeros(head.shape[0], dtype=torch.bool, device=head.device)
        inside[draft_ids] = True
        self._inside = head[draft_ids].contiguous()
        self._outside = head[~inside].contiguous()

    @torch.no_grad()
    def laws(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return p [N, V] in the dtype of ``hidden`` [N, hidden], and y int64 [N], -1 outside."""
        laws = torch.empty(len(hidden), len(self._inside), dtype=hidden.dtype, device=hidden.device)
        likeliest = torch.empty(len(hidden), dtype=torch.int64, device=hidden.device)
        for start in range(0, len(hidden), _CHUNK):
            rows = hidden[start : start + _CHUNK]
            logits = (rows @ self._inside.t()).float()
            total = logits.logsumexp(-1)
            peak, index = logits.max(-1)
            if len(self._outside):
                other = (rows @ self._outside.t()).float()
                total = torch.logaddexp(total, other.logsumexp(-1))
                index = torch.where(other.amax(-1) > peak, -1, index)
            laws[start : start + _CHUNK] = logits.sub_(total.unsqueeze(-1)).exp_().to(laws.dtype)
            likeliest[start : start + _CHUNK] = index
        return laws, likeliest


class DraftLoss(torch.autograd.Function):
    """Weighted sum of the three losses over rows, differentiable by the logits."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: torch.Tensor,
        laws: torch.Tensor,
        row: torch.Tensor,
        likeliest: torch.Tensor,
        weight: torch.Tensor,
        shares: LossWeights,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss, and [N] each: drafted index, log of its draft probability, its law value p.

        Args:
            ctx: of autograd.
            logits: [N, V].
            laws: [M, V], from ``Teacher``.
            row: int64 [N], row of ``laws`` for each row of ``logits``.
            likeliest: int64 [N], y, -1 outside.
            weight: float32 [N], 0 for a row that does not count.
            shares: of the losses.
        """
        gradient = torch.empty_like(logits)
        count = len(logits)
        loss = logits.new_zeros((), dtype=torch.float32)
        drafted = torch.empty(count, dtype=torch.int64, device=logits.device)
        log_peak = torch.empty(count, dtype=torch.float32, device=logits.device)
        accepted = torch.empty(count, dtype=torch.float32, device=logits.device)
        for start in range(0, count, _CHUNK):
            part = slice(start, start + _CHUNK)
            q = logits[part].float()
            peak, index = q.max(-1)
            q = q.sub_(peak.unsqueeze(-1))
            norm = q.logsumexp(-1, keepdim=True)
            log_q = q.sub_(norm)
            p = laws[row[part]].float()
            share = weight[part]
            drafted[part], log_peak[part] = index, -norm.squeeze(-1)
            accepted[part] = p.gather(1, index.unsqueeze(-1)).squeeze(-1)
            entropy = -(p * log_q).sum(-1)
            q = log_q.exp_()
            below = q < p
            covered = torch.where(below, q, 0.0).sum(-1, keepdim=True)
            overlap = torch.minimum(p, q).sum(-1)
            y = likeliest[part]
            known = (y >= 0).float()
            y = y.clamp(min=0).unsqueeze(-1)
            q_y = q.gather(1, y).squeeze(-1) * known
            total = shares.entropy * entropy + shares.distance * (1 - overlap) + shares.miss * (1 - q_y)
            loss += (total * share).sum()
            factor = shares.entropy * p.sum(-1) + shares.miss * q_y
            slope = factor.unsqueeze(-1) + shares.distance * (covered - below.float())
            slope = q.mul_(slope).sub_(p, alpha=shares.entropy)
            slope.scatter_add_(1, y, (-shares.miss * q_y).unsqueeze(-1))
            gradient[part] = slope.mul_(share.unsqueeze(-1)).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(drafted, log_peak, accepted)
        return loss, drafted, log_peak, accepted

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *upstream: torch.Tensor) -> tuple[object, ...]:
        """Scale the gradient that the forward pass took."""
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None, None, None, None
