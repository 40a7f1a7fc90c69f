"""Outcomes with defaults, for signal tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from adaverify_contracts import StepOutcome


def _outcome(
    accepted: list[int],
    admitted: list[int] | int = 4,
    *,
    draft_tokens: int = 4,
    drafted: int | None = None,
    slots: list[int] | None = None,
    generations: list[int] | int = 0,
    scores: np.ndarray | float = 0.0,
    learn: list[bool] | bool = True,
    sampled: list[bool] | bool = False,
) -> StepOutcome:
    rows = len(accepted)
    return StepOutcome(
        step=0,
        slots=np.arange(rows) if slots is None else np.array(slots, np.int64),
        generations=np.broadcast_to(np.array(generations, np.int64), rows),
        drafted=np.full(rows, draft_tokens if drafted is None else drafted, np.int64),
        admitted=np.broadcast_to(np.array(admitted if drafted is None else drafted, np.int64), rows),
        accepted=np.array(accepted, np.int64),
        scores=np.broadcast_to(np.array(scores, np.float32), (rows, draft_tokens)),
        learn=np.broadcast_to(np.array(learn, bool), rows),
        sampled=np.broadcast_to(np.array(sampled, bool), rows),
        emitted=0,
        seconds=None,
    )


@pytest.fixture(scope="session")
def outcome() -> Callable[..., StepOutcome]:
    """Return a builder of step outcomes: everything admitted, greedy, learning, generation 0."""
    return _outcome


@pytest.fixture(scope="session")
def simulate() -> Callable[..., None]:
    """Return a driver that draws scores, accepts with sigmoid(w z + b_k) and feeds a signal."""

    def drive(signal, steps, *, slope=1.0, intercepts=(2.0, 1.0, 0.5, 0.5), rows=8, seed=0, **fixed) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(steps):
            scores = generator.normal(0, 1.5, (rows, 4)).astype(np.float32)
            chance = 1 / (1 + np.exp(-(slope * scores + np.array(intercepts))))
            accepted = np.cumprod(generator.random((rows, 4)) < chance, axis=1).sum(axis=1)
            signal.learn(_outcome(accepted.tolist(), scores=scores, **fixed))

    return drive
