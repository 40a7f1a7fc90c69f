"""Launch of routing and dispatch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.route_tokens.reference import dispatch_reference, route_reference

# 256 logits are two a thread; a row of 4096 is copied in pieces of 2048, 16 elements a thread.
ROUTE_WARPS = 4
COPY_BLOCK, COPY_WARPS = 2048, 4


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Rows by expert, for a grouped product.

    Attributes:
        rows: [T x active, hidden]; rows past ``ends[-1]`` hold anything.
        ends: int32 [local]; rows of expert e end there, and begin where those of e - 1 end.
        places: int32 [T, active]; row of a token for its j-th expert, -1 where that expert is elsewhere.
        weights: float32 [T, active]; softmax over a token's experts, those elsewhere included.
    """

    rows: torch.Tensor
    ends: torch.Tensor
    places: torch.Tensor
    weights: torch.Tensor


def route_tokens(
    logits: torch.Tensor,
    hidden: torch.Tensor,
    token_request: torch.Tensor,
    counts: torch.Tensor,
    *,
    active: int,
    backend: str = "triton",
) -> Dispatch:
    """Choose each token's experts and lay its rows out by expert; padding tokens go nowhere.

    Args:
        logits: [T, experts] float32 or bfloat16, dense in the last dimension, row stride free.
        hidden: [T, hidden], dense.
        token_request: int32 [T], -1 for padding.
        counts: int32 [local], zeros; holds each expert's rows afterwards (``triton`` only).
        active: experts of one token: the largest logits, of equals the lowest number.
        backend: ``torch`` or ``triton``; both only launch.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    local = len(counts)
    if backend == "torch":
        experts, weights = route_reference(logits, token_request, active=active, local=local)
        return Dispatch(*dispatch_reference(hidden, experts, local=local), weights)
    from adaverify_engine.sparse_moe.ops.route_tokens.kernel import dispatch_kernel, route_kernel

    require_launchable(route_kernel, hidden.device)
    tokens, width = hidden.shape
    experts, ranks, places = torch.empty((3, tokens, active), dtype=torch.int32, device=hidden.device)
    weights = torch.empty((tokens, active), dtype=torch.float32, device=hidden.device)
    rows = torch.empty((tokens * active, width), dtype=hidden.dtype, device=hidden.device)
    ends = torch.empty(local, dtype=torch.int32, device=hidden.device)
    if not tokens:
        return Dispatch(rows, ends.zero_(), places, weights)
    route_kernel[(tokens,)](
        logits,
        token_request,
        experts,
        weights,
        ranks,
        counts,
        logits.stride(0),
        EXPERTS=logits.shape[1],
        BLOCK=block_of(logits.shape[1]),
        ACTIVE=active,
        BLOCK_ACTIVE=block_of(active, 1),
        LOCAL=local,
        num_warps=ROUTE_WARPS,
    )
    dispatch_kernel[(tokens * active,)](
        hidden,
        experts,
        ranks,
        counts,
        rows,
        ends,
        places,
        HIDDEN=width,
        BLOCK=min(COPY_BLOCK, block_of(width)),
        ACTIVE=active,
        LOCAL=local,
        BLOCK_LOCAL=block_of(local),
        num_warps=COPY_WARPS,
    )
    return Dispatch(rows, ends, places, weights)
