"""Launch of the gates."""

from __future__ import annotations

import torch

from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.gated.reference import gated_reference

# 1024 elements are 8 a thread; a shared row of 2048 takes two rounds, a routed row of 512 half a one.
BLOCK, WARPS = 1024, 4


def gated(
    shared: torch.Tensor, routed: torch.Tensor, ends: torch.Tensor, *, backend: str = "triton"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return silu(gate) x up of the shared expert [T, S] and of routed rows [N, W].

    Args:
        shared: [T, 2 S], gate then up, dense in the last dimension, row stride free.
        routed: [N, 2 W], dense; rows at or past ``ends[-1]`` may hold anything and give anything.
        ends: int32 [local].
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        return gated_reference(shared), gated_reference(routed)
    from adaverify_engine.sparse_moe.ops.gated.kernel import gated_kernel

    require_launchable(gated_kernel, shared.device)
    (tokens, wide), (rows, broad) = shared.shape, routed.shape
    shared_out = torch.empty((tokens, wide // 2), dtype=shared.dtype, device=shared.device)
    routed_out = torch.empty((rows, broad // 2), dtype=routed.dtype, device=routed.device)
    if tokens + rows:
        gated_kernel[(tokens + rows,)](
            shared,
            routed,
            ends,
            shared_out,
            routed_out,
            tokens,
            shared.stride(0),
            SHARED=wide // 2,
            ROUTED=broad // 2,
            LOCAL=len(ends),
            BLOCK=min(BLOCK, block_of(max(wide, broad) // 2)),
            num_warps=WARPS,
        )
    return shared_out, routed_out
