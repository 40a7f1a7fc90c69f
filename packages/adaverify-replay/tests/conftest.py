"""A maker of step records."""

import pytest

from adaverify_contracts import StepRecord


@pytest.fixture
def record():
    """Return a maker: one good record, with changes."""

    def make(**changes):
        values = {
            "step": 0,
            "state": "trimming",
            "reason": "8 drafts pay for themselves",
            "requests": 4,
            "certain_tokens": 4,
            "scheduled": 28,
            "planned": 8,
            "verified": 8,
            "accepted": 6,
            "emitted": 10,
            "tokens": 12,
            "tier": 12,
            "strategy": "reference",
            "predicted_seconds": 0.02,
            "realised_seconds": 0.025,
            "predicted_tokens": 8.0,
            "realised_tokens": 10,
            "lag": 1,
            "digest": "00000000deadbeef",
            "fallbacks": (),
        }
        return StepRecord(**{**values, **changes})

    return make
