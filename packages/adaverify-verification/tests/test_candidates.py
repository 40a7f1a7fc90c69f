"""Which budgets are worth considering: maths sections 2 and 3."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaverify_contracts import BudgetCandidates
from adaverify_verification import PricePolicy, RatioPolicy, admit
from adaverify_verification.candidates import (
    SCORE_ONE,
    candidate_budgets,
    executed_tokens,
    raise_to_tier_end,
    ranked_scores,
    sums,
    worths,
)
from adaverify_verification.policies import best, ratio_gains
from adaverify_verification.quantise import MANY, SCORE_MAX, clean_scores, scores
from adaverify_verification.ranking import Ranking

M3 = (0.85, 0.6, 0.45, 0.35, 0.25)


def batches():
    """Random confidences with random scheduled lengths, and a budget."""
    return st.tuples(st.integers(1, 5), st.integers(1, 4)).flatmap(
        lambda shape: st.tuples(
            st.lists(
                st.lists(
                    st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]), min_size=shape[1], max_size=shape[1]
                ),
                min_size=shape[0],
                max_size=shape[0],
            ),
            st.lists(st.integers(0, shape[1]), min_size=shape[0], max_size=shape[0]),
        )
    )


def test_scores_share_one_scale_with_the_device_side():
    """The planner divides by what quantise multiplies with."""
    assert SCORE_ONE == SCORE_MAX


def test_m1_ties_admit_the_smaller_position():
    """c = (1, 1), n = 1: position 1, or the admitted set is no prefix."""
    assert admit(scores(np.ones((1, 2), np.float32)), np.array([2]), 1).tolist() == [1]
    assert admit(scores(np.ones((3, 2), np.float32)), np.full(3, 2), 4).tolist() == [2, 1, 1]


def test_m3_the_optimum_of_a_staircase_is_a_tier_end():
    """Theta over n as in the table; first descent would stop at 0, the optimum is 24."""
    tiers = np.arange(8, 49, 8)
    budgets = candidate_budgets(8, 40, tiers)
    assert budgets.tolist() == [0, 8, 16, 24, 32, 40]
    ranked = np.sort(np.tile(np.round(np.array(M3) * SCORE_ONE), 8)).astype(np.int64)[::-1]
    every = np.arange(41)
    tokens = 8 + worths(sums(ranked), every)
    seconds = 5.0 + 2.0 * np.ceil((8 + every) / 8)
    theta = tokens / seconds
    table = {0: 1.1429, 1: 0.9833, 8: 1.6444, 16: 1.7818, 24: 1.7846, 32: 1.7333, 40: 1.6471}
    assert {n: round(float(theta[n]), 4) for n in table} == table
    chosen = RatioPolicy().choose(BudgetCandidates(budgets, tokens[budgets], seconds[budgets], None))
    assert budgets[chosen] == 24
    assert theta[24] / theta[0] == pytest.approx(1.56, abs=0.005)


@given(st.integers(0, 60), st.integers(0, 9), st.data())
@settings(max_examples=100, deadline=None)
def test_tokens_are_sums_of_the_largest_survivals(drafts, emitting, data):
    """Many budgets, few, one alone, with and without nothing among them: the sums written out."""
    survivals = data.draw(st.lists(st.integers(0, SCORE_ONE), min_size=drafts, max_size=drafts))
    ranked = sorted(survivals, reverse=True)
    budgets = sorted(data.draw(st.sets(st.integers(0, drafts), min_size=1)))
    tokens = worths(sums(np.array(ranked, np.uint16)), np.array(budgets, np.int64)) + emitting
    assert tokens.tolist() == [sum(ranked[:budget]) / SCORE_ONE + emitting for budget in budgets]


def plain_worths(scores_, scheduled):
    """One survival after the other, each sum divided: what budgets 0, 1, .. N are worth."""
    rows = zip(scores_.tolist(), scheduled.tolist(), strict=True)
    ranked = sorted((score for row, count in rows for score in row[:count]), reverse=True)
    return [float(total) / float(SCORE_ONE) for total in itertools.accumulate(ranked, initial=0)]


@given(st.integers(0, 300), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
@example(0, 1, 0, True)
@example(1, 1, 0, True)
@example(1, 1, 1, False)
@example(MANY - 1, 7, 1, True)
@example(MANY, 7, 1, True)
@settings(max_examples=80, deadline=None)
def test_worths_are_those_of_survivals_taken_one_by_one(requests, width, seed, whole):
    """Bit for bit: no requests, one draft, batches on both sides of every change of method, in any order."""
    generator = np.random.default_rng(seed)
    confidences = generator.random((requests, width), np.float32) ** np.float32(0.3)
    confidences[generator.random(confidences.shape) < 0.05] = 0.0
    ranking = Ranking(clean_scores(confidences))
    assert (ranking.scores == scores(confidences)).all()
    scheduled = np.full(requests, width) if whole else generator.integers(0, width + 1, requests)
    expected, total = plain_worths(ranking.scores, scheduled), int(scheduled.sum())
    every = np.arange(total + 1)
    every.setflags(write=False)
    some = np.unique(generator.integers(0, total + 1, 5))
    for budgets in (every, some, every[-1:], every):
        found = ranking.tokens(scheduled, total, budgets, 0)
        assert found.tolist() == [expected[budget] for budget in budgets]
    assert ranking.worth_of(scheduled) == expected[-1]
    order = ranking.order
    assert ranking.scores.ravel()[order].tolist() == sorted(ranking.scores.ravel().tolist(), reverse=True)


@given(
    st.lists(st.integers(0, SCORE_ONE), max_size=24),
    st.integers(0, 6),
    st.integers(0, 40),
    st.lists(st.integers(1, 60), max_size=6),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_m17_tier_ends_find_the_exhaustive_optimum(survivals, emitting, extra, tiers, data):
    """Random staircases, prefill tokens too (T > R): the searched set holds an optimum over all n."""
    stairs = np.array(sorted(set(tiers)), dtype=np.int64)
    certain, maximum = emitting + extra, len(survivals)
    every = np.arange(maximum + 1)
    executed = executed_tokens(certain + every, stairs)
    increments = data.draw(
        st.lists(st.integers(0, 9), min_size=int(executed.max()) + 1, max_size=int(executed.max()) + 1)
    )
    cost = 1.0 + np.cumsum(increments)
    tokens = worths(sums(np.sort(np.array(survivals, dtype=np.int64))[::-1]), every) + emitting
    budgets = candidate_budgets(certain, maximum, stairs)
    assert budgets[0] == 0
    assert budgets[-1] == maximum
    assert (np.diff(budgets) > 0).all()
    seconds = cost[executed]
    found = (tokens[budgets] / seconds[budgets]).max()
    assert found == pytest.approx((tokens / seconds).max(), rel=1e-12)
    priced = tokens - 0.37 * seconds
    assert priced[budgets].max() == pytest.approx(priced.max(), abs=1e-9)


@given(batches())
@settings(max_examples=80, deadline=None)
def test_top_b_equals_brute_force_over_all_prefix_closed_sets(batch):
    """No set of n positions closed under "the earlier position" has a larger sum."""
    confidences, scheduled = np.array(batch[0], np.float32), np.array(batch[1])
    quantised = scores(confidences)
    most_of = {}
    for lengths in itertools.product(*(range(count + 1) for count in scheduled)):
        total = sum(int(quantised[r, :length].sum()) for r, length in enumerate(lengths))
        most_of[sum(lengths)] = max(most_of.get(sum(lengths), 0), total)
    for budget, most in most_of.items():
        admitted = admit(quantised, scheduled, budget)
        assert admitted.sum() == budget
        assert sum(int(quantised[r, :length].sum()) for r, length in enumerate(admitted)) == most
    ranked = ranked_scores(quantised, scheduled)
    tau = worths(sums(ranked), np.array(sorted(most_of))) + len(scheduled)
    expected = [len(scheduled) + most_of[budget] / SCORE_ONE for budget in sorted(most_of)]
    assert tau == pytest.approx(expected)


@given(batches(), st.randoms())
@settings(max_examples=80, deadline=None)
def test_m18_plans_are_nested_and_permuting_requests_changes_only_ties(batch, random):
    """n and n + 1 differ by one position, the next in the total order."""
    quantised, scheduled = scores(np.array(batch[0], np.float32)), np.array(batch[1])
    before = admit(quantised, scheduled, 0)
    for budget in range(1, int(scheduled.sum()) + 1):
        after = admit(quantised, scheduled, budget)
        assert (after - before >= 0).all()
        assert (after - before).sum() == 1
        before = after
    order = list(range(len(scheduled)))
    random.shuffle(order)
    for budget in range(int(scheduled.sum()) + 1):
        plain, mixed = admit(quantised, scheduled, budget), admit(quantised[order], scheduled[order], budget)
        values = [sorted(q[r, :n].tolist()) for q, ls in ((quantised, plain),) for r, n in enumerate(ls)]
        shuffled = [sorted(quantised[order][r, :n].tolist()) for r, n in enumerate(mixed)]
        assert sorted(itertools.chain(*values)) == sorted(itertools.chain(*shuffled))


@pytest.mark.parametrize(
    ("budget", "raised"), [(0, 1), (1, 1), (2, 5), (5, 5), (6, 7), (7, 7), (99, 7), (-4, 1)]
)
def test_a_budget_inside_a_tier_is_raised_to_its_end(budget, raised):
    """Padding slots are free: T = 3, tiers 4, 8, 16, N = 7."""
    assert raise_to_tier_end(budget, 3, 7, np.array([4, 8, 16])) == raised


def test_past_the_last_tier_every_budget_is_a_candidate():
    """T = 3, tiers 4 and 8, N = 9: ends 1 and 5, then 6, 7, 8, then everything."""
    assert candidate_budgets(3, 9, np.array([4, 8])).tolist() == [0, 1, 5, 6, 7, 8, 9]
    assert candidate_budgets(30, 3, np.array([4, 8])).tolist() == [0, 1, 2, 3]
    assert candidate_budgets(0, 0, np.array([4, 8])).tolist() == [0]
    assert candidate_budgets(5, 0, np.zeros(0, np.int64)).tolist() == [0]


def test_m19_no_survival_verifies_nothing_unless_every_cost_is_equal():
    """All a = 0: the bare argmax is 0; with equal costs it is everything."""
    budgets, tokens = np.array([0, 4, 8]), np.array([2.0, 2.0, 2.0])
    rising = BudgetCandidates(budgets, tokens, np.array([1.0, 1.5, 2.0]), None)
    assert RatioPolicy().choose(rising) == 0
    assert PricePolicy().choose(rising) == 0
    equal = BudgetCandidates(budgets, tokens, np.full(3, 1.7), None)
    assert RatioPolicy().choose(equal) == 2
    assert PricePolicy().choose(equal) == 2


def test_ties_go_to_everything_first_and_then_to_the_smaller_budget():
    """The incumbent wins every tie."""
    assert best(np.array([0.1, 0.3, 0.3, 0.2])) == 1
    assert best(np.array([0.0, 0.3, 0.3])) == 2


def test_a_step_that_emits_nothing_does_not_divide_by_zero():
    """R = 0 or E = 0 with no survival: saved time decides."""
    gains = ratio_gains(BudgetCandidates(np.array([0, 1]), np.zeros(2), np.array([1.0, 2.0]), None))
    assert gains.tolist() == [1.0, 0.0]


def test_m15_price_spends_in_the_rich_step_and_ratio_in_the_poor_one():
    """Poor 1/10 or 1.5/14, rich 4/10 or 4.8/12.2: 0.2292 against 0.2613, which confirms itself."""
    steps = [((1.0, 1.5), (10.0, 14.0)), ((4.0, 4.8), (10.0, 12.2))]

    def run(policy, rate):
        total_tokens = total_seconds = 0.0
        for tokens, seconds in steps:
            candidates = BudgetCandidates(np.array([0, 1]), np.array(tokens), np.array(seconds), rate)
            index = policy.choose(candidates)
            total_tokens += tokens[index]
            total_seconds += seconds[index]
        return total_tokens / total_seconds

    assert run(RatioPolicy(), None) == pytest.approx(0.2292, abs=5e-5)
    rate = run(RatioPolicy(), None)
    for _ in range(4):
        rate = run(PricePolicy(), rate)
    assert rate == pytest.approx(0.2613, abs=5e-5)


def test_price_gains_equal_ratio_gains_at_full_verifications_own_rate():
    """The guard judges both policies in one currency."""
    tokens, seconds = np.array([2.0, 4.0, 5.0]), np.array([1.0, 1.5, 3.0])
    at_full = BudgetCandidates(np.arange(3), tokens, seconds, 5.0 / 3.0)
    assert PricePolicy().gains(at_full) == pytest.approx(ratio_gains(at_full))
    assert PricePolicy().gains(at_full)[-1] == 0.0


def test_m13_a_relative_error_in_tau_costs_at_most_two_deltas():
    """Chosen / optimal >= (1 - 0.1) / (1 + 0.1) = 0.818 whatever the signs of the errors."""
    generator = np.random.default_rng(13)
    for _ in range(200):
        tokens = 1.0 + np.cumsum(np.sort(generator.random(12))[::-1])
        seconds = 1.0 + np.cumsum(generator.random(12))
        wrong = tokens * (1.0 + generator.choice([-0.1, 0.1], size=12))
        chosen = RatioPolicy().choose(BudgetCandidates(np.arange(12), wrong, seconds, None))
        assert (tokens / seconds)[chosen] >= 0.9 / 1.1 * (tokens / seconds).max() - 1e-12


def test_a_constant_cost_does_not_cancel_and_forgetting_it_trims_too_much():
    """vllm fork: 30 + 0.1 x rows modelled as 0.1 x rows gives too small a budget (maths section 1)."""
    ranked = np.sort((np.linspace(0.05, 0.95, 28) * SCORE_ONE).astype(np.int64))[::-1]
    every = np.arange(29)
    tokens = 4 + worths(sums(ranked), every)
    whole = RatioPolicy().choose(BudgetCandidates(every, tokens, 30 + 0.1 * (4 + every), None))
    forgot = RatioPolicy().choose(BudgetCandidates(every, tokens, 0.1 * (4 + every), None))
    assert forgot < whole
