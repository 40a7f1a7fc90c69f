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


class _Lag(NamedTuple):
    """How far the survivals of one step tell those of a step so many later.

    Attributes:
        pairs: pairs of steps that were counted.
        together: mean product of their deviations; alone: of the earlier one's with itself.
        share: the share of a deviation that is left after the lag, 0 .. 1; 1 while little is known.
    """

    pairs: int = 0
    together: float = 0.0
    alone: float = 0.0
    share: float = 1.0

    def with_pair(self, before: np.ndarray, after: np.ndarray) -> _Lag:
        """Return it with a pair of deviations from the mean, float64 [N], summed from the first rank on."""
        pairs, share = self.pairs + 1, self.share
        weight = max(MEMORY, 1.0 / pairs)
        together = self.together + weight * (float(before.dot(after)) - self.together)
        alone = self.alone + weight * (float(before.dot(before)) - self.alone)
        if pairs >= LEAST_PAIRS and alone > 0.0:
            share = min(1.0, max(0.0, together / alone))
        return _Lag(pairs, together, alone, share)


class _Look(NamedTuple):
    """What one publication says beside those before it.

    Attributes:
        asked: the ranking, its step, the lag and how many steps were counted before: whose this is.
        mean: float64 [N], ranked survivals, with these where they are news.
        summed: float64 [N], their deviation from the mean before, summed from the first rank on: what a
            budget buys, and not one draft. None where the step was counted before.
        pairs: of the lag, with these.
        expected: what to expect of the step.
    """

    asked: tuple[Ranking, int, int, int]
    mean: np.ndarray
    summed: np.ndarray | None
    pairs: _Lag
    expected: Ranking


class _Size:
    """Ranked survivals of batches of one size: their mean, and how long deviations from it last."""

    def __init__(self, drafts: int) -> None:
        self._mean = np.zeros(drafts)
        self._seen = 0
        self._lags = [_Lag()] * MOST_LAG
        # Steps with their deviations.
        self._recent: deque[tuple[int, np.ndarray]] = deque(maxlen=MOST_LAG)
        self._looked: _Look | None = None

    def look(self, ranking: Ranking, step: int, lag: int) -> _Look:
        """Return what the survivals of ``step`` say ``lag`` steps later; nothing is counted."""
        looked = self._looked
        if looked is not None:
            whose, then, late, before = looked.asked
            if whose is ranking and then == step and late == lag and before == self._seen:
                return looked
        falling = ranking.falling()
        mean, summed, pairs = self._mean, None, self._lags[lag - 1]
        if not self._recent or step > self._recent[-1][0]:
            away = falling - mean
            mean = mean + max(MEMORY, 1.0 / (self._seen + 1)) * away
            summed = np.add.accumulate(away)
            for earlier, deviation in self._recent:
                if earlier == step - lag:
                    pairs = pairs.with_pair(deviation, summed)
        expected = ranking if pairs.share == 1.0 else ranking.like(_drawn(falling, mean, pairs.share))
        self._looked = _Look((ranking, step, lag, self._seen), mean, summed, pairs, expected)
        return self._looked

    def count(self, look: _Look) -> None:
        """Learn what was looked at last, unless its step was counted before."""
        _, step, lag, _ = look.asked
        if look.summed is None:
            return
        self._seen += 1
        self._mean = look.mean
        self._lags[lag - 1] = look.pairs
        # The first is the mean itself by then, and says nothing.
        if self._seen > 1:
            self._recent.append((step, look.summed))


def _drawn(falling: np.ndarray, mean: np.ndarray, share: float) -> np.ndarray:
    """Return survivals float64 [N] with ``share`` of their distance from ``mean``, whole numbers."""
    drawn = falling - mean
    drawn *= share
    drawn += mean
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
        # The step that comes next where steps are numbered one after the other.
        self._next = 0

    def of(self, found: Survivals, state: StepState) -> Ranking:
        """Return what to expect of ``state`` where ``found`` is what is known.

        Requests that nothing is known of, confidences that are none and requests with fewer drafts than K
        make a batch of another kind: it teaches nothing and is taken as it is.
        """
        ranking, lag = found.ranking, found.lag
        self._next = state.step + 1
        if not lag or not found.foreseen or found.odd is not None:
            return ranking
        if state.least_scheduled != ranking.scores.shape[1]:
            return ranking
        return self.expect(ranking, state.step - lag, lag)

    def prepare(self, ranking: Ranking, step: int) -> None:
        """Look at the survivals of ``step`` as the next step would; nothing is counted."""
        size, lag = self._sizes.get(ranking.scores.shape), self._next - step
        if size is not None and lag > 0:
            ranking = size.look(ranking, step, min(lag, MOST_LAG)).expected
        # Every request emits a token as a rule; where one more does, a sum is made anew.
        _ = ranking.emitted(len(ranking.scores))

    def expect(self, ranking: Ranking, step: int, lag: int) -> Ranking:
        """Return the expected survivals, never rising along K where those of ``ranking`` do not.

        Args:
            ranking: survivals of the same requests; not written to.
            step: the step that published them.
            lag: steps from there to the budget; at 0 they are this step's own, and returned as they are.
        """
        scores = ranking.scores
        # They are this step's own, there are none, or too many.
        if lag < 1 or not 0 < scores.size <= MOST_DRAFTS:
            return ranking
        size = self._sizes.get(scores.shape)
        if size is None:
            size = self._sizes[scores.shape] = _Size(scores.size)
        look = size.look(ranking, step, min(lag, MOST_LAG))
        size.count(look)
        return look.expected
