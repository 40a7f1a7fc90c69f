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
    make_relay,
)

K = 7
# Steps whose confidences lie in the relay, each to be read in its turn.
DEPTH = 4
AGAIN = "nothing new"
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
    for done, ((requests, tiered), variants) in enumerate(zip(cases, works, strict=True)):
        options.progress(len(cases) + done, 2 * len(cases), f"planning for {requests} requests")
        # A plan launches nothing, so there is nothing on the device to time or to capture.
        times = options.timer.time(variants, captured=False)
        sizes = "each 8 tokens" if tiered else "none"
        rows += time_rows((requests, sizes), times, "host")
    return BenchmarkResult(
        columns=(BenchmarkColumn("requests"), BenchmarkColumn("tiers"), *time_columns("host")),
        rows=tuple(rows),
        checks=(f"{DEPTH * len(cases)} planned budgets have the best rate of an exhaustive search",),
        data=f"K {K}, {DEPTH} draws of confidences in 0..1, price rising linearly with tokens, no margin",
        cache="warm: the same few steps again and again",
        notes=(
            (
                "ours also reads the relay, ranks integers in a total order, guards, and digests the plan; "
                "the search knows no tiers"
            ),
            f"ours reads other confidences than the plan before it, {AGAIN!r} the same ones once more",
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


def make_case(options: BenchmarkOptions, requests: int, tiered: bool) -> dict[str, Callable[[], object]]:
    """Return checked plans and the search, by variant.

    Raises:
        WrongValueError: a planned budget's rate is not the best there is.
    """
    manager = make_manager(options.device, requests, tiered)
    generator = np.random.default_rng(0)
    drawn = [generator.random((requests, K)).astype(np.float32) for _ in range(DEPTH)]
    slots, generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
    scheduled = np.full(requests, K)
    for step, confidences in enumerate(drawn):
        scores = torch.logit(torch.from_numpy(confidences), eps=1e-6).to(options.device)
        manager.publish(step, slots, generations, scores)
    options.timer.synchronize()

    def plan(step: int) -> Plan:
        # Drafts are a function of the prefix here, so that a step may read its own confidences.
        state = StepState(step, slots, generations, scheduled, requests, kv_tokens=CONTEXT * requests)
        return manager.plan(state)

    for step, confidences in enumerate(drawn):
        require_best(plan(step).budget, confidences, tiered)
    steps, searched = itertools.cycle(range(DEPTH)), itertools.cycle(drawn)
    return {
        OURS: lambda: plan(next(steps)),
        AGAIN: lambda: plan(DEPTH - 1),
        "numpy argmax": lambda: search_budget(next(searched)),
    }


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
