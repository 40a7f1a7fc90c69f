"""Signals and policies under the real manager, enumerated: what is declared truly is safe, lies are found."""

import threading
from dataclasses import replace

import pytest
import torch

from adaverify_contracts import BudgetReads, PolicyDescriptor, Seen, SignalDescriptor
from adaverify_verification import DRAFTER, PricePolicy, RatioPolicy, builtin_signals
from adaverify_verification.audit import (
    EXACT,
    ManagedRule,
    audit_pair,
    distance,
    emitted_law,
    known_violations,
    setups,
    target_law,
)
from adaverify_verification.audit.known import constant, shared_noise_law
from adaverify_verification.signals import DrafterSignal

RATIO = PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy)
PRICE = PolicyDescriptor("price", BudgetReads.HISTORY, PricePolicy)
LIVE = PolicyDescriptor("live", BudgetReads.LIVE, RatioPolicy)


def test_known_violations_are_reproduced_to_the_last_digit():
    """M4 to M8 of the maths notes, each with a cure that moves nothing."""
    found = {one.case: one for one in known_violations()}
    assert all(one.reproduced for one in found.values())
    known = {
        "M4": ({"P(A)": 0.85, "P(B)": 0.15}, 0.15),
        "M5": ({"P(A)": 0.85, "P(B)": 0.15}, 0.15),
        "M6": ({"P(A)": 0.56}, 0.16),
        "M7": ({"P(A)": 0.75}, 0.25),
        "M8": ({"P(AA)": 0.3125, "P(BB)": 0.3125, "P(AB)": 0.1875, "P(BA)": 0.1875}, 0.125),
    }
    assert set(found) == set(known)
    for case, (law, moved) in known.items():
        assert found[case].found == pytest.approx(law, abs=EXACT)
        assert found[case].moved == pytest.approx(moved, abs=EXACT)
        assert found[case].cured < 1e-15


def test_a_case_that_came_out_otherwise_is_not_reproduced():
    """The verdict of the known violations can be no."""
    case = known_violations()[0]
    assert case.reproduced
    assert not replace(case, found={"P(A)": 0.7, "P(B)": 0.3}).reproduced
    assert not replace(case, cured=0.01).reproduced


@pytest.mark.parametrize("policy", [RATIO, PRICE], ids=lambda one: one.name)
@pytest.mark.parametrize("signal", builtin_signals(), ids=lambda one: one.name)
def test_what_is_shipped_keeps_the_joint_law_to_rounding(signal, policy):
    """About 1e-16, with the guard, the exploration and the assignment of the real manager."""
    report = audit_pair(signal, policy, pairs=4)
    assert report.allowed
    assert report.trusted is None
    assert report.served.largest < 1e-15
    assert report.trimmed > 0.2, "nothing was trimmed, so nothing was tested"


def test_a_live_policy_is_downgraded_and_would_be_wrong():
    """Declared truly it costs speed; believed to stop at the frontier it would change the output."""
    report = audit_pair(DRAFTER, LIVE, pairs=6)
    assert not report.allowed
    assert report.served.largest < 1e-15
    assert report.counters["lossless-downgrade"] > 0
    assert report.trusted.wrong > 0
    assert report.trusted.largest > 0.01


def test_a_policy_that_lies_about_the_frontier_is_found():
    """The same policy, claiming to stop at the frontier: served live, and refuted."""
    report = audit_pair(DRAFTER, PolicyDescriptor("liar", BudgetReads.FRONTIER, RatioPolicy), pairs=6)
    assert report.allowed
    assert not report.lossless
    assert report.served.largest > 0.01
    assert 0 < report.served.wrong < 6, "an unsafe rule does not show on every toy"


class FirstDescent:
    """A true frontier policy: it stops at the first budget that is worse than the one before."""

    def choose(self, candidates):
        ratios = candidates.tokens / candidates.seconds
        for index in range(1, len(ratios)):
            if ratios[index] <= ratios[index - 1]:
                return index - 1
        return len(ratios) - 1


def test_a_true_frontier_policy_passes():
    """Live values and irrevocable moves, on every shape of prices."""
    report = audit_pair(DRAFTER, PolicyDescriptor("descent", BudgetReads.FRONTIER, FirstDescent), pairs=8)
    assert report.allowed
    assert report.served.largest < 1e-15
    assert report.trimmed > 0.2


def test_scores_of_the_drawn_token_are_downgraded_and_would_be_wrong():
    """M6 through the manager: a sampled request that such a score may rank is emitted wrongly."""
    report = audit_pair(DRAFTER, RATIO, scores=Seen.DRAWN_TOKEN, pairs=4)
    assert not report.allowed
    assert report.served.largest < 1e-15
    assert report.trusted.largest > 0.01


class Peeking(DrafterSignal):
    """Takes for position k the score of position k + 1, which has seen the token at k."""

    def confidences(self, scores, slots):
        return super().confidences(scores.roll(-1, dims=1), slots)


def test_a_signal_that_looks_one_position_ahead_is_found():
    """It declares that it adds nothing to the drafter's prefix scores."""
    report = audit_pair(SignalDescriptor("peeking", Seen.HISTORY, True, Peeking), RATIO, pairs=7)
    assert report.allowed
    assert report.served.largest > 0.01


def test_a_deterministic_drafter_lifts_every_rule():
    """Drafts that are a function of the prefix: live budget, scores of the drawn token, and exact."""
    report = audit_pair(DRAFTER, LIVE, scores=Seen.DRAWN_TOKEN, deterministic=True, pairs=6)
    assert report.allowed
    assert report.served.largest < 1e-15
    assert report.trimmed > 0.2


def test_a_greedy_mate_is_trimmed_beside_a_sampled_request_that_is_not():
    """The downgrade is request by request, and the joint law of both is right."""
    mixed = [one for one in setups(24, 0, Seen.DRAWN_TOKEN) if one.greedy == (True, False)]
    admitted = set()
    for number, setup in enumerate(mixed):
        rule = ManagedRule(DRAFTER, LIVE, setup, seed=number)

        def watched(shown, rule=rule):
            counts = rule(shown)
            admitted.add(tuple(counts))
            return counts

        law = emitted_law(setup.requests, setup.positions, watched)
        assert distance(law, target_law(setup.requests, setup.positions + 1)) < 1e-15
    assert {second for _, second in admitted} == {2}
    assert {first for first, _ in admitted} > {2}


class Locked(DrafterSignal):
    """Holds what cannot be copied."""

    def __init__(self, limits, device):
        super().__init__(limits, device)
        self.lock = threading.Lock()


def test_a_plugin_that_cannot_be_copied_lives_its_history_again():
    """Slower, and with the same result."""
    locked = audit_pair(SignalDescriptor("locked", Seen.HISTORY, True, Locked), RATIO, pairs=1)
    assert locked.served == audit_pair(DRAFTER, RATIO, pairs=1).served
    assert locked.trimmed > 0


class Failing(DrafterSignal):
    """Raises in every step."""

    def confidences(self, scores, slots):
        raise RuntimeError("no confidences today")


def test_a_signal_that_fails_is_named_beside_its_result():
    """Its steps verify everything, which proves nothing about it; the counter says so."""
    report = audit_pair(SignalDescriptor("failing", Seen.HISTORY, True, Failing), RATIO, pairs=1)
    assert report.counters["signal-raised"] > 16
    assert report.trimmed == 0
    assert report.as_dict()["counters"]["signal-raised"] == report.counters["signal-raised"]


class Moody(DrafterSignal):
    """Raises where the second position of the first request looks good, which its first token decides."""

    def confidences(self, scores, slots):
        if float(scores[0, 1]) > 0.5:
            raise RuntimeError("not today")
        return super().confidences(scores, slots)


def test_a_signal_that_fails_for_some_drafts_alone_is_found():
    """Verifying everything is a choice as well: made by the token, it moves the law."""
    report = audit_pair(SignalDescriptor("moody", Seen.HISTORY, True, Moody), RATIO, pairs=9)
    assert report.served.largest > 0.01
    assert report.counters["signal-raised"] > 0


def test_keyed_noise_makes_any_rule_exact_on_unequal_laws():
    """Maths section 5.4, case 4, enumerated: shared noise kept or drawn anew, any rule on the token."""
    draft, target = constant((0.6, 0.3, 0.1), 0), constant((0.2, 0.5, 0.3), 0)
    want = {((token,),): float(share) for token, share in enumerate(target[()])}
    for kept in ({0}, {1}, {0, 2}, set(), {0, 1, 2}):
        law = shared_noise_law(draft, target, kept.__contains__, keyed=True)
        assert distance(law, want) < 1e-15
    assert distance(shared_noise_law(draft, target, {0}.__contains__, keyed=False), want) > 0.1


def test_every_toy_is_another_and_a_seed_repeats_them():
    """Laws, prices and tiers differ between toys; the audit is reproducible."""
    first, again, other = (list(setups(4, seed, Seen.PREFIX)) for seed in (0, 0, 1))
    assert [one.prices for one in first] == [one.prices for one in again]
    assert len({one.prices for one in [*first, *other]}) == 8
    assert [one.tiers == () for one in first] == [True, False, True, False]
    assert torch.tensor([list(one.prices) for one in first]).diff(dim=1).min() >= 0
