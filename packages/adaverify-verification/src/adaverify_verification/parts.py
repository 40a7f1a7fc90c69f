"""What a manager is made of, and what callers tell it by name: checked before anything is built on it."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np

from adaverify_contracts import (
    ClosedError,
    DescriptorError,
    Limits,
    PlanError,
    PolicyDescriptor,
    Seen,
    SignalDescriptor,
)
from adaverify_verification.cost_model import CostModel
from adaverify_verification.law import LawRule
from adaverify_verification.options import ManagerOptions
from adaverify_verification.relay import Relay

_KINDS = {
    "limits": Limits,
    "signal": SignalDescriptor,
    "policy": PolicyDescriptor,
    "cost": CostModel,
    "options": ManagerOptions,
    "drafter_seen": Seen,
    "drafter_deterministic": bool,
    "relay": Relay,
}
_REMEDIES = {
    "cost": "pass CostModel(table), or CostModel(None) without a table",
    "signal": "pass a SignalDescriptor, such as adaverify_verification.CALIBRATED",
    "policy": "pass PolicyDescriptor(name, reads, factory)",
    "options": "pass ManagerOptions()",
}
_BACKENDS = ("torch", "triton")
UNPRICED = "adaptive verification is off, every draft is verified"
_LARGEST_STEP = 2**63 - 1


def require_parts(assign_backend: object, relay: object, **parts: object) -> None:
    """Require the types that ``VerificationManager`` names for its parts.

    Raises:
        DescriptorError: one is something else; names it.
    """
    if relay is not None:
        parts["relay"] = relay
    for name, value in parts.items():
        if not isinstance(value, _KINDS[name]):
            kind = _KINDS[name].__name__
            raise DescriptorError(
                f"the manager's {name} has the wrong type",
                arrived=value,
                allowed=f"a {kind}",
                remedy=_REMEDIES.get(name, f"pass a {kind}"),
            )
    if assign_backend not in _BACKENDS:
        raise DescriptorError(
            "the manager's assign_backend is no backend",
            arrived=assign_backend,
            allowed=", ".join(_BACKENDS),
            remedy="choose torch anywhere, triton on a GPU",
        )


def tier_counts(tiers: object) -> list[int]:
    """Return captured token counts as ints.

    Raises:
        PlanError: they are not rising positive counts.
    """
    counts = _counts(tiers)
    if (
        counts is None
        or counts != sorted(set(counts))
        or (counts and not 1 <= counts[0] <= counts[-1] < 2**31)
    ):
        raise PlanError(
            "tiers are not rising positive token counts",
            arrived=tiers,
            allowed="strictly rising ints in 1 .. 2**31 - 1, or none in eager mode",
            remedy="sort them and drop duplicates",
        )
    return counts


def _counts(values: object) -> list[int] | None:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        return None
    listed = list(values)
    if any(isinstance(value, bool | np.bool_) for value in listed):
        return None
    try:
        return [operator.index(value) for value in listed]
    except TypeError:
        return None


def is_step(step: object) -> bool:
    """Return whether ``step`` is a step number: an int that fits 64 bits and is not negative."""
    return (type(step) is int or isinstance(step, np.integer)) and bool(0 <= step <= _LARGEST_STEP)


def require_note(step: object, name: object) -> None:
    """Require a step number, and the name of a fallback.

    Raises:
        PlanError: either is none.
    """
    if not is_step(step):
        raise PlanError(
            "a fallback was noted for what is no step",
            arrived=step,
            allowed=f"an int in 0 .. {_LARGEST_STEP}",
            remedy="pass the number of the step that fell back",
        )
    if not isinstance(name, str) or not name.strip():
        raise PlanError(
            "a fallback was noted without a name",
            arrived=name,
            allowed="a str that is not empty",
            remedy="name the fallback as counters should show it, such as drafter-raised",
        )


def require_batch(limits: Limits, requests: object, kv_tokens: object) -> None:
    """Require numbers of a batch to come.

    Raises:
        PlanError: they are no counts, or more requests than the limits hold.
    """
    counts = _counts((requests, kv_tokens))
    if counts is None or not 0 <= counts[0] <= limits.max_requests or counts[1] < 0:
        raise PlanError(
            "the next batch is no batch",
            arrived={"requests": requests, "kv_tokens": kv_tokens},
            allowed=f"0 .. {limits.max_requests} requests and kv_tokens >= 0, ints",
            remedy="count the decode requests of the next step and the sum of their KV lengths",
        )


def require_open(closed: bool) -> None:
    """Refuse a manager that was closed.

    Raises:
        ClosedError: it was.
    """
    if closed:
        raise ClosedError(
            "the verification manager was used after close()",
            arrived="a closed manager",
            allowed="a manager that was not closed",
            remedy="close it after the last step, or make another",
        )


def start_warnings(options: ManagerOptions, limits: Limits, cost: CostModel, law: LawRule) -> list[str]:
    """Return what keeps an adaptive manager from trimming, known at the start."""
    if options.mode != "adaptive":
        return []
    if not limits.draft_tokens:
        return ["adaptive verification is off: nothing is drafted, K is 0"]
    if not cost.priced:
        return [f"{UNPRICED}: {cost.reason}"]
    if not law.verdict.allowed:
        return [f"sampled requests are verified whole: {law.verdict.reason}"]
    return []
