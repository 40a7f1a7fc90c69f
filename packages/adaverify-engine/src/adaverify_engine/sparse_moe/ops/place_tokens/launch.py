"""Launch of the placing of tokens."""

from __future__ import annotations

import torch

from adaverify_contracts import ceil_div
from adaverify_engine.ops.launchable import require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.place_tokens.reference import (
    POSITION_STEP,
    REQUEST_STEP,
    TokenPlaces,
    place_tokens_reference,
)

# One token a thread of one warp: 2048 tokens are 64 programs.
BLOCK = 32


def place_tokens(
    token_request: torch.Tensor,
    token_offset: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    ratio: int,
    page: int,
    vocabulary: int,
    backend: str = "triton",
) -> TokenPlaces:
    """Return position, id, visible entries and completed cell of every padded query token.

    Args:
        token_request: int32 [T], -1 for padding tokens.
        token_offset: int32 [T].
        kv_lens: int32 [R], KV length of each request before the step, in tokens.
        block_table: int32 [R, W], pages of ``page`` entries each, dense in the last dimension.
        ratio: tokens to one entry.
        page: entries in one page.
        vocabulary: ids are below it.
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        return place_tokens_reference(
            token_request, token_offset, kv_lens, block_table, ratio=ratio, page=page, vocabulary=vocabulary
        )
    from adaverify_engine.sparse_moe.ops.place_tokens.kernel import place_tokens_kernel

    require_launchable(place_tokens_kernel, token_request.device)
    tokens = len(token_request)
    ids, position, visible = torch.empty((3, tokens), dtype=torch.int32, device=token_request.device)
    cell = torch.empty(tokens, dtype=torch.int64, device=token_request.device)
    if tokens:
        place_tokens_kernel[(ceil_div(tokens, BLOCK),)](
            token_request,
            token_offset,
            kv_lens,
            block_table,
            ids,
            position,
            visible,
            cell,
            tokens,
            block_table.stride(0),
            RATIO=ratio,
            PAGE=page,
            VOCABULARY=vocabulary,
            POSITION_STEP=POSITION_STEP,
            REQUEST_STEP=REQUEST_STEP,
            BLOCK=BLOCK,
            num_warps=1,
        )
    return TokenPlaces(ids, position, visible, cell)
