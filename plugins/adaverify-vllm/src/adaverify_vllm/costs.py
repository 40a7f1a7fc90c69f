"""vLLM's own profiling runs as a cost table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from adaverify_verification import CostModel, CostTable, Fingerprint

# As vLLM does: each size this often, so that the median says something.
REPLAYS = 5
# vLLM profiles one context length, and one number of requests for each size: neither is an axis here.
REQUESTS = 1

# Nothing outside vLLM can measure these: the remedy is the start.
NO_PRICES = (
    "vLLM's own profiling at start gave no usable samples; start again with full CUDA graphs, and read in "
    "vLLM's log which sizes were captured"
)
STRAYED = "measured step times left the table's bounds: vLLM profiles anew when it is started again"

Curve = list[tuple[int, float]]


def sizes_to_profile(captured: Sequence[int], most: int) -> list[int]:
    """Return the token counts to time: the captured ones, and some beyond them up to the largest batch.

    Steps beyond the last captured size run without a full graph, so their price is no continuation of the
    others'. Without captured sizes there is nothing to time.

    Args:
        captured: token counts with a graph, rising.
        most: tokens of the largest batch.
    """
    if not captured:
        return []
    last = captured[-1]
    beyond = {min(last + last // 2, most)}
    size = last
    while size < most:
        size = min(2 * size, most)
        beyond.add(size)
    return [*captured, *sorted(beyond - set(captured))]


def profile_runs(sizes: Iterable[int], context: int) -> Iterator[dict[str, int]]:
    """Yield the arguments of each dummy run of the model runner."""
    for tokens in sizes:
        for _ in range(REPLAYS):
            yield {"num_tokens": tokens, "context_len": context}


def curves_of(samples: Iterable[Any]) -> tuple[Curve, Curve]:
    """Return (requests, drafting seconds) and (tokens, forward seconds) as medians of vLLM's timings.

    Drafting is priced from full-graph runs only: behind an eager forward its events hold the host's gaps.
    """
    drafting: dict[int, list[float]] = defaultdict(list)
    forward: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.full_cudagraph:
            drafting[sample.num_reqs].append(sample.drafter_ms)
        forward[sample.num_target_tokens].append(sample.forward_ms)
    return _medians(drafting), _medians(forward)


def table_of(
    drafting: Curve, forward: Curve, *, last: int, context: int, facts: dict[str, object]
) -> CostTable:
    """Return the cost table of two curves.

    Args:
        drafting: (requests, seconds) of drafting, possibly empty.
        forward: (tokens, seconds) of the target's forward.
        last: the largest captured token count, 0 without one.
        context: KV length that was profiled.
        facts: what the times were measured on.

    Raises:
        CostTableError: no sample, or one that is no time.
    """
    points = [(tokens, REQUESTS, context, seconds) for tokens, seconds in forward]
    beyond = [point for point in points if point[0] > last]
    if last and beyond and beyond[0][0] > last + 1:
        # Past the last graph the price jumps: no line leads from one side to the other.
        points.append((last + 1, REQUESTS, context, beyond[0][3]))
    return CostTable.from_points(Fingerprint.from_mapping(facts), points, draft=drafting)


def why_unpriced(cost: CostModel) -> str:
    """Return why steps have no prices, with what helps inside vLLM."""
    if cost.table is None:
        return NO_PRICES
    return STRAYED if cost.strayed else cost.reason


def cost_model(table: CostTable | None, tiers: Sequence[int], *, online: bool) -> CostModel:
    """Return the prices of steps that are padded to ``tiers``."""
    return CostModel(table, tuple(tiers), online=online)


def _medians(samples: dict[int, list[float]]) -> Curve:
    return [(key, median(values) / 1000.0) for key, values in sorted(samples.items())]
