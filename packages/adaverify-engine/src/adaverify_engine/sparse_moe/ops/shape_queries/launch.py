"""Launch of the shaping of queries."""

from __future__ import annotations

import torch

from adaverify_contracts import ceil_div
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.rotation import AMAX_FLOOR, E4M3_MAX
from adaverify_engine.sparse_moe.ops.shape_queries.reference import shape_queries_reference

# 16 heads of 128 are 16 elements a thread at 4 warps; 8 tokens of 64 and 32 heads are 48 programs.
GROUP = 16
WARPS = 4


def shape_queries(
    wide: torch.Tensor,
    gates: torch.Tensor,
    position: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    *,
    heads: int,
    index_dim: int,
    backend: str = "triton",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate attention queries in place; return index queries e4m3 [T, I, D] and weights float32 [T, I].

    An index query's scale and the factor (I D)^-1/2 are folded into its weight: the kernel that scores
    takes no scale of queries.

    Args:
        wide: [T, heads x E + I x D] float32 or bfloat16, dense: attention queries, then index queries; the
            last ``rope`` elements of each are rotated.
        gates: [T, I], dense in the last dimension, row stride free.
        position: int32 [T].
        cosine: float32 [positions, rope / 2]; sine alike.
        sine: see cosine.
        heads: attention heads.
        index_dim: D.
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        at = position.long()
        return shape_queries_reference(wide, gates, cosine[at], sine[at], heads=heads, index_dim=index_dim)
    from adaverify_engine.sparse_moe.ops.shape_queries.kernel import shape_queries_kernel

    require_launchable(shape_queries_kernel, wide.device)
    tokens, index_heads = gates.shape
    rope = 2 * cosine.shape[1]
    codes = torch.empty((tokens, index_heads, index_dim), dtype=torch.float8_e4m3fn, device=wide.device)
    weights = torch.empty((tokens, index_heads), dtype=torch.float32, device=wide.device)
    if tokens:
        shape_queries_kernel[(tokens, ceil_div(index_heads, GROUP) + ceil_div(heads, GROUP))](
            wide,
            gates,
            position,
            cosine,
            sine,
            codes,
            weights,
            gates.stride(0),
            (index_heads * index_dim) ** -0.5,
            HEADS=heads,
            KEY=(wide.shape[1] - index_heads * index_dim) // heads,
            INDEX_HEADS=index_heads,
            INDEX=index_dim,
            ROPE=rope,
            BLOCK_PLAIN=block_of(index_dim - rope),
            GROUP=GROUP,
            E4M3_MAX=E4M3_MAX,
            AMAX_FLOOR=AMAX_FLOOR,
            num_warps=WARPS,
        )
    return codes, weights
