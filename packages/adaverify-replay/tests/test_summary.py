"""The summary, pinned to numbers worked by hand."""

import json

import pytest

from adaverify_replay import summarise


def test_totals_and_ratios_of_three_steps(record):
    """Three steps, every number worked by hand."""
    summary = summarise(
        [
            record(),
            record(
                step=1,
                state="full",
                planned=28,
                verified=28,
                accepted=12,
                emitted=16,
                realised_seconds=0.04,
                predicted_seconds=0.05,
                realised_tokens=16,
                predicted_tokens=20.0,
                lag=3,
                strategy="uniform",
                fallbacks=("stale-generation",),
            ),
            record(
                step=2,
                state="full",
                requests=0,
                scheduled=0,
                planned=0,
                verified=0,
                accepted=0,
                emitted=1,
                realised_seconds=None,
                predicted_seconds=None,
                predicted_tokens=0.0,
                realised_tokens=1,
                lag=None,
                fallbacks=("stale-generation", "unpriced"),
            ),
        ]
    )
    assert (summary.steps, summary.request_steps, summary.emitted) == (3, 8, 27)
    assert summary.seconds == pytest.approx(0.065)
    # The step without a measured time gives neither time nor tokens to the rate.
    assert summary.timed_steps == 2
    assert summary.tokens_per_second == pytest.approx(26 / 0.065)
    assert summary.accepted_length == pytest.approx((18 + 8) / 8)
    assert (summary.drafted, summary.verified, summary.accepted) == (56, 36, 18)
    assert (summary.wasted, summary.trimmed) == (18, 20)
    assert summary.mean_budget == pytest.approx(12)
    assert summary.mean_lag == pytest.approx(2)
    assert summary.states == {"full": 2, "trimming": 1}
    assert summary.strategies == {"reference": 2, "uniform": 1}
    assert summary.fallbacks == {"stale-generation": 2, "unpriced": 1}
    assert summary.unexecuted == 0
    assert summary.seconds_error.steps == 2
    assert summary.seconds_error.bias == pytest.approx((0.25 - 0.2) / 2)
    assert summary.seconds_error.absolute == pytest.approx((0.25 + 0.2) / 2)
    assert summary.tokens_error.bias == pytest.approx((0.25 - 0.2) / 2)
    json.dumps(summary.as_dict())


def test_acceptance_is_reported_against_drafted_and_against_verified(record):
    """vllm #56797: trimming lowers one and raises the other, so one number alone misleads."""
    full = summarise([record(planned=28, verified=28, accepted=7)])
    trimmed = summarise([record(planned=8, verified=8, accepted=6)])
    assert (full.accepted_per_drafted, full.accepted_per_verified) == (7 / 28, 7 / 28)
    assert (trimmed.accepted_per_drafted, trimmed.accepted_per_verified) == (6 / 28, 6 / 8)


def test_acceptance_is_divided_by_what_was_offered_and_not_by_a_cap(record):
    """lucebox #496: cap 7, offered 2, accepted 2 is 100 %."""
    summary = summarise([record(requests=1, scheduled=2, planned=2, verified=2, accepted=2)])
    assert summary.accepted_per_drafted == summary.accepted_per_verified == 1.0


def test_a_plan_that_was_not_executed_is_counted(record):
    """sglang #30204: the plan admits 2 and 7 are verified."""
    summary = summarise([record(planned=2, verified=7), record()])
    assert summary.unexecuted == 1


def test_an_empty_run_has_no_ratios(record):
    """Nothing divided by nothing is None, not 0."""
    summary = summarise([])
    assert summary.steps == summary.emitted == summary.drafted == 0
    for name in (
        "tokens_per_second",
        "accepted_length",
        "accepted_per_drafted",
        "mean_budget",
        "seconds_error",
    ):
        assert getattr(summary, name) is None, name
