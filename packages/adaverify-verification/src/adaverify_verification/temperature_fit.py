"""One regime's temperatures: given, or fitted once there is enough to fit (maths section 6, STS)."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaverify_contracts import CalibrationError
from adaverify_verification.calibration import MIN_EACH_POSITION, short_positions, shortage
from adaverify_verification.calibration_offline import IDENTITY, fit_temperatures, sigmoid
from adaverify_verification.evidence import Evidence
from adaverify_verification.temperature_vector import require_temperatures

# A fit searches 67 temperatures over all rows: some 20 ms for 4096 rows of K = 7, off the decode path. Fits
# happen when rows have doubled, so there are at most a dozen of them.
MOST_ROWS = 4096


class TemperatureFit:
    """Counts full-verification rows until every position has both kinds of labels, then fits temperatures.

    Fitted again whenever the rows have doubled, up to 4096 rows, the last time whatever is missing; after
    that they stay, as given ones do. A pure function of the rows counted and of when they were counted.

    Args:
        draft_tokens: K.
    """

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens = draft_tokens
        self.temperatures: np.ndarray | None = None
        self.positives = np.zeros(draft_tokens, np.int64)
        self.negatives = np.zeros(draft_tokens, np.int64)
        self.fitted_rows = 0
        self._given = False
        self._predicted = np.zeros(draft_tokens)
        self._parts: list[Evidence] = []
        self._rows = 0

    def count(self, rows: Evidence) -> bool:
        """Count rows of steps that verified everything; return whether the temperatures changed."""
        positives, negatives = rows.labels()
        self.positives += positives
        self.negatives += negatives
        reached = np.arange(self.draft_tokens) < np.minimum(rows.accepted + 1, rows.judged)[:, None]
        self._predicted += np.where(reached, sigmoid(rows.scores / self.served()), 0.0).sum(axis=0)
        if self._given or self._rows >= MOST_ROWS:
            return False
        self._parts.append(rows.take(np.arange(len(rows)) < MOST_ROWS - self._rows))
        self._rows += len(self._parts[-1])
        # So many rows say that a position still short of labels is hardly ever reached.
        full = self._rows >= MOST_ROWS
        due = full or (self._rows >= max(2 * self.fitted_rows, 1) and self._lacking() is None)
        if due:
            self.fit()
        return due

    def fit(self) -> None:
        """Fit the temperatures to the rows counted so far; a position short of either kind keeps T = 1."""
        self.temperatures = fit_temperatures(
            np.concatenate([part.scores for part in self._parts]),
            np.concatenate([part.accepted for part in self._parts]),
            np.concatenate([part.judged for part in self._parts]),
            least=MIN_EACH_POSITION,
        )
        self.fitted_rows = self._rows
        if self._rows >= MOST_ROWS:
            self._parts = []

    def give(self, temperatures: np.ndarray) -> None:
        """Use these temperatures, float64 [K], from now on, and fit none.

        Raises:
            CalibrationError: they are not K numbers in 0.01 .. 100.
        """
        self.temperatures = require_temperatures(temperatures.tolist(), self.draft_tokens)
        self._given = True
        self._parts = []

    def served(self) -> np.ndarray:
        """Return the temperatures to use, float64 [K]: 1 everywhere until there are others."""
        return np.full(self.draft_tokens, IDENTITY) if self.temperatures is None else self.temperatures

    def ready(self) -> tuple[bool, str]:
        """Return whether the temperatures may drive trimming, and the reason in words."""
        if self._given:
            return True, "temperatures were given"
        if self.temperatures is None:
            return False, self._lacking() or "no rows of fully verified steps yet"
        lacking = self._lacking()
        rest = f"; T = 1 stays where labels are few ({lacking})" if lacking else ""
        return True, f"temperatures fitted to {self.fitted_rows} fully verified drafts{rest}"

    def reliability(self) -> list[dict[str, float | int | None]]:
        """Return one row a position: labels, mean predicted and observed conditional acceptance."""
        labels = (self.positives + self.negatives).tolist()
        return [
            {
                "position": k + 1,
                "labels": count,
                "predicted": float(self._predicted[k]) / count if count else None,
                "observed": int(self.positives[k]) / count if count else None,
            }
            for k, count in enumerate(labels)
        ]

    def export_state(self) -> dict[str, Any] | None:
        """Return the temperatures and what they rest on, JSON-ready; None where there are none."""
        if self.temperatures is None:
            return None
        return {
            "temperatures": self.temperatures.tolist(),
            "rows": self.fitted_rows,
            "positives": self.positives.tolist(),
            "negatives": self.negatives.tolist(),
        }

    def import_state(self, state: object) -> None:
        """Give the temperatures that ``export_state`` returned; None changes nothing.

        Raises:
            CalibrationError: there are no K temperatures in 0.01 .. 100 in it. Nothing is changed then.
        """
        if state is None:
            return
        if not isinstance(state, dict) or "temperatures" not in state:
            raise CalibrationError(
                "saved temperatures are malformed",
                arrived=type(state).__name__ if not isinstance(state, dict) else sorted(map(str, state)),
                allowed="an object with temperatures, or null",
                remedy="fit them again with `adaverify calibrate --signal temperature-scaled`",
            )
        self.give(require_temperatures(state["temperatures"], self.draft_tokens))

    def _lacking(self) -> str | None:
        """Return what is still missing, in words: of every position both kinds, or many of one kind."""
        short = short_positions(self.positives, self.negatives)
        return None if not short else shortage(short[0], self.positives, self.negatives)
