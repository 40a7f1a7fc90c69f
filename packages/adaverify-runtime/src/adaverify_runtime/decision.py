"""The one decision about which strategy a step uses, with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import NoStrategyError, Plan
from adaverify_runtime.row_choice import RowChoice


@dataclass(frozen=True, slots=True)
class Decision:
    """Which strategy builds the rows of a step; ``uniform_query_len`` is None on the ragged path.

    ``word`` is what a choice among ragged strategies is counted as, None where there was none to make.
    """

    strategy: str
    reason: str
    uniform_query_len: int | None
    word: str | None = None


def decide_strategy(
    plan: Plan,
    ragged: str | None,
    uniform: str | None,
    *,
    rows: RowChoice | None = None,
    tokens: int | None = None,
    context: int = 1,
) -> Decision:
    """Decide which strategy a step uses.

    The uniform strategy serves every batch whose host and device boundaries cannot differ: nothing trimmed
    and equal schedules, a single request (its query length is B + 1), and B = 0 (every length is 1).

    Args:
        plan: the step's plan; only host integers are read.
        ragged: name of the ragged strategy, None when there is none.
        uniform: name of the uniform strategy, None when there is none.
        rows: chooses among several ragged strategies; ``ragged`` serves all when None.
        tokens: query tokens of the step, padding included; R + B when None.
        context: an upper bound of the step's longest KV length.

    Raises:
        NoStrategyError: the batch is ragged and there is no ragged strategy.
    """
    length, reason = _common_length(plan)
    if length is not None and uniform is not None:
        return Decision(uniform, reason, length)
    if ragged is None:
        tokens, full = plan.requests + plan.budget, plan.requests + plan.scheduled
        problem = (
            f"step {plan.step} has query lengths that differ ({tokens} query tokens for {plan.requests} "
            f"requests, {full} if all drafts were verified), and only a uniform strategy is there"
        )
        why: dict[str, tuple[str, ...]] = {str(uniform): ("serves batches of one query length only",)}
        raise NoStrategyError(problem, why, remedy="install a strategy that reads device lengths")
    if length is not None:
        reason = f"{reason}, and no uniform strategy fits this device"
    if rows is None:
        return Decision(ragged, reason, None)
    choice = rows.choose(plan.requests + plan.budget if tokens is None else tokens, context)
    return Decision(choice.strategy, f"{reason}; {choice.reason}", None, choice.word)


def _common_length(plan: Plan) -> tuple[int | None, str]:
    if plan.requests == 0:
        return None, "no decode requests"
    if plan.uniform_query_len is not None:
        return plan.uniform_query_len, f"every request has query length {plan.uniform_query_len}"
    if plan.requests == 1:
        return plan.budget + 1, f"a single request has query length {plan.budget + 1} on host and device"
    if plan.budget == 0:
        return 1, "no draft token is verified, so every query length is 1"
    if plan.trimmed:
        return None, f"{plan.trimmed} of {plan.scheduled} draft tokens are trimmed, so query lengths differ"
    return None, "requests scheduled different numbers of draft tokens"
