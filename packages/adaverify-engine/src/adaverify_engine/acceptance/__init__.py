"""Acceptance: which drafts stay, and what comes after them."""

from adaverify_engine.acceptance.blocks import inverse_cdf, top_two
from adaverify_engine.acceptance.laws import target_law
from adaverify_engine.acceptance.match import accept_equal
from adaverify_engine.acceptance.rejection import accept_sampled
from adaverify_engine.acceptance.verdict import Sequences, Verdict, judge

__all__ = [
    "Sequences",
    "Verdict",
    "accept_equal",
    "accept_sampled",
    "inverse_cdf",
    "judge",
    "target_law",
    "top_two",
]
