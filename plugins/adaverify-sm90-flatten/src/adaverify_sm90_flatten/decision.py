"""The one decision whether query tokens are flattened, and the graph support that follows from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from adaverify_contracts import GraphSupport, LimitsError

NATIVE_QUERY_ROWS = (1, 2)
"""Query tokens that this architecture's kernel takes in one row in every known version of the library. The
pinned one takes 4 too, which bought nothing more when measured (deepgemm section 14)."""


@dataclass(frozen=True, slots=True)
class Flattening:
    """Whether to flatten, what a graph of it can replay, and why.

    Attributes:
        needed: True when each query token becomes a slot of its own row or pair, with lengths from the
            device; False when the kernel takes a request's query tokens as one row.
        graph_support: what the builder of the decided rows survives in a captured graph; the same decision,
            so the two cannot disagree (vllm #47808).
        reason: one sentence.
    """

    needed: bool
    graph_support: GraphSupport
    reason: str


def use_flattening(
    query_len: int,
    *,
    adaptive: bool,
    requests: int | None = None,
    native: Collection[int] = NATIVE_QUERY_ROWS,
    ragged_kernel: bool = False,
) -> Flattening:
    """Decide whether query tokens are flattened.

    Args:
        query_len: K + 1, or the query length of a single request.
        adaptive: whether verification is trimmed, so that only the device knows each query length.
        requests: decode requests in the step when that is known; None decides for all steps to come.
        native: query lengths that the kernel takes as one row.
        ragged_kernel: whether a native kernel reads ragged lengths from the device.

    Raises:
        LimitsError: ``query_len`` below 1, or ``requests`` below 0.
    """
    if query_len < 1 or (requests is not None and requests < 0):
        raise LimitsError(
            "no step has such a shape",
            arrived={"query_len": query_len, "requests": requests},
            allowed="query_len >= 1, requests None or >= 0",
            remedy="pass K + 1 and the number of decode requests",
        )
    if ragged_kernel:
        reason = "the kernel reads ragged lengths from the device itself"
        return Flattening(False, GraphSupport.VARLEN_DECODE, reason)
    taken = " or ".join(map(str, sorted(native))) or "no"
    if query_len not in native:
        reason = f"no native kernel for {query_len} query rows: it takes {taken}"
        return Flattening(True, GraphSupport.VARLEN_DECODE, reason)
    if not adaptive:
        reason = f"every query has {query_len} rows, which the kernel takes natively"
        return Flattening(False, GraphSupport.UNIFORM_BATCH, reason)
    if requests == 1:
        reason = f"a single request has {query_len} query rows on host and device, which the kernel takes"
        return Flattening(False, GraphSupport.UNIFORM_BATCH, reason)
    reason = "trimming makes lengths that only the device knows, and here only flattened rows read those"
    return Flattening(True, GraphSupport.VARLEN_DECODE, reason)
