"""What a run did, in one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adaverify_contracts import StepRecord


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How predictions compare with what happened, over the steps that have both.

    Attributes:
        steps: steps compared.
        bias: mean of (realised - predicted) / predicted; positive when the model was optimistic about time,
            pessimistic about tokens.
        absolute: mean of its absolute value.
    """

    steps: int
    bias: float
    absolute: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals and ratios of a trace; a ratio without a denominator is None, never 0.

    Attributes:
        steps: records summarised.
        request_steps: decode requests summed over steps.
        emitted: tokens emitted, prefills included.
        seconds: measured time, summed over the ``timed_steps`` that have one.
        tokens_per_second: tokens of the timed steps by their time.
        accepted_length: accepted drafts and the bonus token, per request and step.
        drafted: drafts scheduled; verified: drafts verified; accepted: drafts accepted.
        wasted: verified and not accepted.
        trimmed: scheduled and not verified.
        accepted_per_drafted: accepted / drafted, what the drafter is worth.
        accepted_per_verified: accepted / verified, what verification is worth. Trimming raises it.
        mean_budget: mean of the planned budgets.
        mean_lag: mean lag over the steps that read confidences.
        states: steps by plan state; strategies: steps by strategy; fallbacks: events by name.
        unexecuted: steps whose verified drafts differ from the plan; each is an error.
        seconds_error, tokens_error: predicted against realised, None when nothing was predicted.
    """

    steps: int
    request_steps: int
    emitted: int
    timed_steps: int
    seconds: float
    tokens_per_second: float | None
    accepted_length: float | None
    drafted: int
    verified: int
    accepted: int
    wasted: int
    trimmed: int
    accepted_per_drafted: float | None
    accepted_per_verified: float | None
    mean_budget: float | None
    mean_lag: float | None
    states: Mapping[str, int]
    strategies: Mapping[str, int]
    fallbacks: Mapping[str, int]
    unexecuted: int
    seconds_error: PredictionError | None
    tokens_error: PredictionError | None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)


def summarise(records: Iterable[StepRecord]) -> Summary:
    """Summarise records of one run; an empty run has zero totals and no ratios."""
    steps = list(records)
    timed = [record for record in steps if record.realised_seconds is not None]
    seconds = sum(record.realised_seconds or 0.0 for record in timed)
    drafted = sum(record.scheduled for record in steps)
    verified = sum(record.verified for record in steps)
    accepted = sum(record.accepted for record in steps)
    requests = sum(record.requests for record in steps)
    lags = [record.lag for record in steps if record.lag is not None]
    return Summary(
        steps=len(steps),
        request_steps=requests,
        emitted=sum(record.emitted for record in steps),
        timed_steps=len(timed),
        seconds=seconds,
        tokens_per_second=_ratio(sum(record.emitted for record in timed), seconds),
        accepted_length=_ratio(accepted + requests, requests),
        drafted=drafted,
        verified=verified,
        accepted=accepted,
        wasted=verified - accepted,
        trimmed=drafted - verified,
        accepted_per_drafted=_ratio(accepted, drafted),
        accepted_per_verified=_ratio(accepted, verified),
        mean_budget=_ratio(sum(record.planned for record in steps), len(steps)),
        mean_lag=_ratio(sum(lags), len(lags)),
        states=dict(sorted(Counter(record.state for record in steps).items())),
        strategies=dict(sorted(Counter(record.strategy for record in steps).items())),
        fallbacks=dict(sorted(Counter(name for record in steps for name in record.fallbacks).items())),
        unexecuted=sum(record.planned != record.verified for record in steps),
        seconds_error=_error([(record.predicted_seconds, record.realised_seconds) for record in steps]),
        tokens_error=_error([(record.predicted_tokens, float(record.realised_tokens)) for record in steps]),
    )


def _ratio(value: float, by: float) -> float | None:
    return value / by if by else None


def _error(pairs: list[tuple[float | None, float | None]]) -> PredictionError | None:
    errors = [
        (realised - predicted) / predicted
        for predicted, realised in pairs
        if predicted and realised is not None
    ]
    if not errors:
        return None
    absolute = sum(abs(error) for error in errors) / len(errors)
    return PredictionError(len(errors), sum(errors) / len(errors), absolute)
