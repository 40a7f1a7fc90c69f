"""Makers of step records, of acceptance records and of prices."""

import numpy as np
import pytest

from adaverify_contracts import StepRecord
from adaverify_replay import AcceptanceRecords, RecordsHeader
from adaverify_verification import CostTable, Fingerprint


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


@pytest.fixture
def made_up():
    """Return a maker of records whose scores are the true conditional chances, request by request."""

    def make(sequences=24, length=40, width=5, seed=0, sampled=False):
        random = np.random.default_rng(seed)
        count = sequences * length
        # Easy and hard stretches, so that which drafts are verified matters.
        easy = random.random((count, 1)) < 0.5
        chance = np.where(easy, 0.9, 0.3) * random.uniform(0.9, 1.0, (count, width))
        accepted = (random.random((count, width)) < chance).cumprod(axis=1).sum(axis=1)
        return AcceptanceRecords(
            RecordsHeader("toy", "toy-block", width, "PREFIX", True, 0.8, seed),
            scores=np.log(chance / (1 - chance)).astype(np.float16),
            accepted=accepted.astype(np.uint8),
            starts=np.arange(sequences + 1, dtype=np.int64) * length,
            source=(np.arange(sequences) % 3).astype(np.uint8),
            regime=np.full(sequences, int(sampled), np.uint8),
            contexts=random.integers(10, 60, sequences).astype(np.int32),
        )

    return make


@pytest.fixture
def priced():
    """Return a maker of cost tables: seconds of a step are ``fixed`` and ``slope`` a query token.

    Drafting takes ``draft``, or is priced as ``draft_parts`` say.
    """

    def make(slope=2e-4, fixed=1e-3, draft=2e-4, most=128, draft_parts=None, **parts):
        points = [
            (tokens, requests, context, fixed + slope * tokens)
            for tokens in (1, 2, 4, 8, 16, 32, 64, most)
            for requests in (1, 16)
            for context in (16, 128)
        ]
        drafting = [(1, draft), (16, draft)] if draft_parts is None else draft_parts
        return CostTable.from_points(
            Fingerprint.from_mapping({"device": "a test"}), points, draft=drafting, **parts
        )

    return make
