"""One finished step as a line of the trace."""

from __future__ import annotations

import numpy as np

from adaverify_contracts import Plan, RequestRows, StepOutcome, StepRecord

# Scores are log-odds: 1e-4 of one moves a confidence by at most 2.5e-5, and a line is a third as long.
_DECIMALS = 4
# Slots of one engine are below 2^20; generations fill the rest of 53 bits, which JSON readers keep exact.
_SLOT_BITS = 20


def write_record(
    outcome: StepOutcome, plan: Plan, strategy: str, *, notes: tuple[str, ...], rows: bool = False
) -> StepRecord:
    """Return the record of a step: planned and executed, predicted and realised, every fallback by name."""
    return StepRecord(
        step=plan.step,
        state=plan.state.value,
        reason=plan.reason,
        requests=plan.requests,
        certain_tokens=plan.certain_tokens,
        scheduled=plan.scheduled,
        planned=plan.budget,
        verified=outcome.total_admitted,
        accepted=outcome.total_accepted,
        emitted=outcome.emitted,
        tokens=plan.tokens,
        tier=plan.tier,
        strategy=strategy,
        predicted_seconds=plan.predicted_seconds,
        realised_seconds=outcome.seconds,
        predicted_tokens=plan.predicted_tokens,
        realised_tokens=outcome.emitted,
        lag=plan.lag,
        digest=f"{plan.digest:016x}",
        fallbacks=notes,
        rows=request_rows(outcome) if rows else None,
    )


def request_rows(outcome: StepOutcome) -> RequestRows:
    """Return what a step did to each request, as plain values; for records that are kept.

    Without ``outcome.keys`` a request is told by its slot and generation, so that equal prompts get
    different keys.
    """
    scores = outcome.scores.astype(np.float64)
    values = np.round(scores, _DECIMALS).tolist()
    for row in np.flatnonzero(~np.isfinite(scores).all(axis=1)).tolist():
        values[row] = [value if np.isfinite(value) else None for value in values[row]]
    keys = outcome.keys if outcome.keys is not None else outcome.generations << _SLOT_BITS | outcome.slots
    return RequestRows(
        keys=tuple(keys.tolist()),
        drafted=tuple(outcome.drafted.tolist()),
        admitted=tuple(outcome.admitted.tolist()),
        accepted=tuple(outcome.accepted.tolist()),
        judged=tuple((outcome.drafted if outcome.judged is None else outcome.judged).tolist()),
        learn=tuple(outcome.learn.tolist()),
        sampled=tuple(outcome.sampled.tolist()),
        scores=tuple(tuple(row) for row in values),
    )
