"""Host-side values of one step: what the planner is told, what it decides, what happened.

Arrays are NumPy and live on the host; nothing here touches a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING

from adaverify_contracts import _host
from adaverify_contracts._frozen import quick
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


def _require_duration(name: str, seconds: object) -> None:
    if not _is_duration(seconds):
        raise PlanError(
            f"StepOutcome.{name} is no duration",
            arrived=seconds,
            allowed="a finite number >= 0, or None",
            remedy="measure with a monotonic clock, or pass None for what was not measured",
        )


@quick
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
        if not len(self.slots) == len(self.generations) == len(self.confidences):
            rows = {"slots": self.slots, "generations": self.generations, "confidences": self.confidences}
            raise _host.lengths_disagree("Snapshot", rows)


@quick
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
        requests: R, decode requests in this step. This and the following are counted once, as the arrays
            were when this state was made: a plan asks for them many times.
        certain_tokens: T, query tokens that are not drafts: one a decode request, and the prefill tokens.
        max_budget: N = max(0, min(scheduled drafts, chunk limit - R)), the largest budget this step can run.
        total_scheduled: scheduled drafts of all requests.
        least_scheduled: fewest drafts that a request has, 0 without requests.
        most_scheduled: most drafts that a request has, 0 without requests.
        highest_slot: highest slot, -1 without requests.
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
    requests: int = field(init=False, repr=False, compare=False)
    certain_tokens: int = field(init=False, repr=False, compare=False)
    max_budget: int = field(init=False, repr=False, compare=False)
    total_scheduled: int = field(init=False, repr=False, compare=False)
    least_scheduled: int = field(init=False, repr=False, compare=False)
    most_scheduled: int = field(init=False, repr=False, compare=False)
    highest_slot: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        slots, generations, scheduled = self.slots, self.generations, self.scheduled
        alike = _host.are_rows(slots, generations, scheduled)
        if not alike:
            for name in ("slots", "generations", "scheduled"):
                _host.array("StepState", name, getattr(self, name), "i")
        if self.sampled_requests is not None:
            self._check_sampled(self.sampled_requests)
        requests = len(slots)
        if not (alike or requests == len(generations) == len(scheduled)):
            rows = {"slots": slots, "generations": generations, "scheduled": scheduled}
            raise _host.lengths_disagree("StepState", rows)
        if not _host.are_counts(self.step, self.emitting, self.other_tokens, self.kv_tokens):
            for name in ("step", "emitting", "other_tokens", "kv_tokens"):
                _host.count("StepState", name, getattr(self, name))
        if self.sampled is not True and self.sampled is not False:
            _host.flag("StepState", "sampled", self.sampled)
        highest, (total, least, most) = _host.slots("StepState", slots), _host.drafts(scheduled)
        certain_tokens, limit = requests + self.other_tokens, self.chunk_limit
        if self.emitting > certain_tokens:
            raise PlanError(
                "StepState.emitting is more than can emit",
                arrived=self.emitting,
                allowed=f"0 .. {certain_tokens}: each decode request once, a finishing prefill for a "
                "token of its own",
                remedy="count the decode requests and the prefills that finish in this step",
            )
        if least < 0:
            raise PlanError(
                "StepState.scheduled holds a negative draft count",
                arrived=least,
                allowed="0 .. K for each request",
                remedy="count scheduled drafts from the K in force, never from the configured one",
            )
        if limit is not None and not (_host.is_int(limit) and limit >= 1):
            raise PlanError(
                "StepState.chunk_limit is out of range",
                arrived=limit,
                allowed="None or an int >= 1",
                remedy="pass None when logits are not chunked",
            )
        most_drafts = total if limit is None else max(0, min(total, limit - requests))
        # Still open; see quick.
        self.requests, self.certain_tokens, self.max_budget = requests, certain_tokens, most_drafts  # type: ignore[misc]
        self.total_scheduled, self.least_scheduled, self.most_scheduled = total, least, most  # type: ignore[misc]
        self.highest_slot = highest  # type: ignore[misc]

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


@quick
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


@quick
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
    _totals: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_arrays()
        _host.count("StepOutcome", "step", self.step)
        drafts, accepted = _host.drafts(self.drafted), _host.total(self.accepted)
        # Still open; see quick.
        self._totals = (drafts.total, _host.total(self.admitted), accepted)  # type: ignore[misc]
        _host.count("StepOutcome", "emitted", self.emitted, accepted + _host.MOST_REQUESTS)
        _host.slots("StepOutcome", self.slots)
        if self.seconds is not None:
            _require_duration("seconds", self.seconds)
        if self.host_seconds is not None:
            _require_duration("host_seconds", self.host_seconds)
        if drafts.most > self.scores.shape[1]:
            raise PlanError(
                "StepOutcome.drafted is more than there are scores",
                arrived=drafts.most,
                allowed=f"0 .. {self.scores.shape[1]}, the columns of scores",
                remedy="report the scores of the drafts that this step scheduled",
            )
        self._check_counts()

    def _check_arrays(self) -> None:
        integers = [self.slots, self.generations, self.drafted, self.admitted, self.accepted]
        if self.keys is not None:
            integers.append(self.keys)
        if self.judged is not None:
            integers.append(self.judged)
        if _host.are_usual(integers, (self.learn, self.sampled), self.scores):
            return
        rows = {name: getattr(self, name) for name in _ROWS}
        rows |= {name: value for name in ("keys", "judged") if (value := getattr(self, name)) is not None}
        for name, value in rows.items():
            _host.array("StepOutcome", name, value, _ROWS.get(name, "i"), dims=2 if name == "scores" else 1)
        _host.same_length("StepOutcome", rows)

    def _check_counts(self) -> None:
        """Require 0 <= accepted <= admitted <= drafted, and the same of judged drafts."""
        accepted, admitted, drafted, judged = self.accepted, self.admitted, self.drafted, self.judged
        # What is admitted is not negative where it is at least what is accepted, which comes first.
        if _host.any_true(accepted > admitted) or _host.any_true(accepted < 0):
            raise self._miscounted("accepted", "admitted")
        if _host.any_true(admitted > drafted):
            raise self._miscounted("admitted", "drafted")
        if judged is not None and (_host.any_true(judged > drafted) or _host.any_true(judged < 0)):
            raise self._miscounted("judged", "drafted")

    def _miscounted(self, low: str, high: str) -> PlanError:
        return PlanError(
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
