"""How much decode traffic graphs serve: what was asked for is kept, or refused with every reason."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import GraphError, GraphSupport


@dataclass(frozen=True, slots=True)
class GraphMode:
    """The level in force.

    Attributes:
        support: what the cache dispatches on.
        requested: what the user named, None when the choice was left open.
        reason: why the level is what it is, in words for the start-up report.
    """

    support: GraphSupport
    requested: GraphSupport | None
    reason: str


def resolve_mode(
    requested: GraphSupport | None,
    *,
    strategy: GraphSupport,
    device_lengths: bool,
    backend_captures: bool,
) -> GraphMode:
    """Return the level to run at: exactly the requested one, or the highest available when none is named.

    Args:
        requested: the user's level, None to leave it open.
        strategy: the chosen strategy's declared level.
        device_lengths: whether that strategy reads ragged lengths from the device. Levels above
            ``UNIFORM_BATCH`` need this *and* the declared level; either alone is not enough.
        backend_captures: whether the graph backend records graphs at all.

    Raises:
        GraphError: the requested level is not available; nothing is lowered in silence.
    """
    reasons = []
    highest = strategy
    if not device_lengths:
        highest = min(highest, GraphSupport.UNIFORM_BATCH)
        reasons.append("the strategy does not read lengths from the device")
    if strategy < GraphSupport.VARLEN_DECODE:
        reasons.append(f"the strategy declares {strategy.name}")
    if not backend_captures:
        highest = GraphSupport.NEVER
        reasons.append("the graph backend does not capture")
    why = "; ".join(reasons) or f"strategy and backend support {highest.name}"
    if requested is None:
        return GraphMode(highest, None, f"highest available: {why}")
    if requested > highest:
        raise GraphError(
            f"graph mode {requested.name} was asked for and {highest.name} is the highest available: {why}",
            arrived=requested.name,
            allowed=", ".join(level.name for level in GraphSupport if level <= highest),
            remedy="ask for an allowed mode, or choose a strategy and a backend that support this one",
        )
    return GraphMode(requested, requested, "as requested")
