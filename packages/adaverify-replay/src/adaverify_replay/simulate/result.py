"""What one arm did in one simulated run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from adaverify_contracts import Plan, StepOutcome


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Totals of the steps that count; a ratio without a denominator is None, never 0.

    Attributes:
        arm: its name; requests: R.
        steps: steps counted.
        tokens: tokens emitted in them.
        seconds: time that the cost table gives them.
        drafted, verified, accepted: drafts, in all.
        executed: query tokens that executed, padding included.
        states: steps by plan state; empty for the oracle, which has no plan.
        mean_lag: steps between confidences and the budget that read them, over the steps that read any.
        counters: fallbacks that the manager counted, by name.
    """

    arm: str
    requests: int
    steps: int
    tokens: int
    seconds: float
    drafted: int
    verified: int
    accepted: int
    executed: int
    states: Mapping[str, int]
    mean_lag: float | None
    counters: Mapping[str, int]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all requests together by seconds."""
        return self.tokens / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step, drafting included."""
        return self.seconds / self.steps

    @property
    def token_seconds(self) -> float:
        """Mean seconds from one token of a request to its next."""
        return self.seconds * self.requests / self.tokens

    @property
    def accepted_length(self) -> float:
        """Accepted drafts and the bonus token, per request and step."""
        return self.tokens / (self.steps * self.requests)

    @property
    def mean_budget(self) -> float:
        """Drafts verified in a step, of all requests together."""
        return self.verified / self.steps

    @property
    def wasted(self) -> int:
        """Drafts verified and not accepted."""
        return self.verified - self.accepted

    @property
    def wasted_share(self) -> float | None:
        """Share of the verified drafts that was not accepted."""
        return self.wasted / self.verified if self.verified else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary, ratios included."""
        ratios = (
            "tokens_per_second",
            "step_seconds",
            "token_seconds",
            "accepted_length",
            "mean_budget",
            "wasted_share",
        )
        return {**asdict(self), "wasted": self.wasted, **{name: getattr(self, name) for name in ratios}}


@dataclass(slots=True)
class Tally:
    """Counts the steps of one arm; ``result`` returns what came of them."""

    arm: str
    requests: int
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    executed: int = 0
    states: Counter[str] = field(default_factory=Counter)
    lags: list[int] = field(default_factory=list)

    def count(self, outcome: StepOutcome, plan: Plan | None, executed: int, seconds: float) -> None:
        """Count one step, with the query tokens that executed and the time it took."""
        self.steps += 1
        self.tokens += outcome.emitted
        self.seconds += seconds
        self.drafted += int(outcome.drafted.sum())
        self.verified += int(outcome.admitted.sum())
        self.accepted += int(outcome.accepted.sum())
        self.executed += executed
        if plan is not None:
            self.states[plan.state] += 1
            if plan.lag is not None:
                self.lags.append(plan.lag)

    def result(self, counters: Mapping[str, int]) -> ArmResult:
        """Return the totals."""
        return ArmResult(
            arm=self.arm,
            requests=self.requests,
            steps=self.steps,
            tokens=self.tokens,
            seconds=self.seconds,
            drafted=self.drafted,
            verified=self.verified,
            accepted=self.accepted,
            executed=self.executed,
            states=dict(sorted(self.states.items())),
            mean_lag=sum(self.lags) / len(self.lags) if self.lags else None,
            counters=dict(sorted(counters.items())),
        )
