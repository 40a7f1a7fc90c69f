"""Rows to calibrate on: which count, which do not, and a split that keeps prompts whole."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from adaverify_contracts import CalibrationError, RequestRows, StepOutcome, StepRecord
from adaverify_verification import request_rows
from adaverify_verification.evidence import Evidence, gather, split


def evidence(scores, accepted, judged=None, keys=None) -> Evidence:
    scores = np.array(scores, np.float64)
    count, width = scores.shape
    return Evidence(
        scores,
        np.array(accepted, np.int64),
        np.full(count, width, np.int64) if judged is None else np.array(judged, np.int64),
        np.arange(count) if keys is None else np.array(keys, np.int64),
    )


def rows(*lines, learn=True, sampled=False, scores=(0.5, 0.25, 0.125)) -> RequestRows:
    """Rows of (key, drafted, admitted, accepted, judged)."""
    columns = [tuple(column) for column in zip(*lines, strict=True)]
    count = len(lines)
    return RequestRows(*columns, (learn,) * count, (sampled,) * count, (scores,) * count)


def record(held: RequestRows | None) -> StepRecord:
    numbers = dict.fromkeys(
        (
            "step",
            "certain_tokens",
            "scheduled",
            "planned",
            "verified",
            "accepted",
            "emitted",
            "tokens",
            "tier",
        ),
        0,
    )
    return StepRecord(
        **numbers,
        state="full",
        reason="",
        requests=1,
        strategy="reference",
        predicted_seconds=None,
        realised_seconds=None,
        predicted_tokens=0.0,
        realised_tokens=0,
        lag=None,
        digest="",
        rows=held,
    )


def test_a_score_that_is_no_number_ends_its_row_and_infinities_are_held():
    """Positions before a NaN count, it and those behind do not; +-inf count as +-1000."""
    found = evidence([[1.0, np.nan, 2.0], [np.inf, -np.inf, 1e30]], [3, 2])
    assert found.judged.tolist() == [1, 3]
    assert found.accepted.tolist() == [1, 2]
    assert found.scores.tolist() == [[1.0, 0.0, 2.0], [1000.0, -1000.0, 1000.0]]


def test_labels_by_hand():
    """Accepted 2 of 3: two positives, one negative; all 3, or all that was judged: no negative."""
    positives, negatives = evidence(np.zeros((4, 3)), [2, 3, 1, 0], [3, 3, 1, 0]).labels()
    assert positives.tolist() == [3, 2, 1]
    assert negatives.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("accepted", "judged", "words"),
    [([4], [3], "accepted"), ([-1], [3], "accepted"), ([0], [4], "judged"), ([0], [-1], "judged")],
)
def test_counts_outside_the_block_are_refused(accepted, judged, words):
    """The number that arrived is in the message."""
    with pytest.raises(CalibrationError, match=f"{words} positions that do not exist.*arrived"):
        evidence(np.zeros((1, 3)), accepted, judged)


@pytest.mark.parametrize(
    "columns",
    [
        (np.zeros(3), np.zeros(3, np.int64)),
        (np.zeros((2, 3)), np.zeros(3, np.int64)),
        (np.zeros((2, 3)), np.zeros(2)),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns):
    """Another length, another dtype, scores without positions."""
    scores, accepted = columns
    with pytest.raises(CalibrationError, match="do not fit together"):
        Evidence(scores, accepted, np.zeros(2, np.int64), np.zeros(2, np.int64))


def test_only_steps_that_verified_everything_count():
    """A row that was admitted whole in a trimmed step was so because of its scores (maths section 6)."""
    trimmed = record(rows((1, 3, 3, 1, 3), (2, 3, 1, 1, 3)))
    whole = record(rows((1, 3, 3, 1, 3), (2, 2, 2, 2, 2), (3, 0, 0, 0, 0)))
    silent = record(rows((1, 3, 3, 1, 3), learn=False))
    found = gather([trimmed, whole, silent, record(None)])
    (only,) = found.regimes.values()
    assert only.keys.tolist() == [1, 2]
    assert only.accepted.tolist() == [1, 2]
    assert only.judged.tolist() == [3, 2]
    assert found.left_out == {
        "trimmed steps": 2,
        "nothing drafted": 1,
        "kept out of calibration": 1,
        "steps without rows": 1,
    }


def test_m11_steps_that_verified_everything_undo_censoring():
    """M11: half the requests accept 0.9, half 0.3, only the first are admitted: 0.6 and not 0.9."""
    keen, poor = [(1, 1, 1, int(k < 9), 1) for k in range(10)], [(2, 1, 1, int(k < 3), 1) for k in range(10)]
    trimmed = [record(rows(*keen, *[(2, 1, 0, 0, 1)] * 10, scores=(0.5,)))] * 9
    whole = record(rows(*keen, *poor, scores=(0.5,)))
    admitted = [
        row for item in (*trimmed, whole) for row in zip(item.rows.admitted, item.rows.accepted, strict=True)
    ]
    pooled = [accepted for admit, accepted in admitted if admit]
    assert sum(pooled) / len(pooled) == pytest.approx(93 / 110)
    (only,) = gather([*trimmed, whole]).regimes.values()
    assert only.accepted.mean() == pytest.approx(0.6)


def test_regimes_are_kept_apart_and_null_scores_are_no_numbers():
    """Greedy rows never stand in sampled evidence; null ends the row."""
    sampled = record(rows((1, 3, 3, 1, 3), sampled=True, scores=(0.5, None, 1.0)))
    found = gather([record(rows((7, 3, 3, 0, 3))), sampled]).regimes
    assert found["greedy"].keys.tolist() == [7]
    assert found["sampled"].judged.tolist() == [1]


def test_nothing_recorded_gathers_nothing():
    """An empty trace has no regimes and no reasons."""
    found = gather([])
    assert dict(found.regimes) == {} and dict(found.left_out) == {}


def test_records_of_two_k_are_refused():
    """Temperatures are one a position."""
    two = [record(rows((1, 3, 3, 1, 3))), record(rows((1, 2, 2, 1, 2), scores=(0.5, 0.5)))]
    with pytest.raises(CalibrationError, match=r"different K.*\[2, 3\]"):
        gather(two)


keys = st.lists(st.integers(0, 2**53 - 1), min_size=2, max_size=40).filter(
    lambda values: len(set(values)) > 1
)


@hypothesis.given(keys, st.floats(0.01, 0.99), st.integers(0, 2**40), st.randoms())
@hypothesis.settings(max_examples=100, deadline=None)
def test_a_split_keeps_prompts_whole_whatever_the_order(names, share, seed, shuffler):
    """No prompt on both sides, both sides have one, no row is lost, and the order of rows changes nothing."""
    held = evidence(np.zeros((len(names), 1)), [0] * len(names), keys=names)
    fit, out = split(held, share, seed)
    assert not set(fit.keys.tolist()) & set(out.keys.tolist())
    assert len(fit) and len(out) and sorted([*fit.keys, *out.keys]) == sorted(names)
    shuffler.shuffle(names)
    again = split(evidence(np.zeros((len(names), 1)), [0] * len(names), keys=names), share, seed)
    assert [set(side.keys.tolist()) for side in again] == [set(side.keys.tolist()) for side in (fit, out)]


def test_another_seed_is_another_split_of_the_same_size():
    """Thirty of a hundred prompts, whichever they are."""
    held = evidence(np.zeros((100, 1)), [0] * 100)
    sides = [set(split(held, 0.3, seed)[1].keys.tolist()) for seed in range(3)]
    assert [len(side) for side in sides] == [30] * 3
    assert sides[0] != sides[1] != sides[2]


@pytest.mark.parametrize(
    ("names", "share", "words"),
    [
        ([5, 5], 0.3, "one prompt"),
        ([], 0.3, "0 prompts"),
        ([1, 2], 0.0, "share"),
        ([1, 2], float("nan"), "share"),
    ],
)
def test_what_cannot_be_split_is_refused(names, share, words):
    """One prompt, none, and shares that leave a side empty."""
    with pytest.raises(CalibrationError, match=words):
        split(evidence(np.zeros((len(names), 1)), [0] * len(names), keys=names), share)


def test_rows_of_an_outcome_are_plain_and_keep_what_counts():
    """Scores to four decimals, null where they are no numbers; keys fall back to slot and generation."""
    counts = np.array([2, 1])
    outcome = StepOutcome(
        step=0,
        slots=np.array([3, 0]),
        generations=np.array([1, 4]),
        drafted=counts,
        admitted=counts,
        accepted=np.array([1, 1]),
        scores=np.array([[0.123456, -np.inf], [np.nan, 2.0]], np.float32),
        learn=np.array([True, False]),
        sampled=np.array([False, True]),
        emitted=4,
        seconds=None,
    )
    found = request_rows(outcome)
    assert found.scores == ((0.1235, None), (None, 2.0))
    assert found.keys == ((1 << 20) + 3, 4 << 20)
    assert found.judged == found.drafted == (2, 1)
    assert found.learn == (True, False) and found.sampled == (False, True)
