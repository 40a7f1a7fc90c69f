"""Host time of one plan, beside the plain search over every budget that NumPy does in a few lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable

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
)

K = 7
CONTEXT = 128
REQUESTS = (1, 16, 64, 256)
# Rates are compared: two budgets whose rates tie are both right.
TOLERANCE = 1e-4


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check every plan against the exhaustive search, then time both."""
    cases = [(size, tiered) for size in options.requests or REQUESTS for tiered in (False, True)]
    works = []
    for done, (requests, tiered) in enumerate(cases):
        options.progress(done, 2 * len(cases), f"checking a plan for {requests} requests")
        works.append(make_case(options, requests, tiered))
    rows: list[tuple[BenchmarkCell, ...]] = []
    for done, ((requests, tiered), (plan, search)) in enumerate(zip(cases, works, strict=True)):
        options.progress(len(cases) + done, 2 * len(cases), f"planning for {requests} requests")
        # A plan launches nothing, so there is nothing on the device to time or to capture.
        times = options.timer.time({OURS: plan, "numpy argmax": search}, captured=False)
        sizes = "each 8 tokens" if tiered else "none"
        rows += time_rows((requests, sizes), times, "host")
    return BenchmarkResult(
        columns=(BenchmarkColumn("requests"), BenchmarkColumn("tiers"), *time_columns("host")),
        rows=tuple(rows),
        checks=(f"{len(cases)} planned budgets have the best rate of an exhaustive search",),
        data=f"K {K}, confidences uniform in 0..1 drawn once, price rising linearly with tokens, no margin",
        cache="warm: the same confidences in every step",
        notes=(
            (
                "ours also reads the relay, ranks integers in a total order, guards, and digests the plan; "
                "the search knows no tiers"
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


def make_case(
    options: BenchmarkOptions, requests: int, tiered: bool
) -> tuple[Callable[[], Plan], Callable[[], int]]:
    """Return a checked plan and the search.

    Raises:
        WrongValueError: the planned budget's rate is not the best there is.
    """
    tiers = tuple(range(K + 1, requests * (K + 1) + 1, K + 1)) if tiered else ()
    grid = np.arange(1, requests * (K + 1) + 1)
    points = [
        (int(n), r, CONTEXT, float(seconds))
        for r in {1, requests}
        for n, seconds in zip(grid, price(grid), strict=True)
    ]
    manager = VerificationManager(
        Limits(requests, K, 4096, 64),
        torch.device(options.device),
        signal=DRAFTER,
        policy=PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
        cost=CostModel(CostTable.from_points(Fingerprint.from_mapping({"bench": 1}), points)),
        tiers=tiers,
        options=ManagerOptions(warmup_steps=0, explore_share=0.0, margin=0.0),
        drafter_seen=Seen.PREFIX,
        drafter_deterministic=True,
    )
    confidences = np.random.default_rng(0).random((requests, K)).astype(np.float32)
    slots, generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
    scheduled = np.full(requests, K)
    scores = torch.logit(torch.from_numpy(confidences), eps=1e-6).to(options.device)
    manager.publish(0, slots, generations, scores)
    options.timer.synchronize()
    steps = itertools.count()

    def plan() -> Plan:
        state = StepState(next(steps), slots, generations, scheduled, requests, kv_tokens=CONTEXT * requests)
        return manager.plan(state)

    survivals = np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]
    tokens = requests + np.concatenate([[0.0], np.cumsum(survivals)])
    executed = requests + np.arange(len(tokens))
    if tiered:
        executed = -(-executed // (K + 1)) * (K + 1)
    rates = tokens / price(executed)
    budget = plan().budget
    if not 0 <= budget < len(rates) or abs(rates[budget] / rates.max() - 1.0) > TOLERANCE:
        raise WrongValueError(
            f"the plan for {requests} requests has not the best rate",
            arrived=budget,
            allowed=f"a budget as good as {int(rates.argmax())}, found by exhaustive search",
            remedy="report it with this command; no time was taken",
        )
    return plan, lambda: search_budget(confidences)
