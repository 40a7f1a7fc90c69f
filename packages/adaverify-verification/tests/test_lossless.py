"""Which pairs may trim sampled requests."""

import itertools

import pytest

from adaverify_contracts import BudgetReads, LosslessError, PolicyDescriptor, Seen, SignalDescriptor
from adaverify_verification import RatioPolicy, effective_seen, require_lossless, verdict

SAFE_SAMPLED = {
    (Seen.HISTORY, BudgetReads.HISTORY),
    (Seen.HISTORY, BudgetReads.FRONTIER),
    (Seen.HISTORY, BudgetReads.LIVE),
    (Seen.PREFIX, BudgetReads.HISTORY),
    (Seen.PREFIX, BudgetReads.FRONTIER),
}


@pytest.mark.parametrize(("seen", "reads"), list(itertools.product(Seen, BudgetReads)))
def test_the_table_of_pairs(seen, reads):
    """Maths 5.5; greedy targets and deterministic drafts lift every "no" (5.4)."""
    sampled = verdict(seen, reads, drafter_deterministic=False, sampled=True)
    assert sampled.allowed is ((seen, reads) in SAFE_SAMPLED)
    assert sampled.reason
    assert verdict(seen, reads, drafter_deterministic=False, sampled=False).allowed
    assert verdict(seen, reads, drafter_deterministic=True, sampled=True).allowed


def signal(seen, reads_scores):
    return SignalDescriptor("some-signal", seen, reads_scores, lambda limits, device: None)


def test_a_signal_that_reads_scores_has_seen_what_they_saw():
    """The larger of both; a signal that ignores scores counts alone."""
    assert effective_seen(signal(Seen.HISTORY, True), Seen.DRAWN_TOKEN) is Seen.DRAWN_TOKEN
    assert effective_seen(signal(Seen.PREFIX, True), Seen.HISTORY) is Seen.PREFIX
    assert effective_seen(signal(Seen.HISTORY, False), Seen.DRAWN_TOKEN) is Seen.HISTORY


def test_an_unsafe_pair_is_refused_by_name():
    """The error names signal, policy and reason."""
    policy = PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy)
    with pytest.raises(LosslessError, match=r"some-signal.*ratio.*token drawn"):
        require_lossless(
            signal(Seen.HISTORY, True), policy, drafter_seen=Seen.DRAWN_TOKEN, drafter_deterministic=False
        )
    require_lossless(
        signal(Seen.HISTORY, True), policy, drafter_seen=Seen.DRAWN_TOKEN, drafter_deterministic=True
    )
