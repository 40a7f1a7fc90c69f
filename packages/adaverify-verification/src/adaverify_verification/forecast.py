"""What old confidences are worth: survivals of earlier drafts, drawn towards their mean."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

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


class _Deviation(NamedTuple):
    """What survivals say beside those before them, found before anybody knows whether they count.

    Attributes:
        falling: float64 [N], the survivals; their identity says whose this is.
        before: how many steps the mean was of that they deviate from.
        mean: float64 [N], with them.
        summed: float64 [N], the deviation from the mean without them, summed from the first rank on: what a
            budget buys, and not one draft.
        above: float64 [N], how far they are above the mean with them.
    """

    falling: np.ndarray
    before: int
    mean: np.ndarray
    summed: np.ndarray
    above: np.ndarray


class _Size:
    """Ranked survivals of batches of one size: their mean, and how long deviations from it last."""

    def __init__(self, drafts: int) -> None:
        self._mean = np.zeros(drafts)
        self._seen = 0
        self._lags = [_Lag() for _ in range(MOST_LAG)]
        # Steps with their deviations.
        self._recent: deque[tuple[int, np.ndarray]] = deque(maxlen=MOST_LAG)
        # What was found of the survivals that were looked at last.
        self._found: _Deviation | None = None

    def share(self, lag: int) -> float:
        """Return the share of a deviation that is left after ``lag`` steps."""
        return self._lags[lag - 1].share

    def look(self, falling: np.ndarray) -> _Deviation:
        """Return what ranked survivals float64 [N] say; nothing is learnt."""
        found = self._found
        if found is None or found.falling is not falling or found.before != self._seen:
            away = falling - self._mean
            mean = self._mean + max(MEMORY, 1.0 / (self._seen + 1)) * away
            found = _Deviation(falling, self._seen, mean, np.add.accumulate(away), falling - mean)
            self._found = found
        return found

    def learn(self, step: int, falling: np.ndarray, lag: int) -> None:
        """Count the ranked survivals float64 [N] of ``step``, unless they were counted before."""
        if self._recent and step <= self._recent[-1][0]:
            return
        found = self.look(falling)
        self._seen += 1
        self._mean = found.mean
        for earlier, before in self._recent:
            if earlier == step - lag:
                self._lags[lag - 1].add(before, found.summed)
        # The first is the mean itself by then, and says nothing.
        if self._seen > 1:
            self._recent.append((step, found.summed))

    def drawn(self, falling: np.ndarray, share: float) -> np.ndarray:
        """Return ranked survivals float64 [N] with ``share`` of their deviation, whole numbers."""
        found = self._found
        learnt = found is not None and found.falling is falling and found.mean is self._mean
        above = found.above if found is not None and learnt else falling - self._mean
        drawn: np.ndarray = above * share
        drawn += self._mean
        return np.rint(drawn, drawn)


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
        ranking = found.ranking
        whole = state.least_scheduled == ranking.scores.shape[1]
        if not (found.lag and found.foreseen and found.odd is None and whole):
            return ranking
        return self._expected(ranking, state.step - found.lag, found.lag)

    def prepare(self, ranking: Ranking) -> None:
        """Do what can be done of a forecast before the step is known that it is for; nothing is learnt."""
        scores = ranking.scores
        if _is_drawn(scores):
            falling, size = ranking.falling, self._sizes.get(scores.shape)
            if size is not None:
                size.look(falling)

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
        return self._expected(ranking or Ranking(quantised), step, lag).scores

    def _expected(self, ranking: Ranking, step: int, lag: int) -> Ranking:
        scores = ranking.scores
        if lag < 1 or not _is_drawn(scores):
            return ranking
        falling = ranking.falling
        lag = min(lag, MOST_LAG)
        size = self._sizes.get(scores.shape)
        if size is None:
            size = self._sizes[scores.shape] = _Size(len(falling))
        size.learn(step, falling, lag)
        share = size.share(lag)
        return ranking if share == 1.0 else ranking.like(size.drawn(falling, share))


def _is_drawn(quantised: np.ndarray) -> bool:
    """Return whether survivals [R, K] of another step are drawn anywhere: they are some, and not too many."""
    return 0 < quantised.size <= MOST_DRAFTS
