"""Two families of decode graphs: steps that draft and verify, and a few that do neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from adaverify_contracts import GraphKey, Limits
from adaverify_graphs._arguments import require_limits, require_most
from adaverify_graphs.ladder import Ladder, choose_ladder

SHARE = 8
"""Drafting graphs for each drafting-free one: an eighth more captures, well below what a start may cost."""
MOST = 16
"""Drafting-free graphs at most: of 512 requests they are then half as large again as the one before."""


@dataclass(frozen=True, slots=True)
class Families:
    """What to capture for an engine that may skip drafting.

    Attributes:
        drafting: the ladder of steps in which every request drafts, any decode lengths up to K + 1.
        bare: request counts of drafting-free steps, rising, the largest batch last; none where the limits
            leave no graph for them, or where nothing is ever drafted.
    """

    drafting: Ladder
    bare: tuple[int, ...] = ()

    def keys(self, limits: Limits) -> tuple[GraphKey, ...]:
        """Return the keys of both families; a drafting-free one has a longest query of 1."""
        return (*self.drafting.keys(limits), *bare_keys(self.bare, limits))


def bare_keys(counts: tuple[int, ...], limits: Limits) -> tuple[GraphKey, ...]:
    """Return the key of each drafting-free step: one token a request."""
    return tuple(GraphKey(count, count, 1, limits.table_width) for count in counts)


def is_bare(key: GraphKey, limits: Limits) -> bool:
    """Return whether a graph of this key belongs to the drafting-free family."""
    return key.max_query_len == 1 and limits.draft_tokens > 0


def choose_families(
    limits: Limits,
    expected: Mapping[int, float] | None = None,
    max_graphs: int | None = None,
    bytes_limit: int | None = None,
    bytes_of: Callable[[int], int] | None = None,
) -> Families:
    """Choose the ladder of ``choose_ladder``, and the drafting-free sizes beside it.

    There is one drafting-free graph for eight of the ladder, at least one and at most 16; under
    ``max_graphs`` both families together stay within it. Their sizes are those of the least padding relative
    to the batch, and the largest batch is always one of them: drafting loses under load, and there padding
    is dear.

    Args:
        limits: K and the number of requests.
        expected, max_graphs, bytes_limit, bytes_of: as for ``choose_ladder``, for both families together.

    Raises:
        GraphError: as ``choose_ladder``.
    """
    require_limits(limits)
    require_most("max_graphs", max_graphs)
    if not limits.draft_tokens:
        return Families(choose_ladder(limits, expected, max_graphs, bytes_limit, bytes_of))
    count = _bare_count(limits, max_graphs)
    rest = None if max_graphs is None else max_graphs - count
    ladder = choose_ladder(limits, expected, rest, bytes_limit, bytes_of)
    left = None
    if bytes_limit is not None and ladder.estimated_bytes is not None:
        left = bytes_limit - ladder.estimated_bytes
    if not count or not ladder.tiers or (left is not None and left < 1):
        return Families(ladder)
    flat = replace(limits, draft_tokens=0)
    return Families(ladder, choose_ladder(flat, None, count, left, bytes_of).tiers)


def _bare_count(limits: Limits, max_graphs: int | None) -> int:
    # A ladder without a limit holds every multiple of K + 1: as many as there are requests.
    count = min(MOST, max(1, limits.max_requests // SHARE))
    if max_graphs is None:
        return count
    # The one graph of a limit of one drafts: it serves every batch.
    return min(count, max(1, max_graphs // (SHARE + 1))) if max_graphs > 1 else 0
