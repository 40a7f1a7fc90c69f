"""The "draft nothing" arm: skip drafting while its best budget is worth less than plain decoding."""

from __future__ import annotations

from adaverify_verification.exploration import Exploration

# Weight of the newest step; four bad steps in a row outweigh what came before them.
MEMORY = 0.25


class DraftArm:
    """Decides, from lagged values, whether the next step drafts at all.

    Only meaningful where the engine can skip drafting and the cost table prices it, or steps without it:
    pauses follow from measured costs, not from constants. Skipping is left through probes, which exploration
    pays for.

    Args:
        margin: relative loss of drafting at which it is skipped; it resumes at a gain of 0 or more.
        share: share of the time that probes may lose.
    """

    def __init__(self, margin: float, share: float) -> None:
        self._margin = margin
        self._exploration = Exploration(share)
        self._advantage: float | None = None
        self._skipping = False
        self._charge: float | None = None

    def decide(self, draft_seconds: float, bare_seconds: float) -> tuple[bool, str]:
        """Return whether the next step drafts, and why; called once a step.

        Args:
            draft_seconds: what not drafting saves, 0.0 where that has no price.
            bare_seconds: a plain decoding step.
        """
        if draft_seconds <= 0 or bare_seconds <= 0:
            return True, "drafting has no price of its own"
        if not self._skipping:
            return True, "drafting pays for itself, or was not measured yet"
        self._charge = self._exploration.due(draft_seconds / bare_seconds)
        if self._charge is not None:
            return True, "probing whether drafting pays again"
        return False, f"drafting loses {-(self._advantage or 0.0):.1%} against plain decoding"

    def take_probe(self) -> float | None:
        """Return the charge of a probe that was decided and not planned yet, once."""
        charge, self._charge = self._charge, None
        return charge

    def note(self, rate: float, bare_rate: float) -> None:
        """Count one step's tokens per second, planned or (for a probe) realised, against plain decoding."""
        if bare_rate <= 0:
            return
        advantage = rate / bare_rate - 1.0
        before = self._advantage
        self._advantage = advantage if before is None else before + MEMORY * (advantage - before)
        self._skipping = self._advantage < (0.0 if self._skipping else -self._margin)

    def learn(self, charge: float, rate: float, bare_rate: float, lost: float) -> None:
        """Count a probe's realised tokens per second; one that paid for itself is not charged.

        ``lost`` is what the probe really lost, in plain decoding steps: it verifies every draft, which may
        cost far more than drafting alone.
        """
        self.note(rate, bare_rate)
        self._exploration.settle(charge, max(0.0, lost))
