"""Which signal and policy may trim sampled requests without changing their output law (maths section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import BudgetReads, LosslessError, PolicyDescriptor, Seen, SignalDescriptor


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pair may trim, and why, in words."""

    allowed: bool
    reason: str


def effective_seen(signal: SignalDescriptor, drafter: Seen) -> Seen:
    """Return what the confidences have seen: the signal's own, and the score's where the signal reads it."""
    return max(signal.seen, drafter) if signal.reads_scores else signal.seen


def verdict(seen: Seen, reads: BudgetReads, *, drafter_deterministic: bool, sampled: bool) -> Verdict:
    """Return whether trimming keeps the output law (maths sections 5.2, 5.4 and 5.5).

    Args:
        seen: what the ranking confidences have seen, the drafter's score included.
        reads: what the budget depends on.
        drafter_deterministic: drafts are a function of the prefix.
        sampled: the batch holds at least one sampled request; the budget is shared, so one is enough.
    """
    if not sampled:
        return Verdict(True, "every request is greedy: the output is the argmax whatever is trimmed")
    if drafter_deterministic:
        return Verdict(True, "drafts are a function of the prefix: any rule on them is lossless")
    if seen is Seen.HISTORY:
        return Verdict(True, "ranking and budget read history only")
    if seen is Seen.DRAWN_TOKEN:
        return Verdict(False, "the confidence for a position has seen the token drawn there")
    if reads is BudgetReads.LIVE:
        return Verdict(False, "the budget reads live confidences past the frontier")
    if reads is BudgetReads.FRONTIER:
        return Verdict(True, "live confidences saw the prefix only, and positions are admitted irrevocably")
    return Verdict(True, "the budget reads history, live confidences saw the prefix only")


def require_lossless(
    signal: SignalDescriptor, policy: PolicyDescriptor, *, drafter_seen: Seen, drafter_deterministic: bool
) -> None:
    """Refuse a pair that could change the output law of sampled requests.

    Raises:
        LosslessError: names the pair and the reason.
    """
    found = verdict(
        effective_seen(signal, drafter_seen),
        policy.reads,
        drafter_deterministic=drafter_deterministic,
        sampled=True,
    )
    if not found.allowed:
        raise LosslessError(
            f"signal {signal.name!r} with policy {policy.name!r} could change what sampled requests emit: "
            f"{found.reason}",
            arrived={"signal sees": signal.seen.name, "drafter sees": drafter_seen.name},
            allowed="HISTORY or PREFIX confidences with a HISTORY or FRONTIER budget",
            remedy="choose another signal or policy, or let sampled steps verify everything (downgrade)",
        )
