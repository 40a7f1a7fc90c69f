"""Old confidences are drawn towards their mean as far as later ones say."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify_contracts import StepState
from adaverify_verification.forecast import LEAST_PAIRS, MOST_DRAFTS, MOST_LAG, Forecast
from adaverify_verification.lagged import Survivals
from adaverify_verification.quantise import SCORE_MAX, scores
from adaverify_verification.ranking import Ranking

WIDTH = 7
STEPS = 600


def expect(forecast, quantised, step, lag, ranking=None):
    """Return what is expected of survivals [R, K], ranked already or not."""
    return forecast.expect(Ranking(quantised) if ranking is None else ranking, step, lag).scores


def publications(kept: float, requests: int = 1, seed: int = 0, steps: int = STEPS) -> list[np.ndarray]:
    """Quantised survivals of steps whose logits keep ``kept`` of their deviation from one to the next."""
    rng = np.random.default_rng(seed)
    level, found = np.zeros(requests), []
    for _ in range(steps):
        level = kept * level + np.sqrt(1.0 - kept * kept) * rng.standard_normal(requests)
        logits = np.repeat(1.0 + 1.5 * level[:, None], WIDTH, axis=1)
        found.append(scores((1.0 / (1.0 + np.exp(-logits))).astype(np.float32)))
    return found


def forecasts(published: list[np.ndarray], lag: int) -> list[np.ndarray]:
    """What is expected of each step from ``lag`` on, by a forecast that has seen all before."""
    forecast = Forecast()
    return [expect(forecast, published[step - lag], step - lag, lag) for step in range(lag, len(published))]


def error(expected: list[np.ndarray], came: list[np.ndarray]) -> float:
    """Mean squared error of the tokens that every budget is expected to bring."""
    pairs = zip(expected[-400:], came[-400:], strict=True)
    ranked = [[-np.sort(-values, axis=None).astype(float) / SCORE_MAX for values in pair] for pair in pairs]
    return float(np.mean([(np.cumsum(one - other) ** 2).mean() for one, other in ranked]))


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("kept", [0.0, 0.6])
def test_a_forecast_is_nearer_to_what_comes_than_the_old_confidences(kept: float, lag: int) -> None:
    published = publications(kept)
    as_they_are = error(published[:-lag], published[lag:])
    assert error(forecasts(published, lag), published[lag:]) < 0.85 * as_they_are


def test_what_lasts_is_left_as_it_is() -> None:
    published = publications(0.995)
    as_they_are = error(published[:-1], published[1:])
    assert error(forecasts(published, 1), published[1:]) < 1.05 * as_they_are


def test_what_does_not_last_is_drawn_to_the_mean_and_more_so_the_older_it_is() -> None:
    published = publications(0.7)
    spreads = [float(np.std([values[0, 0] for values in published[-200:]]))]
    spreads += [
        float(np.std([values[0, 0] for values in forecasts(published, lag)[-200:]])) for lag in (1, 3)
    ]
    assert spreads[0] > 1.15 * spreads[1] > 1.15 * 1.15 * spreads[2]
    means = [np.mean(published[-400:]), np.mean(forecasts(published, 1)[-400:])]
    assert means[1] == pytest.approx(means[0], rel=0.05)


def test_a_batch_keeps_its_ranking_and_its_spread() -> None:
    """Independent requests differ at every step: the spread among them must not be taken for news."""
    published = publications(0.0, requests=16)
    for expected, before in zip(forecasts(published, 1)[-50:], published[-51:-1], strict=True):
        order = np.argsort(-before, axis=None, kind="stable")
        assert (np.diff(expected.ravel()[order]) <= 0).all()
        assert (np.diff(expected, axis=1) <= 0).all()
        assert expected.min() >= 0 and expected.max() <= SCORE_MAX
    late = forecasts(published, 1)[-200:]
    spread, own = (np.mean([values[:, 0].std() for values in many]) for many in (late, published[-200:]))
    assert spread > 0.95 * own


@pytest.mark.parametrize("ranked", [False, True])
def test_survivals_of_nothing_rank_last_in_any_type(ranked: bool) -> None:
    """What the planner keeps is unsigned: a request whose drafts all fail is not taken for the best one."""
    published = publications(0.5, requests=4)
    for values in published:
        values[2, 1:] = 0
    signed, unsigned = Forecast(), Forecast()
    for step in range(1, 3 * LEAST_PAIRS):
        before = published[step - 1]
        same = before.astype(np.uint16)
        expected = expect(signed, before, step - 1, 1)
        found = expect(unsigned, same, step - 1, 1, Ranking(same) if ranked else None)
        assert found.tolist() == expected.tolist()
        assert (np.diff(found.astype(int), axis=1) <= 0).all()
    assert expected is not before, "nothing was drawn anywhere"


def test_own_confidences_and_large_batches_are_taken_as_they_are() -> None:
    forecast, published = Forecast(), publications(0.0)
    for step in range(1, STEPS):
        expect(forecast, published[step - 1], step - 1, 1)
    assert expect(forecast, published[-1], STEPS, 0) is published[-1]
    large = publications(0.0, requests=MOST_DRAFTS // WIDTH + 1, steps=2 * LEAST_PAIRS)
    assert all(one is other for one, other in zip(forecasts(large, 1), large, strict=False))


def test_nothing_is_drawn_before_enough_was_seen_and_a_step_counts_once() -> None:
    published = publications(0.0)
    forecast = Forecast()
    for step in range(1, LEAST_PAIRS + 1):
        for _ in range(3):
            expected = expect(forecast, published[step - 1], step - 1, 1)
            assert (expected == published[step - 1]).all()
    assert (expect(forecast, published[LEAST_PAIRS], LEAST_PAIRS, 1) != published[LEAST_PAIRS]).any()


def test_sizes_are_learnt_apart() -> None:
    forecast = Forecast()
    one, four = publications(0.0), publications(0.0, requests=4)
    for step in range(STEPS):
        expect(forecast, one[step], step, 1)
    assert expect(forecast, four[0], STEPS, 1) is four[0]


def test_a_lag_beyond_those_told_apart_counts_as_the_last() -> None:
    published = publications(0.5)
    forecast = Forecast()
    for step in range(STEPS - 1):
        expect(forecast, published[step], step, 1)
    last = [expect(forecast, published[-1], STEPS - 1, lag) for lag in (MOST_LAG, MOST_LAG + 60)]
    assert (last[0] == last[1]).all()


@pytest.mark.parametrize(
    ("change", "scheduled"),
    [({"foreseen": False}, WIDTH), ({"odd": "invalid-confidences"}, WIDTH), ({"lag": None}, WIDTH), ({}, 3)],
)
def test_what_is_of_another_kind_teaches_nothing(change: dict[str, object], scheduled: int) -> None:
    forecast, published = Forecast(), publications(0.0)

    def ask(step: int, found: Survivals, drafts: int) -> np.ndarray:
        state = StepState(
            step=step,
            slots=np.arange(1),
            generations=np.zeros(1, dtype=np.int64),
            scheduled=np.full(1, drafts),
            emitting=1,
            kv_tokens=8,
        )
        return forecast.of(found, state).scores

    odd = np.full((1, WIDTH), SCORE_MAX, dtype=np.int32)
    for step in range(1, STEPS):
        plain = Survivals(Ranking(published[step - 1]), 1, True, None)
        before = ask(2 * step, plain, WIDTH)
        strange = Survivals(Ranking(odd), 1, True, None)._replace(**change)
        assert ask(2 * step + 1, strange, scheduled) is odd
    assert before.max() < SCORE_MAX
    undisturbed = Forecast()
    for step in range(1, STEPS):
        expected = expect(undisturbed, published[step - 1], 2 * step - 1, 1)
    assert (before == expected).all()
