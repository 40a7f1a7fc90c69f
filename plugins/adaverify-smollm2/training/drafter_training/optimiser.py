"""Muon for the matrices of the backbone, AdamW for tables, vocabulary rows, norms and offsets."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

# Coefficients of the quintic iteration of Jordan et al. (Muon, 2024): singular values end near 1 within 0.3.
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalised(stack: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Return matrices [n, rows, columns] with singular values near 1 and the same singular vectors.

    In bfloat16 on CUDA, where the products are fast, and in float32 elsewhere.
    """
    a, b, c = _QUINTIC
    x = stack.to(torch.bfloat16 if stack.is_cuda else torch.float32)
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(stack.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; matrices of one shape are handled together.

    Args:
        matrices: parameters [rows, columns].
        lr: step; the update's root mean square is about ``lr * sqrt(max(1, rows / columns) / columns)``.
        momentum: of the running gradient, Nesterov form.
        decay: decoupled weight decay.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            groups.setdefault(matrix.shape, []).append(matrix)
        defaults = {"lr": lr, "momentum": momentum, "decay": decay}
        super().__init__([{"params": group} for group in groups.values()], defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            live = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not live:
                continue
            for matrix in live:
                if "running" not in self.state[matrix]:
                    self.state[matrix]["running"] = torch.zeros_like(matrix)
            gradients = [matrix.grad for matrix in live]
            running = [self.state[matrix]["running"] for matrix in live]
            torch._foreach_lerp_(running, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, running, group["momentum"])
            updates = orthogonalised(torch.stack(ahead))
            rows, columns = live[0].shape
            scale = max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(live, 1 - group["lr"] * group["decay"])
            torch._foreach_add_(live, list(updates.unbind(0)), alpha=-group["lr"] * scale)


def make_optimisers(model: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon and AdamW over all parameters of a ``BlockDrafterModel``.

    Vocabulary-wide matrices and the confidence's few outputs go to AdamW: their rows mean single tokens, and
    orthogonalising across them would mix what has nothing in common.
    """
    matrices, rest, rows = [], [], []
    for name, parameter in model.named_parameters():
        if (
            name.startswith(("layers.", "feature_in", "token_in", "head.mix", "head.rank"))
            and parameter.ndim == 2
        ):
            matrices.append(parameter)
        elif name.startswith(("table", "head.unembedding")):
            rows.append(parameter)
        else:
            rest.append(parameter)
    fused = matrices[0].is_cuda
    adam = torch.optim.AdamW(
        [{"params": rest, "lr": adam_lr}, {"params": rows, "lr": adam_lr / 2}],
        betas=(0.9, 0.95),
        weight_decay=0.0,
        fused=fused,
    )
    optimisers: list[torch.optim.Optimizer] = [Muon(matrices, muon_lr), adam]
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


def rate(done: float, warm: float = 0.02, hold: float = 0.5) -> float:
    """Return the share of the peak rate when ``done`` (0 .. 1) of the training is done.

    A short rise, a plateau, then a straight fall to zero that ends with the budget, whatever the budget was:
    a longer run continues from the plateau.
    """
    if done < warm:
        return max(done / warm, 0.01)
    return 1.0 if done < hold else max(1.0 - (done - hold) / (1.0 - hold), 0.0)
