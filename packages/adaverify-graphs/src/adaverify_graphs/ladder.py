"""Which token counts to capture: dynamic programming over the expected sizes."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adaverify_contracts import GraphError, GraphKey, Limits
from adaverify_graphs._arguments import is_count, is_number, require_limits, require_most
from adaverify_graphs._tiers import BestTiers, Sizes
from adaverify_graphs.shapes import graph_keys


@dataclass(frozen=True, slots=True)
class Ladder:
    """Tiers to capture, and what a limit took away.

    Attributes:
        tiers: token counts, rising; empty means that nothing is captured.
        uniform_kept: how many of them are multiples of K + 1.
        uniform_total: how many multiples of K + 1 there are up to max_requests x (K + 1).
        expected_padding: mean padding tokens of a step, over the expected sizes that the tiers hold.
        estimated_bytes: sum of the estimates of all tiers, None when no estimate was given.
        cuts: one sentence for each limit that cut the ladder short, with its number.
    """

    tiers: tuple[int, ...]
    uniform_kept: int
    uniform_total: int
    expected_padding: float
    estimated_bytes: int | None
    cuts: tuple[str, ...]

    def tier_for(self, tokens: int) -> int | None:
        """Return the smallest tier that holds ``tokens``, None when the ladder ends below."""
        at = bisect.bisect_left(self.tiers, tokens)
        return self.tiers[at] if at < len(self.tiers) else None

    def keys(self, limits: Limits) -> tuple[GraphKey, ...]:
        """Return the graph key of each tier."""
        return graph_keys(self.tiers, limits)


def choose_ladder(
    limits: Limits,
    expected: Mapping[int, float] | None = None,
    max_graphs: int | None = None,
    bytes_limit: int | None = None,
    bytes_of: Callable[[int], int] | None = None,
) -> Ladder:
    """Choose the tiers that waste least on padding, from the multiples of K + 1 up to the largest batch.

    Args:
        limits: K and the number of requests; the ladder ends at max_requests x (K + 1) and never beyond.
        expected: how often each batch size (query tokens) occurs, in any unit; None weighs a size by
            1 / size, so that padding counts relative to the batch.
        max_graphs: largest number of tiers, None for no limit.
        bytes_limit: largest sum of estimates, None for no limit.
        bytes_of: estimated bytes that the graph of one tier adds.

    Every multiple of K + 1 is a tier as far as the limits allow; ``cuts`` says with numbers where they do
    not. Tiers between multiples are added where they save padding: at the expected sizes, or anywhere when
    only ``max_graphs`` is given. For each number of graphs the choice is the best there is. Under
    ``bytes_limit`` it is the best of those for the largest number of graphs that fits, filled up with what
    still fits: optimal when all tiers cost alike, never above the limit in any case.

    Raises:
        GraphError: a size, weight or limit is out of range, or ``bytes_limit`` comes without ``bytes_of``.
    """
    _check_arguments(limits, expected, max_graphs, bytes_limit, bytes_of)
    uniform = list(range(limits.max_query_len, limits.max_tokens + 1, limits.max_query_len))
    weights = dict(expected) if expected else {size: 1.0 / size for size in range(1, limits.max_tokens + 1)}
    best = BestTiers(Sizes(weights), bytes_of, bytes_limit)
    cuts: list[str] = []
    fitting = [size for size in uniform if best.fits_alone(size)]
    if len(fitting) < len(uniform) and bytes_of is not None:
        cuts.append(_end_cut(uniform, fitting, bytes_of, bytes_limit))
    count = len(fitting) if max_graphs is None else max_graphs
    if count < len(fitting) or not best.fit(fitting):
        tiers = best.among(fitting, count)
        cuts.append(_uniform_cut(len(tiers), uniform, max_graphs, bytes_limit, count < len(fitting)))
    elif fitting:
        between = _between(fitting[-1], expected, max_graphs, weights)
        tiers = best.refined(fitting, between, max_graphs)
    else:
        tiers = []
    return Ladder(
        tiers=tuple(tiers),
        uniform_kept=sum(tier % limits.max_query_len == 0 for tier in tiers),
        uniform_total=len(uniform),
        expected_padding=best.sizes.mean_padding(tiers),
        estimated_bytes=None if bytes_of is None else sum(bytes_of(tier) for tier in tiers),
        cuts=tuple(cuts),
    )


def _between(
    end: int, expected: Mapping[int, float] | None, max_graphs: int | None, weights: Mapping[int, float]
) -> list[int]:
    if not expected and max_graphs is None:
        return []
    return sorted(size for size, weight in weights.items() if weight > 0 and size < end)


def _end_cut(
    uniform: list[int], fitting: list[int], bytes_of: Callable[[int], int], bytes_limit: int | None
) -> str:
    needed = f"one graph of {uniform[-1]} tokens is estimated at {bytes_of(uniform[-1])} bytes"
    if not fitting:
        smallest = f"the smallest, {uniform[0]} tokens, at {bytes_of(uniform[0])}"
        return f"bytes limit {bytes_limit}: nothing is captured; {needed}, {smallest}"
    if fitting[-1] < uniform[-1]:
        end = f"the ladder ends at {fitting[-1]} and not at {uniform[-1]} tokens"
        return f"bytes limit {bytes_limit}: {end}; {needed}"
    return f"bytes limit {bytes_limit}: {len(uniform) - len(fitting)} uniform sizes do not fit even alone"


def _uniform_cut(
    kept: int, uniform: list[int], max_graphs: int | None, bytes_limit: int | None, by_count: bool
) -> str:
    cause = f"graph limit {max_graphs}" if by_count else f"bytes limit {bytes_limit}"
    if by_count and max_graphs is not None and kept < max_graphs:
        cause += f" and bytes limit {bytes_limit}"
    return f"{cause}: {kept} of {len(uniform)} uniform sizes (multiples of {uniform[0]}) are kept"


def _check_arguments(
    limits: Limits,
    expected: Mapping[int, float] | None,
    max_graphs: int | None,
    bytes_limit: int | None,
    bytes_of: Callable[[int], int] | None,
) -> None:
    require_limits(limits)
    require_most("max_graphs", max_graphs)
    require_most("bytes_limit", bytes_limit)
    if bytes_limit is not None and bytes_of is None:
        raise GraphError(
            "a limit in bytes needs an estimate of each tier's bytes",
            arrived=bytes_limit,
            allowed="bytes_limit together with bytes_of",
            remedy="pass bytes_of, for instance from GraphBackend.estimate",
        )
    if bytes_of is not None and not callable(bytes_of):
        raise GraphError(
            "bytes_of cannot be called",
            arrived=bytes_of,
            allowed="a function from a tier to its estimated bytes",
            remedy="pass bytes_of, for instance from GraphBackend.estimate",
        )
    if expected is not None and not isinstance(expected, Mapping):
        raise GraphError(
            "the expected sizes are no mapping",
            arrived=expected,
            allowed="a mapping from query tokens to how often they occur, or None",
            remedy="count the sizes of decode batches, as collections.Counter does",
        )
    for size, weight in (expected or {}).items():
        if not is_count(size) or not 1 <= size <= limits.max_tokens:
            raise GraphError(
                "an expected size is no size of a decode batch",
                arrived=size,
                allowed=f"1 .. {limits.max_tokens} (max_requests x (K + 1))",
                remedy="count query tokens of decode batches only, or raise max_requests",
            )
        if not (is_number(weight) and math.isfinite(weight) and weight >= 0):
            raise GraphError(
                f"the weight of expected size {size} is not a frequency",
                arrived=weight,
                allowed="a finite number >= 0",
                remedy="pass counts or shares",
            )
