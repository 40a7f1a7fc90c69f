"""A small, bounded share of the time spent on sizes the planner would not choose."""

from __future__ import annotations

# A probe is charged at least this many steps, so that a nearly free one does not make plans alternate.
LEAST_CHARGE = 0.1
# Credit never grows past this many steps' worth: a long quiet run is not followed by a burst of probes.
MOST_CREDIT = 1.0
# Weight of the newest probe in what probes lose: one lucky step among noisy ones does not bring them back.
MEMORY = 0.5


class Exploration:
    """Earns ``share`` of a step's time with each step and spends it on probes.

    Counts steps, not time, so that ranks with equal plans explore in the same steps. What a probe really lost
    is charged. While probes lose, each waits twice as long as the one before it. Once they pay for
    themselves the next may follow at once, which is how a plan that trims everything comes back when
    acceptance recovers.

    Args:
        share: share of the time that probes may lose, 0 .. 1; 0 never explores.
        spacing: steps that probes which keep losing are apart in the end; 0 spaces nothing.
    """

    def __init__(self, share: float, spacing: int = 0) -> None:
        self._share, self._most = share, spacing
        self._credit = 0.0
        self._lost = 0.0
        self._spacing = self._wait = 0

    @property
    def credit(self) -> float:
        """Steps' worth of time that may be lost now."""
        return self._credit

    def due(self, loss: float) -> float | None:
        """Earn one step's share; return the charge of a probe that may run now, None if not yet.

        Args:
            loss: expected loss of the probe in units of the step it replaces.
        """
        charge = loss if loss > LEAST_CHARGE else LEAST_CHARGE
        # A dear probe may save up for itself, or it would never come.
        most = charge if charge > MOST_CREDIT else MOST_CREDIT
        earned = self._credit + self._share
        self._credit = earned if earned < most else most
        if self._wait:
            self._wait -= 1
            return None
        if self._share <= 0 or charge > self._credit:
            return None
        self._credit -= charge
        self._wait = self._spacing
        return charge

    def settle(self, charge: float, loss: float) -> None:
        """Replace a probe's charge with what it really lost; less than nothing when it gained.

        Exact accounting, luck included, keeps the sum of all losses within the share. One probe counts for at
        most three charges, so that a stall does not end exploration.

        Args:
            charge: what ``due`` returned.
            loss: realised loss in units of the step the probe replaced.
        """
        bounded = max(-charge, min(3.0 * charge, loss))
        self._credit = min(self._credit + charge - bounded, max(MOST_CREDIT, charge))
        self._lost += MEMORY * (bounded - self._lost)
        self._spacing = min(self._most, max(1, 2 * self._spacing)) if self._lost > 0 else 0
        self._wait = min(self._wait, self._spacing)
