"""What was drafted, scored and accepted where everything was verified: what calibration is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from adaverify_contracts import CalibrationError, RequestRows, StepRecord
from adaverify_verification.calibration import SCORE_LIMIT

GREEDY_NAME, SAMPLED_NAME = "greedy", "sampled"
REGIME_NAMES = (GREEDY_NAME, SAMPLED_NAME)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows of one regime, each the draft of one request in one step, verified to its end.

    Scores are held to +-1000; from the first score on that is not a number a row is not judged.

    Attributes:
        scores: float64 [N, K], raw.
        accepted: int64 [N], accepted drafts, at most ``judged``.
        judged: int64 [N], 0 .. K: leading positions that count.
        keys: int64 [N], equal for rows of one prompt.

    Raises:
        CalibrationError: shapes disagree, or a count is outside its range; says what arrived.
    """

    scores: np.ndarray
    accepted: np.ndarray
    judged: np.ndarray
    keys: np.ndarray

    def __post_init__(self) -> None:
        rows = np.shape(self.scores)[0] if np.ndim(self.scores) == 2 else -1
        counts = {"accepted": self.accepted, "judged": self.judged, "keys": self.keys}
        if any(np.shape(values) != (rows,) or values.dtype.kind != "i" for values in counts.values()):
            raise CalibrationError(
                "rows to calibrate on do not fit together",
                arrived={
                    name: np.shape(values) for name, values in {"scores": self.scores, **counts}.items()
                },
                allowed="scores [N, K], and accepted, judged and keys integers [N]",
                remedy="build them from one list of requests",
            )
        width = self.scores.shape[1]
        for name, most in (("judged", width), ("accepted", width)):
            values = counts[name]
            if rows and not 0 <= int(values.min()) <= int(values.max()) <= most:
                raise CalibrationError(
                    f"rows to calibrate on count {name} positions that do not exist",
                    arrived=(int(values.min()), int(values.max())),
                    allowed=f"0 .. {most}",
                    remedy="count drafts from 0 to K",
                )
        unusable = np.isnan(self.scores)
        first = np.where(unusable.any(axis=1), unusable.argmax(axis=1), width)
        judged = np.minimum(self.judged, first).astype(np.int64)
        clean = np.clip(np.where(unusable, 0.0, self.scores).astype(np.float64), -SCORE_LIMIT, SCORE_LIMIT)
        object.__setattr__(self, "scores", clean)
        object.__setattr__(self, "judged", judged)
        object.__setattr__(self, "accepted", np.minimum(self.accepted, judged))

    @property
    def draft_tokens(self) -> int:
        """K, the number of columns."""
        return int(self.scores.shape[1])

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, chosen: np.ndarray) -> Evidence:
        """Return the rows that bool [N] chooses."""
        return Evidence(self.scores[chosen], self.accepted[chosen], self.judged[chosen], self.keys[chosen])

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how often each position was reached and accepted, and rejected: int64 [K] each."""
        position = np.arange(self.draft_tokens)
        positives = (position < self.accepted[:, None]).sum(axis=0)
        rejected = (position == self.accepted[:, None]) & (position < self.judged[:, None])
        return positives.astype(np.int64), rejected.sum(axis=0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the records of a trace hold for calibration.

    Attributes:
        regimes: by name (``greedy``, ``sampled``), those that have rows.
        left_out: rows by the reason why they do not count.
    """

    regimes: Mapping[str, Evidence]
    left_out: Mapping[str, int]


def gather(records: Iterable[StepRecord]) -> Gathered:
    """Return the rows of steps that verified everything, by regime.

    Rows of trimmed steps are left out: which of them were verified depended on their scores (maths section 6,
    censoring). So are requests that must not teach, and those without drafts.

    Raises:
        CalibrationError: records of different K.
    """
    kept: dict[str, list[tuple[tuple[float | None, ...], int, int, int]]] = {
        name: [] for name in REGIME_NAMES
    }
    left_out: Counter[str] = Counter()
    for record in records:
        if record.rows is None:
            left_out["steps without rows"] += record.requests > 0
            continue
        rows = record.rows
        whole = rows.admitted == rows.drafted
        for index in range(len(rows.keys)):
            reason = _reason(rows, index, whole=whole)
            if reason:
                left_out[reason] += 1
                continue
            row = (rows.scores[index], rows.accepted[index], rows.judged[index], rows.keys[index])
            kept[REGIME_NAMES[rows.sampled[index]]].append(row)
    regimes = {name: _evidence(rows) for name, rows in kept.items() if rows}
    widths = {name: evidence.draft_tokens for name, evidence in regimes.items()}
    if len(set(widths.values())) > 1:
        raise _widths(widths)
    return Gathered(regimes, {name: count for name, count in left_out.items() if count})


def split(evidence: Evidence, held_out: float, seed: int = 0) -> tuple[Evidence, Evidence]:
    """Return (rows to fit on, rows held out): whole prompts, so that nothing is judged on what it saw.

    A pure function of keys and seed: the order of rows does not matter, and more rows of a prompt stay on its
    side.

    Args:
        evidence: of one regime.
        held_out: share of the prompts to hold out, above 0 and below 1; at least one prompt on either side.
        seed: chooses another split.

    Raises:
        CalibrationError: fewer than two prompts, or a share outside its range.
    """
    if not 0.0 < held_out < 1.0:
        raise CalibrationError(
            "this share of prompts cannot be held out",
            arrived=held_out,
            allowed="a number above 0 and below 1",
            remedy="hold out 0.3",
        )
    order = _prompts(evidence, seed)
    count = min(max(round(held_out * len(order)), 1), len(order) - 1)
    out = np.isin(evidence.keys, order[:count])
    return evidence.take(~out), evidence.take(out)


def fold_of(evidence: Evidence, folds: int, seed: int = 0) -> np.ndarray:
    """Return the fold of each row, int64 [N] in 0 .. folds - 1: whole prompts, dealt out in turn.

    A pure function of keys and seed. There are no more folds than prompts, so that none is empty.

    Args:
        evidence: of one regime.
        folds: at least 2.
        seed: chooses another deal.

    Raises:
        CalibrationError: fewer than two prompts or two folds.
    """
    if folds < 2:
        raise CalibrationError(
            "prompts cannot be dealt into so few folds",
            arrived=folds,
            allowed="at least 2",
            remedy="use 5 folds",
        )
    order = _prompts(evidence, seed)
    place = np.argsort(order)
    turns = place % min(folds, len(order))
    return np.asarray(turns[np.searchsorted(order[place], evidence.keys)])


def _prompts(evidence: Evidence, seed: int) -> np.ndarray:
    """Return the distinct keys in the order of a seed, at least two."""
    keys = np.unique(evidence.keys)
    if len(keys) < 2:
        raise CalibrationError(
            "one prompt cannot be split into one to fit on and one to judge by",
            arrived=f"{len(keys)} prompts in {len(evidence)} rows",
            allowed="at least 2 prompts a regime",
            remedy="record more prompts",
        )
    return np.asarray(keys[np.argsort(_mixed(keys, seed), kind="stable")])


def _reason(rows: RequestRows, index: int, *, whole: bool) -> str:
    if not rows.drafted[index]:
        return "nothing drafted"
    if not whole:
        return "trimmed steps"
    return "" if rows.learn[index] else "kept out of calibration"


def _evidence(rows: list[tuple[tuple[float | None, ...], int, int, int]]) -> Evidence:
    scores, accepted, judged, keys = zip(*rows, strict=True)
    if len({len(row) for row in scores}) > 1:
        raise _widths({f"row {index}": len(row) for index, row in enumerate(scores)})
    columns = np.array([[np.nan if score is None else score for score in row] for row in scores], np.float64)
    counts = (np.array(values, np.int64) for values in (accepted, judged, keys))
    return Evidence(columns, *counts)


def _widths(widths: Mapping[str, int]) -> CalibrationError:
    return CalibrationError(
        "rows of different K cannot be calibrated together",
        arrived=sorted(set(widths.values())),
        allowed="one K in all records",
        remedy="record each K in a file of its own",
    )


def _mixed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Return well spread 64-bit values of keys, another order for each seed (splitmix64's finaliser)."""
    values = keys.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(values ^ (values >> np.uint64(31)))
