"""Losslessness by exact enumeration: maths section 5, cases M4 to M8."""

import numpy as np
import pytest

from adaverify_contracts import BudgetCandidates
from adaverify_verification import RatioPolicy, admit
from adaverify_verification.audit import EXACT, ToyRequest, audit, distance, emitted_law, target_law
from adaverify_verification.quantise import scores


def both(law, positions):
    """The same law after every prefix."""
    prefixes = [()]
    for _ in range(positions):
        prefixes += [(*p, t) for p in prefixes for t in (0, 1) if len(p) < positions]
    return {prefix: np.array(law) for prefix in prefixes}


def first_token(law):
    totals = {}
    for (sequence, *_), share in law.items():
        totals[sequence[0]] = totals.get(sequence[0], 0.0) + share
    return totals.get(0, 0.0), totals.get(1, 0.0)


def live_argmax(seconds):
    """Global argmax of the ratio on live values: unsafe on a staircase (maths 5.2)."""

    def rule(shown):
        ranked = np.sort(np.cumprod(shown.confidences, axis=1).ravel())[::-1]
        tokens = len(shown.confidences) + np.concatenate([[0.0], np.cumsum(ranked)])
        budgets = np.arange(len(tokens))
        count = RatioPolicy().choose(BudgetCandidates(budgets, tokens, np.array(seconds), None))
        return _top(shown, count)

    return rule


def _top(shown, budget):
    confidences = shown.confidences.astype(np.float32)
    width = confidences.shape[1]
    return admit(scores(confidences), np.full(len(confidences), width), budget)


def case_m4(second_after_b):
    """Laws of M4 and M5: p_t = (0.7, 0.3), p_d = (0.5, 0.5), c_2(A) = 1, c_2(B) as given."""
    draft = {**both((0.5, 0.5), 2), (0,): np.array([0.5, 0.5]), (1,): np.array([0.0, 1.0])}
    target = {**both((0.5, 0.5), 2), (): np.array([0.7, 0.3]), (0,): np.array([0.5, 0.5])}
    target[(1,)] = np.array([1.0 - second_after_b, second_after_b])
    return [ToyRequest(draft, target)]


def test_m4_live_argmax_on_a_staircase_changes_the_law():
    """Theta = 1.0, 0.9, 0.81 + 0.36 c_2: verifies two after A, none after B; P(A) becomes 0.85."""
    rule = live_argmax([1.0, 2.0, 1.0 / 0.45])
    law = emitted_law(case_m4(0.0), 2, rule)
    assert first_token(law) == pytest.approx((0.85, 0.15), abs=1e-12)
    history = emitted_law(case_m4(0.0), 2, lambda shown: _top(shown, 2))
    assert first_token(history) == pytest.approx((0.7, 0.3), abs=1e-12)


def test_m5_minimum_gain_on_live_values_changes_the_law():
    """A guard on live values is unsafe even with affine cost: full after A, nothing after B."""

    def rule(shown):
        survivals = np.cumprod(shown.confidences[0])
        theta = (1.0 + np.concatenate([[0.0], np.cumsum(survivals)])) / (1.0 + 0.805 * np.arange(3))
        best = int(np.argmax(theta))
        return [best if theta[best] > 1.04 * theta[2] else 2]

    toys = case_m4(0.2)
    assert first_token(emitted_law(toys, 2, rule)) == pytest.approx((0.85, 0.15), abs=1e-12)
    # Whatever the live values, the ratio of the plain argmax is largest at 0 here.
    assert distance(emitted_law(toys, 2, live_argmax([1.0, 1.805, 2.61])), target_law(toys, 3)) < EXACT


def test_m6_score_of_the_drawn_token_changes_the_law():
    """Verify x_1 only if p_d(x_1) >= 0.6: P(A) = 0.56, not 0.40."""
    toy = [ToyRequest(both((0.6, 0.4), 1), both((0.4, 0.6), 1))]
    law = emitted_law(toy, 1, lambda shown: [int(shown.drawn[0, 0] >= 0.6)])
    assert first_token(law)[0] == pytest.approx(0.56, abs=1e-12)


def test_m7_shared_noise_redrawn_changes_the_law():
    """Draft and target share the noise, so x_1 = y_1; redrawing B with new noise gives P(A) = 0.75."""
    drawn = {0: 0.5, 1: 0.5}
    emitted_a = sum(share if token == 0 else share * 0.5 for token, share in drawn.items())
    assert emitted_a == 0.75
    # With an independent draft the same rule (look at x_1, verify only A) is wrong as well.
    toy = [ToyRequest(both((0.5, 0.5), 1), both((0.3, 0.7), 1))]
    law = emitted_law(toy, 1, lambda shown: [int(shown.tokens[0, 0] == 0)])
    assert distance(law, target_law(toy, 2)) > 0.05


def test_m8_right_one_by_one_and_wrong_together():
    """Admit each request by the other's token: marginals exact, joint TV 0.125."""
    toys = [ToyRequest(both((0.5, 0.5), 1), both((0.5, 0.5), 1)) for _ in range(2)]
    law = emitted_law(toys, 1, lambda shown: [int(shown.tokens[1, 0] == 0), int(shown.tokens[0, 0] == 0)])
    pairs = {}
    for (first, second), share in law.items():
        pairs[first[0], second[0]] = pairs.get((first[0], second[0]), 0.0) + share
    assert pairs[0, 0] == pytest.approx(0.3125)
    assert pairs[1, 1] == pytest.approx(0.3125)
    assert pairs[0, 1] == pytest.approx(0.1875)
    assert pairs[1, 0] == pytest.approx(0.1875)
    assert first_token(law) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("budget", range(5))
def test_a_budget_from_history_with_live_prefix_ranking_is_lossless(budget):
    """What this package does: the joint law is the target's to rounding, for every budget."""
    report = audit(lambda shown: _top(shown, budget), pairs=12)
    assert report.lossless
    assert report.largest <= 3e-15


def test_a_live_argmax_is_refuted_and_not_on_every_pair():
    """Staircase C: some pairs of laws show it, some do not; an audit needs many."""
    report = audit(live_argmax([1.0, 1.5, 1.5, 1.6, 1.6]), pairs=30)
    assert 0 < report.wrong < 30
    assert report.largest > 0.01


def test_a_drawn_token_ranking_is_refuted():
    """The score of the drawn token moves the law on every pair."""

    def rule(shown):
        return admit(scores(shown.drawn.astype(np.float32)), np.full(2, 2), 2)

    report = audit(rule, pairs=10)
    assert report.wrong == 10
