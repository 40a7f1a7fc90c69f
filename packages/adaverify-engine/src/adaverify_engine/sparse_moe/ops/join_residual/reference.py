"""Reference of the join, in plain torch."""

from __future__ import annotations

import torch

from adaverify_engine.sparse_moe.ops.rotation import normed


def join_residual_reference(
    residual: torch.Tensor,
    added: torch.Tensor,
    rows: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new residual and its norm; arguments as ``join_residual`` documents them."""
    total = residual.float() + added.float()
    if rows is not None and places is not None and weights is not None:
        here = places >= 0
        routed = rows[places.clamp(min=0).long()].float()
        # Rows that nobody wrote may hold NaN, so they are replaced, not multiplied by 0.
        routed = torch.where(here[..., None], routed, 0.0)
        total = total + (routed * weights[..., None]).sum(1)
    kept = total.to(residual.dtype)
    return kept, normed(kept).to(residual.dtype)
