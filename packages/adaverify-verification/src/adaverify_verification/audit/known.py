"""Violations that are known to the last digit (maths section 5.3, M4 to M8), enumerated anew at every audit.

Each comes with a cure on the same laws. An auditor that did not find the first, or found fault with the
second, would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np

from adaverify_contracts import BudgetCandidates
from adaverify_verification.audit.enumeration import (
    EXACT,
    Laws,
    Prefix,
    Revealed,
    Rule,
    ToyRequest,
    distance,
    emitted_law,
    target_law,
)
from adaverify_verification.candidates import admit
from adaverify_verification.policies import RatioPolicy
from adaverify_verification.quantise import scores

A, B = 0, 1
Joint = Mapping[tuple[Prefix, ...], float]


@dataclass(frozen=True, slots=True)
class KnownViolation:
    """One unsafe rule, what it is known to emit, and what the enumeration found.

    Attributes:
        case: of the maths notes.
        rule: the unsafe rule, in words.
        expected, found: probabilities by name.
        target: the same probabilities of the target alone.
        moved: total variation of the emitted joint law from the target's.
        cure: the safe rule, in words; cured: its total variation.
    """

    case: str
    rule: str
    expected: dict[str, float]
    found: dict[str, float]
    target: dict[str, float]
    moved: float
    cure: str
    cured: float

    @property
    def reproduced(self) -> bool:
        """Whether the numbers are the known ones and the cure moves nothing."""
        same = all(abs(self.found[name] - value) < EXACT for name, value in self.expected.items())
        return same and self.moved > EXACT and self.cured < EXACT

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {**asdict(self), "reproduced": self.reproduced}


def known_violations() -> tuple[KnownViolation, ...]:
    """Enumerate M4 to M8; takes milliseconds."""
    return (_m4(), _m5(), _m6(), _m7(), _m8())


def live_argmax(seconds: Sequence[float]) -> Rule:
    """Return the rule that takes the best ratio of live values over all budgets: unsafe on a staircase.

    Args:
        seconds: of a step by budget, 0 .. R K.
    """

    def rule(shown: Revealed) -> list[int]:
        ranked = np.sort(np.cumprod(shown.confidences, axis=1).ravel())[::-1]
        tokens = len(shown.confidences) + np.concatenate([[0.0], np.cumsum(ranked)])
        candidates = BudgetCandidates(np.arange(len(tokens)), tokens, np.array(seconds), None)
        return top(shown, RatioPolicy().choose(candidates))

    return rule


def first_descent(seconds: Sequence[float]) -> Rule:
    """Return the rule that stops at the first budget that is worse than the one before: a frontier rule."""

    def rule(shown: Revealed) -> list[int]:
        ranked = np.sort(np.cumprod(shown.confidences, axis=1).ravel())[::-1]
        tokens = len(shown.confidences) + np.concatenate([[0.0], np.cumsum(ranked)])
        theta = tokens / np.array(seconds)
        worse = np.flatnonzero(np.diff(theta) <= 0)
        return top(shown, int(worse[0]) if len(worse) else len(theta) - 1)

    return rule


def top(shown: Revealed, budget: int) -> list[int]:
    """Return the admitted drafts of the ``budget`` largest live survivals."""
    confidences = shown.confidences.astype(np.float32)
    chosen = admit(scores(confidences), np.full(len(confidences), confidences.shape[1]), budget)
    return [int(count) for count in chosen]


def constant(law: Sequence[float], positions: int) -> dict[Prefix, np.ndarray]:
    """Return one law for every prefix of 0 .. ``positions`` tokens."""
    prefixes = (p for length in range(positions + 1) for p in product(range(len(law)), repeat=length))
    return {prefix: np.array(law) for prefix in prefixes}


def shared_noise_law(draft: Laws, target: Laws, verify: Callable[[int], bool], *, keyed: bool) -> Joint:
    """Return the law of one token when draft and target are drawn by inverse CDF with the same noise.

    Args:
        draft, target: laws of the empty prefix.
        verify: whether a drafted token is verified, that is, whether the target's token of this noise is
            emitted.
        keyed: whether a token that is not verified is drawn with the same noise (its key is request and
            position) or with new noise.
    """
    cumulated = [np.append(np.cumsum(one[()])[:-1], 1.0) for one in (draft, target)]
    edges = np.unique(np.concatenate([[0.0], *cumulated]))
    law: dict[tuple[Prefix, ...], float] = {}
    for low, high in pairwise(edges.tolist()):
        at = (low + high) / 2
        x, y = (int(np.searchsorted(one, at, side="right")) for one in cumulated)
        shares = np.eye(len(target[()]))[y] if keyed or verify(x) else target[()]
        for token, share in enumerate(shares):
            law[((token,),)] = law.get(((token,),), 0.0) + (high - low) * float(share)
    return law


def _m4() -> KnownViolation:
    """Theta is 1.0, 0.9, 0.81 + 0.36 c_2: verifies two after A and none after B."""
    toys, seconds = [_fork(0.0)], (1.0, 2.0, 1.0 / 0.45)
    return _case(
        "M4",
        "live argmax over a staircase",
        toys,
        live_argmax(seconds),
        {"P(A)": 0.85, "P(B)": 0.15},
        "first descent on the same values",
        first_descent(seconds),
    )


def _m5() -> KnownViolation:
    """Price 1 + 0.805 n, full unless trimming is 4 % better: stays full after A, trims to 0 after B."""

    def gain(shown: Revealed) -> list[int]:
        survivals = np.cumprod(shown.confidences[0])
        theta = (1.0 + np.concatenate([[0.0], np.cumsum(survivals)])) / (1.0 + 0.805 * np.arange(3))
        best = int(np.argmax(theta))
        return [best if theta[best] > 1.04 * theta[2] else 2]

    return _case(
        "M5",
        "minimum gain over full verification on live values",
        [_fork(0.2)],
        gain,
        {"P(A)": 0.85, "P(B)": 0.15},
        "the argmax without a minimum gain, its price being affine",
        live_argmax((1.0, 1.805, 2.61)),
    )


def _m6() -> KnownViolation:
    toys = [ToyRequest(constant((0.6, 0.4), 1), constant((0.4, 0.6), 1))]
    return _case(
        "M6",
        "verify where the drawn token's own probability is at least 0.6",
        toys,
        lambda shown: [int(shown.drawn[0, 0] >= 0.6)],
        {"P(A)": 0.56},
        "verify where the draft's largest probability is at least 0.6",
        lambda _: [int(max(toys[0].draft[()]) >= 0.6)],
    )


def _m7() -> KnownViolation:
    even = constant((0.5, 0.5), 0)

    def verify(token: int) -> bool:
        return token == A

    want = target_law([ToyRequest(even, even)], 1)
    found = shared_noise_law(even, even, verify, keyed=False)
    return KnownViolation(
        case="M7",
        rule="verify A alone, draft and target sharing noise that is drawn anew where nothing is verified",
        expected={"P(A)": 0.75},
        found=_first(found, ("P(A)",)),
        target=_first(want, ("P(A)",)),
        moved=distance(found, want),
        cure="noise keyed by request and position, the same whatever is verified",
        cured=distance(shared_noise_law(even, even, verify, keyed=True), want),
    )


def _m8() -> KnownViolation:
    toys = [ToyRequest(constant((0.5, 0.5), 1), constant((0.5, 0.5), 1)) for _ in range(2)]
    return _case(
        "M8",
        "admit each request if the other drew A: right one by one, wrong together",
        toys,
        lambda shown: [int(shown.tokens[1, 0] == A), int(shown.tokens[0, 0] == A)],
        {"P(AA)": 0.3125, "P(BB)": 0.3125, "P(AB)": 0.1875, "P(BA)": 0.1875},
        "admit the first always, the second if the first drew A",
        lambda shown: [1, int(shown.tokens[0, 0] == A)],
    )


def _fork(second_after_b: float) -> ToyRequest:
    """Return p_t = (0.7, 0.3), p_d = (0.5, 0.5); the second confidence is 1 after A and as given after B."""
    even = np.array([0.5, 0.5])
    draft = {**constant((0.5, 0.5), 2), (B,): np.array([0.0, 1.0])}
    target = {**constant((0.5, 0.5), 2), (): np.array([0.7, 0.3]), (A,): even}
    return ToyRequest(draft, {**target, (B,): np.array([1.0 - second_after_b, second_after_b])})


def _case(
    case: str,
    rule: str,
    toys: Sequence[ToyRequest],
    unsafe: Rule,
    expected: dict[str, float],
    cure: str,
    safe: Rule,
) -> KnownViolation:
    positions = max(len(prefix) for prefix in toys[0].target)
    want = target_law(toys, positions + 1)
    found = emitted_law(toys, positions, unsafe)
    return KnownViolation(
        case=case,
        rule=rule,
        expected=expected,
        found=_first(found, tuple(expected)),
        target=_first(want, tuple(expected)),
        moved=distance(found, want),
        cure=cure,
        cured=distance(emitted_law(toys, positions, safe), want),
    )


def _first(law: Joint, names: tuple[str, ...]) -> dict[str, float]:
    """Return the probabilities that the first tokens of all requests are those of each name, as in P(AB)."""
    totals = dict.fromkeys(names, 0.0)
    for sequences, share in law.items():
        name = "P(" + "".join("AB"[sequence[0]] for sequence in sequences) + ")"
        if name in totals:
            totals[name] += share
    return totals
