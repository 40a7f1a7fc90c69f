"""Prove or refute that a trimming rule is lossless, by exact enumeration of the joint output law (maths 5).

Toy models: a few requests, positions and tokens, every law a table over prefixes. Unsafe rules do not show on
every pair of laws (the live argmax was wrong on 9 of 30), so an audit takes many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

Prefix = tuple[int, ...]
Laws = Mapping[Prefix, np.ndarray]
# Enumeration is exact up to rounding: 3e-16 was the largest distance of a lossless rule.
EXACT = 1e-12


@dataclass(frozen=True, slots=True)
class ToyRequest:
    """Draft and target laws of one request: prefix -> probabilities, for prefixes of 0 .. K tokens.

    The draft law is needed for prefixes up to K - 1 tokens, the target law up to K.
    """

    draft: Laws
    target: Laws


@dataclass(frozen=True, slots=True)
class Revealed:
    """What a rule is shown of one drafted step.

    Attributes:
        confidences: float64 [R, K], 1 - TV of draft and target after the drafted prefix: ``PREFIX``.
        tokens: int64 [R, K], the drafted tokens: a rule that looks at position k's own token is unsafe.
        drawn: float64 [R, K], draft probability of each drawn token: ``DRAWN_TOKEN``.
    """

    confidences: np.ndarray
    tokens: np.ndarray
    drawn: np.ndarray


Rule = Callable[[Revealed], Sequence[int]]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Distances between emitted and target joint laws, one a pair of laws."""

    distances: tuple[float, ...]

    @property
    def largest(self) -> float:
        """Largest total variation distance found."""
        return max(self.distances, default=0.0)

    @property
    def wrong(self) -> int:
        """How many pairs of laws the rule changed."""
        return sum(distance > EXACT for distance in self.distances)

    @property
    def lossless(self) -> bool:
        """Whether the rule changed none."""
        return self.wrong == 0


def emitted_law(
    requests: Sequence[ToyRequest], positions: int, rule: Rule
) -> dict[tuple[Prefix, ...], float]:
    """Return the joint law of the next ``positions + 1`` tokens of all requests under ``rule``.

    Args:
        requests: the toy requests.
        positions: K.
        rule: admitted drafts of each request, 0 .. K, from what it is shown.
    """
    law: dict[tuple[Prefix, ...], float] = {}
    for tokens, weight in joint_drafts(requests, positions):
        admitted = rule(reveal(requests, tokens, positions))
        outputs = [
            _verified(request, drafted, int(count), positions + 1)
            for request, drafted, count in zip(requests, tokens, admitted, strict=True)
        ]
        for joint in product(*(output.items() for output in outputs)):
            key = tuple(sequence for sequence, _ in joint)
            law[key] = law.get(key, 0.0) + weight * float(np.prod([share for _, share in joint]))
    return law


def joint_drafts(
    requests: Sequence[ToyRequest], positions: int
) -> Iterator[tuple[tuple[Prefix, ...], float]]:
    """Yield every combination of K = ``positions`` drafts for all requests, with its probability, if any."""
    for drafts in product(*(list(_drafts(request, positions)) for request in requests)):
        weight = float(np.prod([probability for _, probability in drafts]))
        if weight > 0.0:
            yield tuple(drafted for drafted, _ in drafts), weight


def target_law(requests: Sequence[ToyRequest], length: int) -> dict[tuple[Prefix, ...], float]:
    """Return the joint law of the next ``length`` tokens when nothing is drafted."""
    each = [_continue(request.target, (), length) for request in requests]
    return {
        tuple(sequence for sequence, _ in joint): float(np.prod([share for _, share in joint]))
        for joint in product(*(law.items() for law in each))
    }


def distance(first: Mapping[tuple[Prefix, ...], float], second: Mapping[tuple[Prefix, ...], float]) -> float:
    """Return the total variation distance of two joint laws."""
    return 0.5 * sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys())


def audit(
    rule: Rule, *, requests: int = 2, positions: int = 2, tokens: int = 2, pairs: int = 30, seed: int = 0
) -> AuditReport:
    """Return how far ``rule`` moves the joint law on ``pairs`` random pairs of draft and target laws."""
    generator = np.random.default_rng(seed)
    distances = []
    for _ in range(pairs):
        toys = [random_request(generator, positions, tokens) for _ in range(requests)]
        distances.append(distance(emitted_law(toys, positions, rule), target_law(toys, positions + 1)))
    return AuditReport(tuple(distances))


def random_request(
    generator: np.random.Generator,
    positions: int,
    tokens: int,
    *,
    greedy: bool = False,
    deterministic: bool = False,
) -> ToyRequest:
    """Return a request whose laws are drawn from a flat Dirichlet after every prefix.

    Args:
        generator: of the laws.
        positions: K.
        tokens: size of the vocabulary.
        greedy: the target's laws are one-hot at their largest probability.
        deterministic: the draft's are.
    """
    flat = np.ones(tokens)
    prefixes = [p for length in range(positions + 1) for p in product(range(tokens), repeat=length)]
    draft = {prefix: generator.dirichlet(flat) for prefix in prefixes}
    target = {prefix: generator.dirichlet(flat) for prefix in prefixes}
    return ToyRequest(
        {prefix: _peaked(law) for prefix, law in draft.items()} if deterministic else draft,
        {prefix: _peaked(law) for prefix, law in target.items()} if greedy else target,
    )


def _peaked(law: np.ndarray) -> np.ndarray:
    """Return the one-hot law of the most likely token."""
    return np.eye(len(law))[int(law.argmax())]


def _drafts(request: ToyRequest, positions: int) -> Iterator[tuple[Prefix, float]]:
    size = len(request.draft[()])
    for drafted in product(range(size), repeat=positions):
        steps = [request.draft[drafted[:k]][drafted[k]] for k in range(positions)]
        yield drafted, float(np.prod(steps))


def reveal(requests: Sequence[ToyRequest], tokens: Sequence[Prefix], positions: int) -> Revealed:
    """Return what a rule is shown when ``tokens`` were drafted, K = ``positions`` for each request."""
    confidences = np.zeros((len(requests), positions))
    drawn = np.zeros((len(requests), positions))
    for row, (request, drafted) in enumerate(zip(requests, tokens, strict=True)):
        for k in range(positions):
            draft, target = request.draft[drafted[:k]], request.target[drafted[:k]]
            confidences[row, k] = np.minimum(draft, target).sum()
            drawn[row, k] = draft[drafted[k]]
    return Revealed(confidences, np.array(tokens, dtype=np.int64).reshape(len(requests), positions), drawn)


def _verified(request: ToyRequest, drafted: Prefix, admitted: int, length: int) -> dict[Prefix, float]:
    """Return the law of the emitted tokens of one request, continued from the target up to ``length``."""
    law: dict[Prefix, float] = {}
    reached = 1.0
    for k in range(admitted):
        prefix = drafted[:k]
        draft, target = request.draft[prefix], request.target[prefix]
        accept = min(1.0, target[drafted[k]] / draft[drafted[k]])
        residual = np.maximum(target - draft, 0.0)
        rejected = reached * (1.0 - accept)
        if rejected > 0.0 and residual.sum() > 0.0:
            for token, share in enumerate(residual / residual.sum()):
                _add(law, request.target, (*prefix, token), rejected * float(share), length)
        reached *= accept
    _add(law, request.target, drafted[:admitted], reached, length)
    return law


def _add(law: dict[Prefix, float], target: Laws, prefix: Prefix, weight: float, length: int) -> None:
    if weight > 0.0:
        for sequence, share in _continue(target, prefix, length).items():
            law[sequence] = law.get(sequence, 0.0) + weight * share


def _continue(target: Laws, prefix: Prefix, length: int) -> dict[Prefix, float]:
    law = {prefix: 1.0}
    for _ in range(length - len(prefix)):
        law = {
            (*sequence, token): weight * float(share)
            for sequence, weight in law.items()
            for token, share in enumerate(target[sequence])
        }
    return law
