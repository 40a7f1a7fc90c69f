"""What old confidences are worth: survivals of earlier drafts, drawn towards their mean."""

from __future__ import annotations

from collections import deque

import numpy as np

from adaverify_contracts import StepState
from adaverify_verification.lagged import Survivals
from adaverify_verification.ranking import Ranking

# Weight of the newest step in means and covariances: about the last 200 count.
MEMORY = 0.01
# Pairs of steps before anything is drawn anywhere; warming up is as long.
LEAST_PAIRS = 32
# Larger batches even themselves out: from 64 requests on nothing was gained, and ranking costs host time.
MOST_DRAFTS = 256
# Lags that are told apart; what is older counts as this old.
MOST_LAG = 4


class _Lag:
    """How far the survivals of one step tell those of the step ``lag`` later."""

    def __init__(self) -> None:
        self._pairs = 0
        self._together = 0.0
        self._alone = 0.0
        # The share of a deviation that is left after the lag, 0 .. 1; 1 while little is known.
        self.share = 1.0

    def add(self, before: np.ndarray, after: np.ndarray) -> None:
        """Count a pair of deviations from the mean, float64 [N], summed from the first rank on."""
        self._pairs += 1
        weight = max(MEMORY, 1.0 / self._pairs)
        self._together += weight * (float(before.dot(after)) - self._together)
        self._alone += weight * (float(before.dot(before)) - self._alone)
        if self._pairs >= LEAST_PAIRS and self._alone > 0.0:
            self.share = min(1.0, max(0.0, self._together / self._alone))


class _Size:
    """Ranked survivals of batches of one size: their mean, and how long deviations from it last."""

    def __init__(self, drafts: int) -> None:
        self.mean = np.zeros(drafts)
        self._seen = 0
        self._lags = [_Lag() for _ in range(MOST_LAG)]
        # Steps with their deviations, summed from the first rank on: what a budget buys, and not one draft.
        self._recent: deque[tuple[int, np.ndarray]] = deque(maxlen=MOST_LAG)

    def share(self, lag: int) -> float:
        """Return the share of a deviation that is left after ``lag`` steps."""
        return self._lags[lag - 1].share

    def learn(self, step: int, ranked: np.ndarray, lag: int) -> None:
        """Count the ranked survivals float64 [N] of ``step``, unless they were counted before."""
        if self._recent and step <= self._recent[-1][0]:
            return
        self._seen += 1
        away = ranked - self.mean
        self.mean += max(MEMORY, 1.0 / self._seen) * away
        summed = np.add.accumulate(away)
        for earlier, before in self._recent:
            if earlier == step - lag:
                self._lags[lag - 1].add(before, summed)
        # The first is the mean itself by then, and says nothing.
        if self._seen > 1:
            self._recent.append((step, summed))


class Forecast:
    """Says what this step's ranked survivals will be from those of a step before it.

    The drafts that a lagged confidence was of are decided by now, and this step's are others. So a step whose
    confidences were high is followed by one less far above the mean, and likewise below it. How much of a
    deviation is left is learnt for each lag, by the regression of later publications on earlier ones. It is
    the *ranked* survivals of a batch that are forecast, not each request's: the budget is spent by rank, on
    live confidences, and those are spread as widely as the lagged ones.

    Everything that it remembers is history, of steps whose confidences a budget was allowed to read.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, ...], _Size] = {}

    def of(self, found: Survivals, state: StepState) -> Ranking:
        """Return what to expect of ``state`` where ``found`` is what is known.

        Requests that nothing is known of, confidences that are none and requests with fewer drafts than K
        make a batch of another kind: it teaches nothing and is taken as it is.
        """
        quantised = found.ranking.scores
        whole = state.least_scheduled == quantised.shape[1]
        if not (found.lag and found.foreseen and found.odd is None and whole):
            return found.ranking
        expected = self.expect(quantised, state.step - found.lag, found.lag, found.ranking)
        return found.ranking if expected is quantised else Ranking(expected)

    @staticmethod
    def prepare(ranking: Ranking) -> None:
        """Do what can be done of a forecast before the step is known that it is for."""
        if _is_drawn(ranking.scores) and len(ranking.scores) > 1:
            _ = ranking.order

    def expect(
        self, quantised: np.ndarray, step: int, lag: int, ranking: Ranking | None = None
    ) -> np.ndarray:
        """Return the expected survivals, int32 [R, K], never rising along K where ``quantised`` does not.

        Args:
            quantised: int [R, K], survivals of the same requests, 0 .. 65535; not written to.
            step: the step that published them.
            lag: steps from there to the budget; at 0 they are this step's own, and returned as they are.
            ranking: of ``quantised``, where there is one: what it has computed is not computed again.
        """
        if lag < 1 or not _is_drawn(quantised):
            return quantised
        # One request is ranked by position already.
        order = None if len(quantised) == 1 else (ranking or Ranking(quantised)).order
        offered = quantised.ravel()
        ranked = (offered if order is None else offered[order]).astype(np.float64)
        lag = min(lag, MOST_LAG)
        size = self._sizes.get(quantised.shape)
        if size is None:
            size = self._sizes[quantised.shape] = _Size(len(ranked))
        size.learn(step, ranked, lag)
        share = size.share(lag)
        if share == 1.0:
            return quantised
        ranked -= size.mean
        ranked *= share
        ranked += size.mean
        drawn = np.rint(ranked, out=ranked).astype(np.int32)
        if order is None:
            return drawn.reshape(quantised.shape)
        expected = np.empty(len(offered), dtype=np.int32)
        expected[order] = drawn
        return expected.reshape(quantised.shape)


def _is_drawn(quantised: np.ndarray) -> bool:
    """Return whether survivals [R, K] of another step are drawn anywhere: they are some, and not too many."""
    return 0 < quantised.size <= MOST_DRAFTS
