"""Launch of the storing of entries: one program a token."""

from __future__ import annotations

import torch

from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.place_tokens.reference import TokenPlaces
from adaverify_engine.sparse_moe.ops.rotation import AMAX_FLOOR, E4M3_MAX, EPSILON
from adaverify_engine.sparse_moe.ops.store_entries.reference import store_entries_reference

# 1024 query-rank elements are 8 a thread.
WARPS = 4


def store_entries(
    mixed: torch.Tensor,
    places: TokenPlaces,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    latents: torch.Tensor,
    index: torch.Tensor,
    *,
    rank: int,
    latent: int,
    index_dim: int,
    backend: str = "triton",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the entries that tokens complete; return the query base [T, rank] and own entries [T, E].

    The base is normed. An entry is its completing token's normed latent value followed by its rotated tail;
    every token has one of its own, whether it completes an entry of the cache or not. The index key is
    normed, rotated in its last elements and quantised to e4m3 with one scale.

    Args:
        mixed: [T, M] float32 or bfloat16, dense: query rank, latent, rope, index key and whatever follows.
        places: of the tokens; cells are unique.
        cosine: float32 [positions, rope / 2]; sine alike.
        sine: see cosine.
        latents: [cells, latent + rope], one layer's pool, dense, in the dtype of ``mixed``.
        index: uint8 [pages, P, 1, index_dim + 4], one layer's pool, dense, pages as
            ``adaverify_metadata.pack_pages`` makes them.
        rank: width of the query base.
        latent: width of an entry's value.
        index_dim: width of an index key.
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    tokens, rope = len(mixed), 2 * cosine.shape[1]
    base = torch.empty((tokens, rank), dtype=mixed.dtype, device=mixed.device)
    own = torch.empty((tokens, latent + rope), dtype=mixed.dtype, device=mixed.device)
    if backend == "torch":
        at = places.position.long()
        store_entries_reference(
            mixed,
            places.cell,
            cosine[at],
            sine[at],
            latents,
            index,
            base,
            own,
            latent=latent,
            index_dim=index_dim,
        )
        return base, own
    from adaverify_engine.sparse_moe.ops.store_entries.kernel import store_entries_kernel

    require_launchable(store_entries_kernel, mixed.device)
    if tokens:
        bytes_of_pool = index.view(-1)
        store_entries_kernel[(tokens,)](
            mixed,
            places.cell,
            places.position,
            cosine,
            sine,
            latents,
            bytes_of_pool.view(torch.float8_e4m3fn),
            bytes_of_pool.view(torch.float32),
            base,
            own,
            mixed.stride(0),
            RANK=rank,
            BLOCK_RANK=block_of(rank),
            LATENT=latent,
            ROPE=rope,
            INDEX=index_dim,
            BLOCK_PLAIN=block_of(index_dim - rope),
            PAGE=index.shape[1],
            EPSILON=EPSILON,
            E4M3_MAX=E4M3_MAX,
            AMAX_FLOOR=AMAX_FLOOR,
            num_warps=WARPS,
        )
    return base, own
