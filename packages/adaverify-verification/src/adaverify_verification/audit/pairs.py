"""A signal and a policy audited: what the contract says, what is served, what the rule does if trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify_contracts import PolicyDescriptor, Seen, SignalDescriptor
from adaverify_verification.audit.enumeration import (
    AuditReport,
    ToyRequest,
    distance,
    emitted_law,
    joint_drafts,
    random_request,
    reveal,
    target_law,
)
from adaverify_verification.audit.managed import ManagedRule, Setup, trusting
from adaverify_verification.lossless import effective_seen, verdict

REQUESTS, POSITIONS, TOKENS = 2, 2, 2
PAIRS = 12
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PairReport:
    """One signal with one policy, under scores that have seen ``scores``.

    Attributes:
        signal, policy: names.
        scores: what the toy drafter's scores have seen, and declare.
        allowed: whether the contract lets the pair trim sampled requests; reason: why, in words.
        served: what the manager does with it; a downgrade included.
        trimmed: share of the enumerated combinations of drafts that were verified in part.
        trusted: the same pair with declarations that are taken for safe; None where they are safe already.
        counters: fallbacks that the manager counted, a plugin's failures among them.
    """

    signal: str
    policy: str
    scores: str
    allowed: bool
    reason: str
    served: AuditReport
    trimmed: float
    trusted: AuditReport | None
    counters: dict[str, int]

    @property
    def lossless(self) -> bool:
        """Whether the pair, as it is served, keeps the target's joint law on every toy."""
        return self.served.lossless

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        known = {name: getattr(self, name) for name in ("signal", "policy", "scores", "allowed", "reason")}
        return {
            **known,
            "lossless": self.lossless,
            "served": _summary(self.served),
            "trimmed": self.trimmed,
            "trusted": None if self.trusted is None else _summary(self.trusted),
            "counters": self.counters,
        }


def audit_pair(
    signal: SignalDescriptor,
    policy: PolicyDescriptor,
    *,
    scores: Seen = Seen.PREFIX,
    deterministic: bool = False,
    pairs: int = PAIRS,
    seed: int = 0,
    progress: Progress | None = None,
) -> PairReport:
    """Enumerate the joint output law of one signal and policy under the real manager.

    Args:
        signal: as a plugin registers it; its factory is called once a toy.
        policy: as a plugin registers it.
        scores: what the drafter's scores have seen. They declare it truly; a signal or a policy that declares
            less than it does is what the enumeration finds.
        deterministic: drafts are a function of the prefix.
        pairs: toys, each of other laws, prices and history; unsafe rules do not show on all of them.
        seed: of the toys.
        progress: called as ``progress(done, total)``.

    Raises:
        LimitsError, CalibrationError, ...: whatever a plugin's factory raises.
    """
    found = verdict(
        effective_seen(signal, scores), policy.reads, drafter_deterministic=deterministic, sampled=True
    )
    served: list[float] = []
    trusted: list[float] = []
    trimmed = shown = 0
    counters: Counter[str] = Counter()
    for index, setup in enumerate(setups(pairs, seed, scores, deterministic=deterministic)):
        rule = ManagedRule(signal, policy, setup, seed=index)
        served.append(_moved(setup, rule))
        trimmed, shown = trimmed + rule.trimmed, shown + rule.shown
        counters.update(rule.counters)
        if not found.allowed:
            trusted.append(_moved(setup, ManagedRule(*trusting(signal, policy, setup), seed=index)))
        if progress is not None:
            progress(index + 1, pairs)
    return PairReport(
        signal=signal.name,
        policy=policy.name,
        scores=scores.name,
        allowed=found.allowed,
        reason=found.reason,
        served=AuditReport(tuple(served)),
        trimmed=trimmed / shown if shown else 0.0,
        trusted=None if found.allowed else AuditReport(tuple(trusted)),
        counters=dict(counters),
    )


def setups(pairs: int, seed: int, scores: Seen, *, deterministic: bool = False) -> Iterator[Setup]:
    """Yield toys: random laws, three shapes of prices, with tiers and without, some with a greedy mate."""
    generator = np.random.default_rng(seed)
    for index in range(pairs):
        greedy = (index % 4 == 3, False)
        requests = tuple(
            random_request(generator, POSITIONS, TOKENS, greedy=one, deterministic=deterministic)
            for one in greedy
        )
        tiers = (*sorted(generator.choice(np.arange(2, 6), 2, replace=False).tolist()), 6)
        yield Setup(
            requests=requests,
            greedy=greedy,
            positions=POSITIONS,
            scores=scores,
            declared=scores,
            deterministic=deterministic,
            prices=_prices(_PRICES[index % len(_PRICES)](_expected(requests), generator)),
            tiers=tiers if index % 2 else (),
        )


def _expected(requests: tuple[ToyRequest, ...]) -> np.ndarray:
    """Return expected tokens of each budget, float64 [R K + 1], under perfect confidences."""
    total = np.zeros(REQUESTS * POSITIONS + 1)
    for tokens, weight in joint_drafts(requests, POSITIONS):
        survivals = np.cumprod(reveal(requests, tokens, POSITIONS).confidences, axis=1)
        ranked = np.sort(survivals.ravel())[::-1]
        total += weight * (REQUESTS + np.concatenate([[0.0], np.cumsum(ranked)]))
    return total


def _level(expected: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Every budget is worth about the same, so that live values decide between all of them."""
    return expected * generator.uniform(0.97, 1.03, len(expected))


def _landings(expected: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Risers in front of flat landings: a budget pays only together with the next one (maths M4)."""
    prices = expected * generator.uniform(0.97, 1.03, len(expected))
    prices[1::2] = prices[2::2]
    return prices


def _knee(expected: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Cheap up to some drafts and dear beyond: that many are verified, whatever the signal says."""
    budgets = np.arange(len(expected))
    beyond = budgets > generator.integers(1, len(expected) - 1)
    return expected[0] * (1.0 + 0.02 * budgets) * np.where(beyond, generator.uniform(2.0, 3.0), 1.0)


_PRICES = (_knee, _landings, _level)


def _prices(expected: np.ndarray) -> tuple[float, ...]:
    """Return prices of 1 .. R (K + 1) tokens, never falling; a step without drafts has R tokens."""
    rising = np.maximum.accumulate(np.concatenate([np.full(REQUESTS - 1, expected[0]), expected]))
    return tuple(float(price) for price in rising)


def _moved(setup: Setup, rule: ManagedRule) -> float:
    emitted = emitted_law(setup.requests, setup.positions, rule)
    return distance(emitted, target_law(setup.requests, setup.positions + 1))


def _summary(report: AuditReport) -> dict[str, Any]:
    return {"largest": report.largest, "wrong": report.wrong, "toys": len(report.distances)}
