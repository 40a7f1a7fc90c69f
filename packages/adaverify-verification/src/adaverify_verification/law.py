"""What one signal, policy and drafter may do in a step whose output law trimming could change."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import BudgetReads, Limits, PolicyDescriptor, Seen, SignalDescriptor, StepState
from adaverify_verification.lossless import Verdict, effective_seen, require_lossless, verdict

# Below 1, so that the survival of a request that may be trimmed ranks behind every one that may not.
_BELOW_ONE = 1.0 - 1.0 / 65535.0


class LawRule:
    """The lossless contract of one manager, asked once a step.

    An unsafe pair is downgraded request by request: a sampled request is verified whole, so that nothing of
    its own step decides about its drafts, and a greedy one beside it is trimmed like any other (maths section
    5.4, case 2).

    Args:
        signal: the confidence source.
        policy: the budget policy.
        drafter_seen: what the drafter's score for position k has seen.
        drafter_deterministic: drafts are a function of the prefix.
        refuse: True refuses an unsafe pair at once.

    Raises:
        LosslessError: the pair is unsafe and ``refuse`` is True.
    """

    def __init__(
        self,
        signal: SignalDescriptor,
        policy: PolicyDescriptor,
        *,
        drafter_seen: Seen,
        drafter_deterministic: bool,
        refuse: bool,
    ) -> None:
        if refuse:
            require_lossless(
                signal, policy, drafter_seen=drafter_seen, drafter_deterministic=drafter_deterministic
            )
        seen = effective_seen(signal, drafter_seen)
        self.verdict: Verdict = verdict(
            seen, policy.reads, drafter_deterministic=drafter_deterministic, sampled=True
        )
        # Scores that are a function of history may size the step they belong to (maths 5.4 and 5.5).
        live_is_history = drafter_deterministic or seen is Seen.HISTORY
        history = policy.reads is BudgetReads.HISTORY
        self._lagged = self.verdict.allowed and history and not live_is_history
        self._frontier = self.verdict.allowed and not history and not live_is_history

    def newest(self, state: StepState) -> int:
        """Return the newest step whose confidences may size ``state``; its own where no law is at stake."""
        return state.step - int(self._lagged and state.sampled)

    def guarded(self, state: StepState) -> bool:
        """Return whether guard and exploration may look past the frontier of the values the budget reads."""
        return not (self._frontier and state.sampled)

    @staticmethod
    def budgets(state: StepState) -> np.ndarray:
        """Return the budgets that a policy is shown in a step that is not ``guarded``, int64 [N + 1].

        They are all there are: the worth of a tier's end alone already tells of survivals behind the next
        one, and what it leaves out is decided by them.
        """
        return np.arange(state.max_budget + 1, dtype=np.int64)

    def whole(self, state: StepState) -> np.ndarray | None:
        """Return bool [R], the requests that must be verified whole; None when none must."""
        if self.verdict.allowed or not state.sampled:
            return None
        if state.sampled_requests is None:
            return np.ones(state.requests, dtype=bool)
        return state.sampled_requests


class Pins:
    """Puts requests that must be verified whole before all others in the ranking.

    Their confidences are taken for 1 and everybody else's for less, so that any budget that holds their
    drafts admits all of them, and one that does not (a logits chunk) cuts them by position and request alone.

    Args:
        limits: largest shapes.
        device: run device.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows, width = limits.max_requests, limits.draft_tokens
        self._pinned = torch.zeros(rows, dtype=torch.bool, device=device)
        self._ranked = torch.ones((rows, width), dtype=torch.float32, device=device)
        self._host = np.zeros(rows, dtype=bool)

    def load(self, whole: np.ndarray | None) -> None:
        """Take over which rows must be verified whole, bool [R]; None for none. Enqueued, not waited for."""
        wanted = np.zeros_like(self._host)
        if whole is not None:
            wanted[: len(whole)] = whole
        if not np.array_equal(wanted, self._host):
            self._host = wanted
            self._pinned.copy_(torch.from_numpy(wanted), non_blocking=True)

    def apply(self, confidences: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, K] to rank by, in a static buffer; device work only, capturable."""
        rows = confidences.shape[0]
        ranked = torch.clamp(confidences, max=_BELOW_ONE, out=self._ranked[:rows])
        return ranked.masked_fill_(self._pinned[:rows, None], 1.0)
