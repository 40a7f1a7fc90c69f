"""Which step times a simulation uses, and how far a cost table has measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adaverify_replay import AcceptanceRecords
from adaverify_verification import CostModel, CostTable


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the table says of one number of requests, and on what ground.

    Attributes:
        requests: R; context: mean KV length over the recorded positions.
        plain: seconds of a step of R tokens without drafts.
        full: seconds of a step that verifies all drafts, R x (K + 1) tokens, drafting left out.
        draft: seconds of drafting; 0 where the table has it in its steps.
        ground: ``measured`` (between measured points included), or which of their ends it lies beyond.
    """

    requests: int
    context: float
    plain: float
    full: float
    draft: float
    ground: str

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)


def step_times(
    table: CostTable,
    records: AcceptanceRecords,
    sizes: Sequence[int],
    tiers: tuple[int, ...],
    bare: tuple[int, ...] = (),
    context: int | None = None,
) -> list[StepTimes]:
    """Return the step times of every number of requests in ``sizes``.

    Args:
        table: measured step times.
        records: what is simulated; K is theirs.
        sizes: requests at once.
        tiers: captured token counts; empty where steps run eagerly.
        bare: request counts of captured steps that draft nothing.
        context: KV length at the start of each sequence; as recorded when None.
    """
    model, held = CostModel(table, online=False), _mean_context(records, context)
    model.set_tiers(tiers, bare)
    found = []
    for requests in sizes:
        tokens = np.array([requests, requests * (records.draft_tokens + 1)])
        plain, full = model.seconds(tokens, requests, held).tolist()
        free = model.bare_seconds(requests, held) if bare else None
        plain = plain if free is None else free
        draft, ground = model.draft_seconds(requests), _ground(table, int(tokens[1]), requests, held)
        found.append(StepTimes(requests, held, plain, full, draft, ground))
    return found


def table_in_words(table: CostTable, tiers: tuple[int, ...]) -> str:
    """Return what step times were measured on, how far, and how steps are padded."""
    facts = dict(table.fingerprint.pairs)
    requests = [curve.requests for curve in table.curves]
    contexts = [curve.context for curve in table.curves]
    tokens = [count for curve in table.curves for count in curve.tokens]
    named = [facts[name] for name in ("device", "dtype", "model", "drafter") if facts.get(name)]
    named += [f"K = {facts['draft_tokens']}"] if facts.get("draft_tokens") else []
    steps = f"padded to {', '.join(map(str, tiers))} tokens" if tiers else "eager, as large as their batch"
    where = ", ".join(named) or "a setup that the table does not name"
    reach = f"{span(requests)} requests, {span(tokens)} tokens, KV lengths {span(contexts)}"
    return f"Measured on {where}: {reach}; steps {steps}"


def span(values: Sequence[int]) -> str:
    """Return how far values reach: 16 to 256, or the one value."""
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _mean_context(records: AcceptanceRecords, context: int | None) -> float:
    begun = records.contexts if context is None else np.full(records.sequences, context)
    lengths = records.lengths
    return float(((begun + (lengths - 1) / 2) * lengths).sum() / lengths.sum())


def _ground(table: CostTable, tokens: int, requests: int, context: float) -> str:
    """Return ``measured``, or which ends of the measured points a price lies beyond."""
    beyond = []
    most = max(curve.requests for curve in table.curves)
    if requests > most:
        beyond.append(f"{most} requests")
    ends = [curve.tokens[-1] for curve in table.curves if curve.requests == min(requests, most)]
    last = max(ends, default=max(curve.tokens[-1] for curve in table.curves))
    if tokens > last:
        beyond.append(f"{last} tokens")
    lengths = [curve.context for curve in table.curves]
    if not min(lengths) <= context <= max(lengths):
        nearest = min(lengths) if context < min(lengths) else max(lengths)
        beyond.append(f"KV length {nearest}")
    return f"beyond {', '.join(beyond)}" if beyond else "measured"
