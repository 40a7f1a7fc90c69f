"""Host-side values of one step: what the planner is told, what it decides, what happened.

Arrays are NumPy and live on the host; nothing here touches a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

from adaverify_contracts import _host
from adaverify_contracts.enums import PlanState
from adaverify_contracts.errors import PlanError

if TYPE_CHECKING:
    import numpy as np


# Arrays of an outcome with one entry a request, and the kind of their dtype.
_ROWS = {
    **dict.fromkeys(("slots", "generations", "drafted", "admitted", "accepted"), "i"),
    "scores": "f",
    "learn": "b",
    "sampled": "b",
}


def _is_duration(seconds: object) -> bool:
    real = type(seconds) is float or (isinstance(seconds, Real) and not isinstance(seconds, bool))
    return real and 0 <= seconds < float("inf")  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest confidences that have already reached the host.

    Attributes:
        step: step that published them.
        slots: int64 [R], request slots in row order.
        generations: int64 [R], the slot generations at publishing time; a reader compares before use.
        confidences: float32 [R, K], conditional acceptance per position, as published.
    """

    step: int
    slots: np.ndarray
    generations: np.ndarray
    confidences: np.ndarray

    def __post_init__(self) -> None:
        _host.same_length(
            "Snapshot",
            {"slots": self.slots, "generations": self.generations, "confidences": self.confidences},
        )


@dataclass(frozen=True, slots=True)
class StepState:
    """What the planner may know about the step it sizes; history only.

    Attributes:
        step: step number, rising by one.
        slots: int64 [R], slots of the decode requests in batch order, each once.
        generations: int64 [R], their generations.
        scheduled: int64 [R], draft tokens actually scheduled for each, 0 .. K.
        emitting: requests that will emit a token: the decode requests and prefills that finish here; at most
            R + other_tokens.
        other_tokens: query tokens of co-scheduled prefill chunks; they cost and do not gain.
        kv_tokens: sum of the decode requests' KV lengths, for the context axis.
        sampled: True when trimming could change what any decode request emits: it is sampled, and not
            accepted by equality.
        sampled_requests: bool [R], which ones those are; None stands for all of them where ``sampled``.
        chunk_limit: largest number of logits rows in one chunk, or None.
    """

    step: int
    slots: np.ndarray
    generations: np.ndarray
    scheduled: np.ndarray
    emitting: int
    other_tokens: int = 0
    kv_tokens: int = 0
    sampled: bool = False
    chunk_limit: int | None = None
    sampled_requests: np.ndarray | None = None
    # Counted once, as the arrays were when this state was made: a plan asks for them many times.
    _drafts: _host.Drafts = field(default=_host.Drafts(0, 0, 0), init=False, repr=False, compare=False)
    _highest: int = field(default=-1, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("slots", "generations", "scheduled"):
            _host.array("StepState", name, getattr(self, name), "i")
        if self.sampled_requests is not None:
            self._check_sampled(self.sampled_requests)
        _host.same_length(
            "StepState", {"slots": self.slots, "generations": self.generations, "scheduled": self.scheduled}
        )
        for name in ("step", "emitting", "other_tokens", "kv_tokens"):
            _host.count("StepState", name, getattr(self, name))
        _host.flag("StepState", "sampled", self.sampled)
        object.__setattr__(self, "_highest", _host.slots("StepState", self.slots))
        object.__setattr__(self, "_drafts", _host.drafts(self.scheduled))
        if self.emitting > self.certain_tokens:
            raise PlanError(
                "StepState.emitting is more than can emit",
                arrived=self.emitting,
                allowed=f"0 .. {self.certain_tokens}: each decode request once, a finishing prefill for a "
                "token of its own",
                remedy="count the decode requests and the prefills that finish in this step",
            )
        if self._drafts.least < 0:
            raise PlanError(
                "StepState.scheduled holds a negative draft count",
                arrived=self._drafts.least,
                allowed="0 .. K for each request",
                remedy="count scheduled drafts from the K in force, never from the configured one",
            )
        if self.chunk_limit is not None and not (_host.is_int(self.chunk_limit) and self.chunk_limit >= 1):
            raise PlanError(
                "StepState.chunk_limit is out of range",
                arrived=self.chunk_limit,
                allowed="None or an int >= 1",
                remedy="pass None when logits are not chunked",
            )

    @property
    def total_scheduled(self) -> int:
        """Scheduled drafts of all requests, as they were when this state was made."""
        return self._drafts.total

    @property
    def least_scheduled(self) -> int:
        """Fewest drafts that a request has, 0 without requests."""
        return self._drafts.least

    @property
    def most_scheduled(self) -> int:
        """Most drafts that a request has, 0 without requests."""
        return self._drafts.most

    @property
    def highest_slot(self) -> int:
        """Highest slot, -1 without requests."""
        return self._highest

    def _check_sampled(self, requests: np.ndarray) -> None:
        _host.array("StepState", "sampled_requests", requests, "b")
        _host.same_length("StepState", {"slots": self.slots, "sampled_requests": requests})
        if _host.any_true(requests) is not self.sampled:
            raise PlanError(
                "StepState.sampled and sampled_requests contradict each other",
                arrived={"sampled": self.sampled, "sampled_requests": int(requests.sum())},
                allowed="sampled exactly where any of sampled_requests is",
                remedy="derive sampled from sampled_requests",
            )

    @property
    def requests(self) -> int:
        """R, decode requests in this step."""
        return len(self.slots)

    @property
    def certain_tokens(self) -> int:
        """T, query tokens that are not drafts: one a decode request, and the prefill tokens."""
        return self.requests + self.other_tokens

    @property
    def max_budget(self) -> int:
        """N = max(0, min(scheduled drafts, chunk limit - R)): the largest budget this step can run."""
        total = self._drafts.total
        return total if self.chunk_limit is None else max(0, min(total, self.chunk_limit - self.requests))


@dataclass(frozen=True, slots=True)
class Plan:
    """How many draft tokens one step verifies, and why. Integers only where ranks must agree.

    Attributes:
        step: step number.
        state: one of ``PlanState``.
        reason: the reason in words.
        budget: B, draft tokens verified in the whole batch.
        scheduled: draft tokens that could have been verified.
        requests: R, decode requests.
        certain_tokens: T.
        tokens: T + B.
        tier: captured token count that executes; equals tokens where no tier applies.
        uniform_query_len: common query length where the host knows that all are equal, else None: nothing is
            trimmed and all requests scheduled the same number of drafts, nothing is verified (1), or there
            is a single request (budget + 1).
        predicted_seconds: modelled step time, None when unpriced.
        predicted_tokens: modelled emitted tokens (bonus tokens included).
        full_seconds: modelled time of verifying everything, None when unpriced.
        full_tokens: modelled emitted tokens of verifying everything.
        lag: steps between the confidences read and this step; None when there were none.
        digest: 64-bit digest of the integers above and of the KV tokens; equal digests mean equal plans
            over equal histories.
    """

    step: int
    state: PlanState
    reason: str
    budget: int
    scheduled: int
    requests: int
    certain_tokens: int
    tokens: int
    tier: int
    uniform_query_len: int | None
    predicted_seconds: float | None
    predicted_tokens: float
    full_seconds: float | None
    full_tokens: float
    lag: int | None
    digest: int

    def __post_init__(self) -> None:
        if not 0 <= self.budget <= self.scheduled:
            raise PlanError(
                "Plan.budget is outside the scheduled drafts",
                arrived=self.budget,
                allowed=f"0 .. {self.scheduled}",
                remedy="clamp to StepState.max_budget before building the plan",
            )
        if self.tokens != self.certain_tokens + self.budget or self.tier < self.tokens:
            raise PlanError(
                "Plan.tokens or Plan.tier does not hold the batch",
                arrived={"tokens": self.tokens, "tier": self.tier},
                allowed=f"tokens = {self.certain_tokens} + {self.budget}, tier >= tokens",
                remedy="price and run the tier that executes",
            )

    @property
    def trimmed(self) -> int:
        """Scheduled draft tokens that this plan does not verify."""
        return self.scheduled - self.budget


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a finished step did, as the engine reports it to ``observe``.

    Attributes:
        step: step number.
        slots: int64 [R]; generations: int64 [R]; in batch order.
        drafted: int64 [R], drafts scheduled; admitted: int64 [R], drafts verified; accepted: int64 [R].
        scores: float32 [R, K], the drafter's raw scores of this step's drafts.
        learn: bool [R]; False keeps a request out of calibration (target-only transforms, user's wish).
        sampled: bool [R]; the request's regime.
        emitted: tokens emitted by the whole step, prefills included.
        seconds: wall time of the step, finite and >= 0, None when it was not measured.
        keys: int64 [R], equal for requests with equal prompts, so that a held-out split keeps them together;
            None where slot and generation have to tell requests apart.
        judged: int64 [R], 0 .. drafted: leading drafts whose fate counts. Those behind an accepted end token
            do not; None where all do.
        host_seconds: of ``seconds``, those in which the host worked instead of waiting for the device, which
            ran the next step meanwhile: no step of as many requests gets shorter, however few tokens it
            verifies. None where the engine cannot tell.
    """

    step: int
    slots: np.ndarray
    generations: np.ndarray
    drafted: np.ndarray
    admitted: np.ndarray
    accepted: np.ndarray
    scores: np.ndarray
    learn: np.ndarray
    sampled: np.ndarray
    emitted: int
    seconds: float | None
    keys: np.ndarray | None = None
    judged: np.ndarray | None = None
    host_seconds: float | None = None
    # Drafted, admitted and accepted drafts of all requests, summed once.
    _totals: tuple[int, int, int] = field(default=(0, 0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = {name: getattr(self, name) for name in _ROWS}
        rows |= {name: value for name in ("keys", "judged") if (value := getattr(self, name)) is not None}
        for name, value in rows.items():
            _host.array("StepOutcome", name, value, _ROWS.get(name, "i"), dims=2 if name == "scores" else 1)
        _host.same_length("StepOutcome", rows)
        _host.count("StepOutcome", "step", self.step)
        drafts, accepted = _host.drafts(self.drafted), int(self.accepted.sum())
        object.__setattr__(self, "_totals", (drafts.total, int(self.admitted.sum()), accepted))
        _host.count("StepOutcome", "emitted", self.emitted, accepted + _host.MOST_REQUESTS)
        _host.slots("StepOutcome", self.slots)
        for name in ("seconds", "host_seconds"):
            value = getattr(self, name)
            if value is not None and not _is_duration(value):
                raise PlanError(
                    f"StepOutcome.{name} is no duration",
                    arrived=value,
                    allowed="a finite number >= 0, or None",
                    remedy="measure with a monotonic clock, or pass None for what was not measured",
                )
        if drafts.most > self.scores.shape[1]:
            raise PlanError(
                "StepOutcome.drafted is more than there are scores",
                arrived=drafts.most,
                allowed=f"0 .. {self.scores.shape[1]}, the columns of scores",
                remedy="report the scores of the drafts that this step scheduled",
            )
        pairs = (("accepted", "admitted"), ("admitted", "drafted"))
        for low, high in pairs if self.judged is None else (*pairs, ("judged", "drafted")):
            counts = getattr(self, low)
            # What is admitted is not negative where it is at least what is accepted, which comes first.
            signed = low != "admitted"
            if _host.any_true(counts > getattr(self, high)) or (signed and _host.any_true(counts < 0)):
                raise PlanError(
                    f"StepOutcome.{low} is not within 0 .. {high}",
                    arrived={low: getattr(self, low).tolist(), high: getattr(self, high).tolist()},
                    allowed=f"0 <= {low} <= {high} for each request",
                    remedy="report what the step verified and accepted, request by request",
                )

    @property
    def total_drafted(self) -> int:
        """Scheduled drafts of all requests, as they were when this outcome was made."""
        return self._totals[0]

    @property
    def total_admitted(self) -> int:
        """Verified drafts of all requests."""
        return self._totals[1]

    @property
    def total_accepted(self) -> int:
        """Accepted drafts of all requests."""
        return self._totals[2]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """What a step did to each decode request, in batch order; one entry a request in every field.

    Attributes:
        keys: what tells requests apart; equal for equal prompts where the engine says so.
        drafted, admitted, accepted: draft tokens scheduled, verified and accepted.
        judged: leading drafts whose fate counts: those behind an accepted end token do not.
        learn: False keeps a request out of calibration.
        sampled: its regime.
        scores: the drafter's K raw scores, rounded to 1e-4; None where one is no finite number.
    """

    keys: tuple[int, ...]
    drafted: tuple[int, ...]
    admitted: tuple[int, ...]
    accepted: tuple[int, ...]
    judged: tuple[int, ...]
    learn: tuple[bool, ...]
    sampled: tuple[bool, ...]
    scores: tuple[tuple[float | None, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of the trace: plan, reason, predicted and realised. Plain values only.

    ``planned`` and ``verified`` are both kept: a difference is an error that ``fallbacks`` names. ``rows`` is
    None where nobody listens, and in records of a version that had none.
    """

    step: int
    state: str
    reason: str
    requests: int
    certain_tokens: int
    scheduled: int
    planned: int
    verified: int
    accepted: int
    emitted: int
    tokens: int
    tier: int
    strategy: str
    predicted_seconds: float | None
    realised_seconds: float | None
    predicted_tokens: float
    realised_tokens: int
    lag: int | None
    digest: str
    fallbacks: tuple[str, ...] = field(default=())
    rows: RequestRows | None = field(default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        # Not asdict, which would visit every score of every request.
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return plain | {"rows": None if self.rows is None else self.rows.as_dict()}
