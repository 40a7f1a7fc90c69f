"""Host time of one plan, beside the plain search over every budget that NumPy does in a few lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from adaverify.bench.rows import OURS, time_columns, time_rows
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    BudgetReads,
    Limits,
    Plan,
    PolicyDescriptor,
    Seen,
    StepState,
    WrongValueError,
)
from adaverify_verification import (
    DRAFTER,
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    RatioPolicy,
    VerificationManager,
    make_relay,
)
from adaverify_verification.forecast import LEAST_PAIRS

K = 7
# Steps whose confidences lie in the relay, each to be read in its turn.
DEPTH = 4
AGAIN = "nothing new"
PREPARED = "prepared"
PREPARE = "prepare"
LATE = "prepared, a step late"
# Publications before a plan by late confidences: enough for forecasts of them to differ from what they were.
PAIRS = 2 * LEAST_PAIRS
CONTEXT = 128
REQUESTS = (1, 16, 64, 256)
# Rates are compared: two budgets whose rates tie are both right.
TOLERANCE = 1e-4


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check every plan against the exhaustive search, then time both."""
    cases = [(size, tiered) for size in options.requests or REQUESTS for tiered in (False, True)]
    works = []
    for done, (requests, tiered) in enumerate(cases):
        options.progress(done, 2 * len(cases), f"checking plans for {requests} requests")
        works.append(make_case(options, requests, tiered))
    rows: list[tuple[BenchmarkCell, ...]] = []
    for done, ((requests, tiered), case) in enumerate(zip(cases, works, strict=True)):
        options.progress(len(cases) + done, 2 * len(cases), f"planning for {requests} requests")
        # A plan launches nothing, so there is nothing on the device to time or to capture.
        times = options.timer.time(case.variants, captured=False, before=case.before)
        sizes = "each 8 tokens" if tiered else "none"
        rows += time_rows((requests, sizes), times, "host")
    return BenchmarkResult(
        columns=(BenchmarkColumn("requests"), BenchmarkColumn("tiers"), *time_columns("host")),
        rows=tuple(rows),
        checks=(
            f"{DEPTH * len(cases)} planned budgets have the best rate of an exhaustive search",
            f"{(DEPTH + PAIRS) * len(cases)} plans are the same where their confidences were digested before",
        ),
        data=f"K {K}, {DEPTH} draws of confidences in 0..1, price rising linearly with tokens, no margin",
        cache="warm: the same few steps again and again",
        notes=(
            (
                "ours also reads the relay, ranks integers in a total order, guards, and digests the plan; "
                "the search knows no tiers"
            ),
            f"ours reads other confidences than the plan before it, {AGAIN!r} the same ones once more",
            (
                f"{PREPARED!r}: other confidences, digested before the plan and not timed, as by "
                f"a host that has to wait; {PREPARE!r}: digesting alone, with the copy out of the relay; a "
                "publication runs before each, so that caches are colder than for ours"
            ),
            (
                f"{LATE!r}: prepared, and planned for the step after the one that published, as by a host "
                "that runs ahead of its device: what is left of small batches' confidences is forecast"
            ),
        ),
    )


def price(tokens: np.ndarray) -> np.ndarray:
    """Return the seconds of a step: 20 ms and 1 ms a token."""
    return 0.02 + 0.001 * tokens


def search_budget(confidences: np.ndarray) -> int:
    """Return the budget of the best rate over all budgets, every one executed as it is."""
    survivals = np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]
    requests = len(confidences)
    tokens = requests + np.concatenate([[0.0], np.cumsum(survivals)])
    return int(np.argmax(tokens / price(requests + np.arange(len(tokens)))))


@dataclass(frozen=True, slots=True)
class Case:
    """What is timed of one batch size, by variant, and what is done before a call and not timed."""

    variants: dict[str, Callable[[], object]]
    before: dict[str, Callable[[], object]]


def make_case(options: BenchmarkOptions, requests: int, tiered: bool) -> Case:
    """Return checked plans and the search.

    Raises:
        WrongValueError: a planned budget's rate is not the best there is, or preparing changed one.
    """
    stream, others = (Stream(options, requests, tiered) for _ in range(2))
    late = make_late(options, requests, tiered)
    for _ in range(DEPTH):
        stream.publish()
    for step, confidences in enumerate(stream.drawn):
        found = stream.plan(step)
        require_best(found.budget, confidences, tiered)
        others.publish()
        require_prepared(others, found)
    steps, searched = itertools.cycle(range(DEPTH)), itertools.cycle(stream.drawn)
    return Case(
        {
            OURS: lambda: stream.plan(next(steps)),
            PREPARED: others.plan,
            LATE: late.plan,
            PREPARE: others.manager.prepare,
            AGAIN: lambda: stream.plan(DEPTH - 1),
            "numpy argmax": lambda: search_budget(next(searched)),
        },
        {
            PREPARED: others.publish_and_prepare,
            LATE: late.publish_and_prepare,
            PREPARE: others.publish,
        },
    )


def make_late(options: BenchmarkOptions, requests: int, tiered: bool) -> Stream:
    """Return a stream that plans a step late, with what it takes for forecasts.

    Raises:
        WrongValueError: preparing changes a plan of its.
    """
    stream, others = (Stream(options, requests, tiered, late=1) for _ in range(2))
    for _ in range(PAIRS):
        stream.publish()
        others.publish()
        require_prepared(others, stream.plan())
    return others


class Stream:
    """A manager whose batch of one size publishes drawn confidences, again and again.

    Args:
        options: of the run.
        requests: decode requests.
        tiered: plan for a tier each 8 tokens.
        late: plan so many steps after the one that published.
    """

    def __init__(self, options: BenchmarkOptions, requests: int, tiered: bool, late: int = 0) -> None:
        self._late = late
        self.manager = make_manager(options.device, requests, tiered)
        generator = np.random.default_rng(0)
        self.drawn = [generator.random((requests, K)).astype(np.float32) for _ in range(DEPTH)]
        drawn = (torch.logit(torch.from_numpy(one), eps=1e-6) for one in self.drawn)
        self._scores = itertools.cycle([scores.to(options.device) for scores in drawn])
        self._slots, self._generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
        self._scheduled, self._synchronize = np.full(requests, K), options.timer.synchronize
        self._step = -1

    def publish(self) -> None:
        """Publish the next step's confidences and let them arrive."""
        self._step += 1
        self.manager.publish(self._step, self._slots, self._generations, next(self._scores))
        self._synchronize()

    def publish_and_prepare(self) -> None:
        """Publish the next step's confidences and digest them."""
        self.publish()
        self.manager.prepare()

    def plan(self, step: int | None = None) -> Plan:
        """Plan a step, the one that was published last, or so late after it, when None."""
        requests = len(self._slots)
        # Drafts are a function of the prefix here, so that a step may read its own confidences.
        return self.manager.plan(
            StepState(
                self._step + self._late if step is None else step,
                self._slots,
                self._generations,
                self._scheduled,
                requests,
                kv_tokens=CONTEXT * requests,
            )
        )


def require_prepared(stream: Stream, expected: Plan) -> None:
    """Require that digesting first changes no plan, and leaves nothing to digest.

    Raises:
        WrongValueError: it does.
    """
    new = stream.manager.prepare()
    found = stream.plan()
    if not new or found != expected or stream.manager.prepare():
        raise WrongValueError(
            f"a plan for {expected.requests} requests is another one after prepare, or prepare does not last",
            arrived=found,
            allowed=str(expected),
            remedy="report it with this command; no time was taken",
        )


def make_manager(device: str, requests: int, tiered: bool) -> VerificationManager:
    """Return a manager whose prices are measured at every size, with a tier each 8 tokens where asked."""
    tiers = tuple(range(K + 1, requests * (K + 1) + 1, K + 1)) if tiered else ()
    grid = np.arange(1, requests * (K + 1) + 1)
    points = [
        (int(n), r, CONTEXT, float(seconds))
        for r in {1, requests}
        for n, seconds in zip(grid, price(grid), strict=True)
    ]
    limits = Limits(requests, K, 4096, 64)
    return VerificationManager(
        limits,
        torch.device(device),
        signal=DRAFTER,
        policy=PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
        cost=CostModel(CostTable.from_points(Fingerprint.from_mapping({"bench": 1}), points)),
        tiers=tiers,
        options=ManagerOptions(warmup_steps=0, explore_share=0.0, margin=0.0),
        drafter_seen=Seen.PREFIX,
        drafter_deterministic=True,
        relay=make_relay(limits, device, DEPTH),
    )


def require_best(budget: int, confidences: np.ndarray, tiered: bool) -> None:
    """Require that no budget has a better rate.

    Raises:
        WrongValueError: one has.
    """
    requests = len(confidences)
    survivals = np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]
    tokens = requests + np.concatenate([[0.0], np.cumsum(survivals)])
    executed = requests + np.arange(len(tokens))
    if tiered:
        executed = -(-executed // (K + 1)) * (K + 1)
    rates = tokens / price(executed)
    if not 0 <= budget < len(rates) or abs(rates[budget] / rates.max() - 1.0) > TOLERANCE:
        raise WrongValueError(
            f"the plan for {requests} requests has not the best rate",
            arrived=budget,
            allowed=f"a budget as good as {int(rates.argmax())}, found by exhaustive search",
            remedy="report it with this command; no time was taken",
        )
