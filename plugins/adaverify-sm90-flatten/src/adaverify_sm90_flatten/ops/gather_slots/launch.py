"""Launch of the gather, left out where slots are tokens already."""

from __future__ import annotations

from typing import Any

import torch

from adaverify_contracts import DecodeRows, LayoutError
from adaverify_sm90_flatten.ops.decorated import decorated, require_device
from adaverify_sm90_flatten.ops.gather_slots.reference import gather_slots_reference

WARPS = 4


def gather_kernel() -> Any:
    """Return the kernel."""
    from adaverify_sm90_flatten.ops.gather_slots.kernel import gather_slots_kernel

    return decorated(gather_slots_kernel, unaligned=("row_token",))


def gather_slots(
    query: torch.Tensor, weights: torch.Tensor, rows: DecodeRows, *, backend: str = "triton"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the queries and weights of tokens by slot: [M, N, H, D] and [M x N, H].

    Rows of one token that are as many as the tokens are in token order already: then views come back and
    nothing is launched. Otherwise one launch, capturable after one call outside a capture; the results are
    allocated, under capture from the graph's pool.

    Args:
        query: float8_e4m3fn [T, H, D], contiguous, T the padded tokens of the rows.
        weights: float32 [T, H], contiguous.
        rows: from a strategy of this plugin.
        backend: ``triton`` or ``torch``.

    Raises:
        LayoutError: dtypes, shapes or strides do not fit, or H or H x D / 4 is not a power of two.
        CapabilityError: the Triton backend on a CPU outside the interpreter.
    """
    tokens, shape = rows.token_slot.shape[0], tuple(query.shape)
    heads = shape[1] if len(shape) == 3 else 0
    words = heads * shape[2] // 4 if heads else 0
    fits = (
        len(shape) == 3
        and shape[0] == tokens
        and tuple(weights.shape) == (tokens, heads)
        and query.element_size() == 1
        and weights.dtype == torch.float32
        and query.is_contiguous()
        and weights.is_contiguous()
        and words > 0
        and not (words & (words - 1) or heads & (heads - 1) or shape[2] % 4)
    )
    if not fits:
        raise LayoutError(
            "queries and weights cannot be laid out by slot",
            arrived={
                "query": (shape, str(query.dtype)),
                "weights": (tuple(weights.shape), str(weights.dtype)),
            },
            allowed=f"contiguous, query FP8 [{tokens}, H, D], weights float32 [{tokens}, H], powers of two",
            remedy="pass one query and one row of weights for each padded token of the rows",
        )
    # Only this layout promises slot t for token t; shapes do not (a uniform row without a token shifts).
    if rows.strategy == "flatten" and rows.tokens_per_row == 1 and rows.rows == tokens:
        return query[:, None], weights
    if backend == "torch":
        return gather_slots_reference(query, weights, rows.row_token)
    count = rows.rows * rows.tokens_per_row
    by_slot = torch.empty(rows.rows, rows.tokens_per_row, *shape[1:], dtype=query.dtype, device=query.device)
    slot_weights = torch.empty(count, heads, dtype=torch.float32, device=query.device)
    if count:
        kernel = gather_kernel()
        require_device(kernel, query.device)
        kernel[(count,)](
            rows.row_token,
            query.view(torch.int32),
            weights,
            by_slot.view(torch.int32),
            slot_weights,
            WORDS=words,
            HEADS=heads,
            num_warps=WARPS,
        )
    return by_slot, slot_weights
