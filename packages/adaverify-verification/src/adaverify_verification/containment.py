"""Signals and policies are plugins: one that raises or answers nonsense is a named fault of one step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from adaverify_contracts import BudgetCandidates, Policy, Signal, StepOutcome
from adaverify_contracts.describing import describe, shown, text_of

_FLAGS = (bool, np.bool_)
_FLOAT64 = np.dtype(np.float64)


class PluginFault(Exception):
    """A plugin failed in one step, which then verifies everything; ``name`` is what it is counted as."""

    def __init__(self, name: str, words: str) -> None:
        # Both arguments, or a copy of a manager that remembers a fault could not make another.
        super().__init__(name, words)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[1])


def raised(kind: str, error: BaseException) -> PluginFault:
    """Return the fault of a plugin that raised ``error``."""
    return PluginFault(f"{kind}-raised", f"the {kind} raised {describe(error)}")


def choose(policy: Policy, candidates: BudgetCandidates) -> int:
    """Return the index of the candidate the policy chose.

    Raises:
        PluginFault: the policy raised, or returned no index of a candidate.
    """
    try:
        answer = policy.choose(candidates)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised("policy", error) from error
    if type(answer) is int and 0 <= answer < len(candidates.budgets):
        return answer
    # Not operator.index: True would be candidate 1, and a tensor would be waited for.
    whole = isinstance(answer, int | np.integer) and not isinstance(answer, bool)
    if not whole or not 0 <= answer < len(candidates.budgets):
        raise PluginFault(
            "policy-nonsense", f"the policy chose {shown(answer)} of {len(candidates.budgets)} candidates"
        )
    return int(answer)


def weigh(gains: Callable[[BudgetCandidates], np.ndarray], candidates: BudgetCandidates) -> np.ndarray:
    """Return the policy's gains over full verification, one finite number a candidate.

    Raises:
        PluginFault: the policy raised, or returned something else.
    """
    try:
        values = gains(candidates)
        if type(values) is not np.ndarray or values.dtype is not _FLOAT64:
            values = np.asarray(values, dtype=np.float64)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised("policy", error) from error
    # No byte of the answers is False, found in half the time that counting them takes.
    if values.shape != candidates.seconds.shape or 0 in np.isfinite(values).tobytes():
        raise PluginFault("policy-nonsense", f"the policy's gains are no finite numbers: {values}")
    return values


def confidences(signal: Signal, scores: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return the signal's confidences, of the shape of ``scores``.

    Raises:
        PluginFault: the signal raised, or returned no tensor of that shape.
    """
    try:
        values = signal.confidences(scores, slots)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised("signal", error) from error
    # A copy would broadcast one row over all requests.
    if getattr(values, "shape", None) != scores.shape:
        raise PluginFault("signal-nonsense", f"the signal returned {type(values).__name__} of another shape")
    if getattr(values, "dtype", None) != scores.dtype:
        found = getattr(values, "dtype", "no dtype")
        raise PluginFault("signal-nonsense", f"the signal returned {type(values).__name__} of {found}")
    return values


def readiness(signal: Signal) -> tuple[bool, str]:
    """Return whether the signal may drive trimming, and why.

    Raises:
        PluginFault: the signal raised, or returned no such pair.
    """
    try:
        answer = signal.ready()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised("signal", error) from error
    if type(answer) is tuple and len(answer) == 2 and type(answer[0]) is bool and type(answer[1]) is str:
        return answer
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], _FLAGS)):
        raise PluginFault("signal-nonsense", f"the signal's readiness is {shown(answer)}")
    ready, why = answer
    return bool(ready), why if type(why) is str else text_of(why)


def learn(signal: Signal, outcome: StepOutcome) -> list[str]:
    """Let the signal learn; return the names of its faults, none when it took the outcome."""
    try:
        signal.learn(outcome)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as in choose
        return [raised("signal", error).name]
    return []


def forget(signal: Signal, slot: int) -> None:
    """Let the signal drop a slot.

    Raises:
        PluginFault: the signal raised.
    """
    try:
        signal.forget(slot)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised("signal", error) from error
