"""Arms against each other: what a median of rounds says, and what all text says."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify.bench.endtoend.baseline import PUBLISHED, PUBLISHED_AHEAD, PUBLISHED_FIXED
from adaverify.bench.endtoend.ratios import compare, ratios
from adaverify.bench.endtoend.rounds import Round

TOKENS = 100


def passed(*seconds: float) -> list[Round]:
    """Rounds of an arm that took so long over the same text."""
    return [Round(1, steps=1, tokens=TOKENS, seconds=each) for each in seconds]


def arms(**own: list[Round]) -> dict[str, list[Round]]:
    plain = passed(9.0, 9.0, 9.0)
    names = ("none", "fixed-1", "adaptive", "oracle-budget", "oracle")
    every = dict.fromkeys((*names, PUBLISHED, PUBLISHED_AHEAD, PUBLISHED_FIXED), plain)
    return every | {name.replace("_", "-"): found for name, found in own.items()}


def test_the_best_of_most_rounds_need_not_be_through_first():
    """K = 1 is ahead in two rounds of three; none, far ahead in the third, passes all text sooner."""
    found = ratios(
        arms(none=passed(4.0, 4.0, 4.0), fixed_1=passed(3.5, 3.5, 8.0), adaptive=passed(3.0, 4.0, 4.0)), 1
    )
    assert found["best"] == {"drafts": 1.0, "drafts of all text": 0.0}
    assert found["adaptive/best"]["median"] == pytest.approx(3.5 / 3.0)
    assert found["adaptive/best"]["total"] == pytest.approx(15.0 / 11.0)
    assert found["adaptive/best of all text"]["median"] == pytest.approx(1.0)
    assert found["adaptive/best of all text"]["total"] == pytest.approx(12.0 / 11.0)


def test_a_gain_over_the_published_arrangement_is_divided_by_its_own():
    own = {PUBLISHED: passed(4.0, 4.0, 4.0), PUBLISHED_FIXED: passed(5.0, 5.0, 5.0)}
    every = arms(fixed_1=passed(6.0, 6.0, 6.0), adaptive=passed(4.0, 4.0, 4.0)) | own
    found = ratios(every, 1)[f"gain over {PUBLISHED}"]
    assert found["median"] == pytest.approx((6.0 / 4.0) / (5.0 / 4.0)) == pytest.approx(found["total"])
    assert found["total_low"] == pytest.approx(found["total_high"])


def test_the_interval_of_all_text_is_narrower_with_more_rounds():
    """Drawn from rounds: about two standard errors either way, and half as wide with four times as many."""
    rng = np.random.default_rng(1)
    widths = []
    for count in (40, 160):
        tokens, seconds = np.full(count, 100.0), np.exp(0.1 * rng.standard_normal(count))
        totals = {"above": (tokens, seconds), "below": (tokens, np.ones(count))}
        found = compare(totals, (("above", "below"),))
        assert found["total_low"] < found["total"] < found["total_high"]
        assert compare(totals, (("above", "below"),)) == found
        widths.append(found["total_high"] - found["total_low"])
    assert widths[0] == pytest.approx(4 * 0.1 / np.sqrt(40), rel=0.4)
    assert 0.35 < widths[1] / widths[0] < 0.7
