"""A plan as integers: digest, export, apply, agree. One decision for all ranks (design section 7)."""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from hashlib import blake2b

from adaverify_contracts import Plan, PlanError, PlanState, StepState

_STATES = tuple(PlanState)
# step, state, budget, scheduled, requests, certain tokens, tokens, tier, uniform query length (-1: none).
EXPORTED = 9


# What a plan's digest is made of: eight integers of 64 bits, as NumPy's "<i8" would lay them out.
_EIGHT = struct.Struct("<8q").pack
# Copied for each digest, which takes two thirds of the time of making one.
_EMPTY = blake2b(digest_size=8)


def digest(integers: Sequence[int]) -> int:
    """Return the 64-bit digest of integers; other integers have another one, in practice."""
    raw = struct.pack(f"<{len(integers)}q", *integers)
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")


def plan_digest(
    step: int,
    budget: int,
    scheduled: int,
    requests: int,
    certain_tokens: int,
    tier: int,
    uniform_query_len: int | None,
    kv_tokens: int = 0,
) -> int:
    """Return the digest of what fixes a step's shape; times, expectations and words stay out.

    Floats computed on two ranks differ some day, and they do not fix a shape. The query length does: it
    selects the uniform path. The KV tokens fix none either, but accepted counts that differed between ranks a
    step ago show in them and in nothing else.
    """
    uniform = -1 if uniform_query_len is None else uniform_query_len
    hasher = _EMPTY.copy()
    hasher.update(_EIGHT(step, budget, scheduled, requests, certain_tokens, tier, uniform, kv_tokens))
    return int.from_bytes(hasher.digest(), "little")


def export_plan(plan: Plan) -> tuple[int, ...]:
    """Return the plan as ``EXPORTED`` integers, to broadcast from rank 0.

    Raises:
        PlanError: it is no ``Plan``.
    """
    _require_plan(plan)
    uniform = -1 if plan.uniform_query_len is None else plan.uniform_query_len
    return (
        plan.step,
        _STATES.index(plan.state),
        plan.budget,
        plan.scheduled,
        plan.requests,
        plan.certain_tokens,
        plan.tokens,
        plan.tier,
        uniform,
    )


def apply_plan(state: StepState, integers: Sequence[int]) -> Plan:
    """Return another rank's plan for this rank's step.

    Raises:
        PlanError: the integers are no plan, or belong to another step or batch.
    """
    values = _integers(integers)
    fits = values is not None and len(values) == EXPORTED and max(map(abs, values)) < 2**63
    if values is None or not fits or not 0 <= values[1] < len(_STATES):
        raise PlanError(
            "the integers are not an exported plan",
            arrived=integers,
            allowed=f"{EXPORTED} integers from export_plan",
            remedy="broadcast export_plan(plan) unchanged",
        )
    step, state_index, budget, scheduled, requests, certain, tokens, tier, uniform = values
    here = (state.step, int(state.scheduled.sum()), state.requests, state.certain_tokens)
    if (step, scheduled, requests, certain) != here or budget > state.max_budget:
        raise PlanError(
            "the exported plan belongs to another step or batch",
            arrived=dict(zip(("step", "scheduled", "requests", "certain tokens"), here, strict=True)),
            allowed=f"step {step}, scheduled {scheduled}, requests {requests}, certain tokens {certain}",
            remedy="apply a plan in the step and to the batch it was made for",
        )
    query_len = None if uniform < 0 else uniform
    return Plan(
        step=step,
        state=_STATES[state_index],
        reason="applied from another rank",
        budget=budget,
        scheduled=scheduled,
        requests=requests,
        certain_tokens=certain,
        tokens=tokens,
        tier=tier,
        uniform_query_len=query_len,
        predicted_seconds=None,
        predicted_tokens=float(state.emitting),
        full_seconds=None,
        full_tokens=float(state.emitting),
        lag=None,
        digest=plan_digest(
            step=step,
            budget=budget,
            scheduled=scheduled,
            requests=requests,
            certain_tokens=certain,
            tier=tier,
            uniform_query_len=query_len,
            kv_tokens=state.kv_tokens,
        ),
    )


def require_digests(plan: object, digests: object) -> None:
    """Require a ``Plan`` and a sequence of integers.

    Raises:
        PlanError: either is something else.
    """
    _require_plan(plan)
    if _integers(digests) is None:
        raise PlanError(
            "the digests to compare are no integers",
            arrived=digests,
            allowed="a sequence of ints, one Plan.digest a rank",
            remedy="gather plan.digest from every rank",
        )


def _require_plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise PlanError(
            "what is to be shared with other ranks is no plan",
            arrived=type(plan).__name__,
            allowed="a Plan",
            remedy="pass what plan() returned for this step",
        )


def _integers(values: object) -> list[int] | None:
    """Return the integers of any sequence or array of them, None for anything else."""
    try:
        listed = list(values)  # type: ignore[call-overload]
        return [operator.index(value) for value in listed]
    except TypeError:
        return None


def agree(digests: Sequence[int]) -> bool:
    """Return whether all ranks planned the same; an empty group agrees."""
    return len(set(digests)) <= 1


def common_tier(tokens: Sequence[int], tiers: Sequence[int]) -> int:
    """Return the one size that data-parallel ranks execute: the tier that holds the largest rank's batch.

    An idle rank passes 0 and runs a dummy batch of the same size. Past the last tier it is the largest batch.
    """
    largest = max(tokens, default=0)
    return min((tier for tier in tiers if tier >= largest), default=largest)
