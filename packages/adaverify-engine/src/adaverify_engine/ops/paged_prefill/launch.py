"""Launch of the paged prefill attention, and what it can serve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from adaverify_contracts import LayoutError
from adaverify_engine.ops.launchable import block_of, is_interpreted, require_heads, require_launchable
from adaverify_engine.ops.paged_prefill.tiles import PrefillTiles

DTYPES = (torch.bfloat16, torch.float32)
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """How the kernel cuts its work; decides time, and ``block`` the order of sums.

    Attributes:
        tokens: most tokens of a tile.
        lines: query heads x tokens of a tile, a power of two.
        block: KV tokens of one step of a program.
        num_warps: warps of a program.
        num_stages: tiles in flight.
    """

    tokens: int
    lines: int
    block: int
    num_warps: int
    num_stages: int = 2


@lru_cache(maxsize=64)
def shape_of(group: int, dim: int, dtype: torch.dtype) -> PrefillShape:
    """Return the shape for ``group`` query heads a KV head of ``dim`` elements.

    64 lines are what a warp group of an H100 multiplies at once: 21 tokens of 3 heads. Exact float32 products
    are unrolled into registers, which are enough for smaller blocks only; wide heads need more warps.
    """
    exact = dtype == torch.float32
    lines = 32 if exact and dim > 128 else 64
    tokens = max(1, lines // group)
    block = (16 if exact else 32) if dim > 128 or (exact and dim > 64) else (32 if exact else 64)
    warps = 8 if exact or dim > 128 else 4
    return PrefillShape(tokens=tokens, lines=block_of(tokens * group), block=block, num_warps=warps)


def check_geometry(head_dim: int, heads: int, kv_heads: int) -> None:
    """Raise unless the kernel serves these heads.

    Raises:
        CapabilityError: the head size is no power of two from 16 to 256, or heads do not divide.
    """
    require_heads("paged prefill attention", head_dim, heads, kv_heads, "use ChunkAttention for this model")


def paged_prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: PrefillTiles,
    out: torch.Tensor,
    *,
    page_size: int,
) -> None:
    """Enqueue the causal attention of all chunks of ``tiles``; one launch, which waits for nothing.

    A token's result is the same bit for bit however its prompt was cut into chunks and whatever else is in
    the step. What lies past a chunk's last position is never read.

    Args:
        query: bfloat16 or float32 [T, heads, head_dim], last dimension dense; chunk by chunk.
        keys: one layer's pool, [pool tokens, kv_heads, head_dim], like ``query``; page p holds tokens
            p x page_size and on.
        values: like ``keys``.
        tiles: of the T tokens, each of at most ``shape_of(...).tokens``.
        out: like ``query``, dense; every element is written.
        page_size: tokens in one page.

    Raises:
        LayoutError: tensors and tiles do not fit together.
        CapabilityError: the kernel does not serve the heads, or a compiled kernel was asked to run on a CPU.
    """
    _check(query, keys, values, tiles, out)
    from adaverify_engine.ops.paged_prefill.kernel import paged_prefill_kernel as kernel

    _, heads, dim = query.shape
    kv_heads = keys.shape[1]
    check_geometry(dim, heads, kv_heads)
    require_launchable(kernel, query.device)
    group = heads // kv_heads
    shape = shape_of(group, dim, query.dtype)
    if tiles.size > shape.tokens:
        raise LayoutError(
            "the tiles hold more tokens than a program",
            arrived=tiles.size,
            allowed=f"at most {shape.tokens} tokens of {group} query heads a KV head",
            remedy="plan the tiles with the tokens of shape_of",
        )
    kernel[(len(tiles.tiles), kv_heads)](
        query, keys, values, tiles.tiles, tiles.table, out,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        tiles.table.stride(0), dim**-0.5 * LOG2_E,
        GROUP=group, DIM=dim, LINES=shape.lines, PAGE=page_size, BLOCK=shape.block,
        WIDEN=is_interpreted(kernel), num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip


def _check(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tiles: PrefillTiles, out: torch.Tensor
) -> None:
    """Raise ``LayoutError`` unless everything fits; reads attributes only."""
    tensors = (query, keys, values, out)
    dense = all(t.dim() == 3 and t.stride(2) == 1 for t in tensors) and out.is_contiguous()
    if not dense or query.dtype not in DTYPES or len({(t.dtype, t.device, t.shape[2]) for t in tensors}) != 1:
        raise LayoutError(
            "query, keys, values and out do not have the layout of paged prefill attention",
            arrived=[(t.dtype, str(t.device), tuple(t.shape), tuple(t.stride())) for t in tensors],
            allowed="bfloat16 or float32 on one device, three dimensions, the last one dense; out dense",
            remedy="pass [tokens, heads, head_dim], and keep the cache in the model's dtype",
        )
    fits = query.shape == out.shape and keys.shape == values.shape and len(query) == tiles.tokens
    if not fits or tiles.table.device != query.device:
        raise LayoutError(
            "query, out and tiles, or keys and values, disagree",
            arrived=(*(tuple(t.shape) for t in tensors), tiles.tokens, str(tiles.table.device)),
            allowed="out like query, values like keys, tiles of as many tokens on the same device",
            remedy="pass the prompt tokens of the step, and no others",
        )
