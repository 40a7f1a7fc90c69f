"""One finished step as a line of the trace."""

from __future__ import annotations

from adaverify_contracts import Plan, StepOutcome, StepRecord


def write_record(outcome: StepOutcome, plan: Plan, strategy: str, *, notes: tuple[str, ...]) -> StepRecord:
    """Return the record of a step: planned and executed, predicted and realised, every fallback by name."""
    return StepRecord(
        step=plan.step,
        state=plan.state.value,
        reason=plan.reason,
        requests=plan.requests,
        certain_tokens=plan.certain_tokens,
        scheduled=plan.scheduled,
        planned=plan.budget,
        verified=int(outcome.admitted.sum()),
        accepted=int(outcome.accepted.sum()),
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
    )
