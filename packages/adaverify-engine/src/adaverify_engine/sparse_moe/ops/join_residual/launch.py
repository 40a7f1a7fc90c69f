"""Launch of the join: one program a token."""

from __future__ import annotations

import torch

from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.join_residual.reference import join_residual_reference
from adaverify_engine.sparse_moe.ops.rotation import EPSILON

# A row of 4096 is 16 elements a thread: two loads of 16 bytes from each source.
WARPS = 8


def join_residual(
    residual: torch.Tensor,
    added: torch.Tensor,
    rows: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    *,
    backend: str = "triton",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return residual + added + each token's weighted rows, and that sum divided by its root mean square.

    Args:
        residual: [T, hidden], dense.
        added: alike.
        rows: [N, hidden], dense, or None where nothing was routed; rows that no place names may hold NaN.
        places: int32 [T, active], row of a token's j-th expert, -1 for none.
        weights: float32 [T, active].
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        return join_residual_reference(residual, added, rows, places, weights)
    from adaverify_engine.sparse_moe.ops.join_residual.kernel import join_residual_kernel

    require_launchable(join_residual_kernel, residual.device)
    joined, norm = torch.empty_like(residual), torch.empty_like(residual)
    routed = rows is not None and places is not None and weights is not None
    if len(residual):
        join_residual_kernel[(len(residual),)](
            residual,
            added,
            rows if routed else residual,
            places if routed else residual,
            weights if routed else residual,
            joined,
            norm,
            HIDDEN=residual.shape[1],
            BLOCK=block_of(residual.shape[1]),
            ACTIVE=places.shape[1] if routed and places is not None else 0,
            EPSILON=EPSILON,
            num_warps=WARPS,
        )
    return joined, norm
