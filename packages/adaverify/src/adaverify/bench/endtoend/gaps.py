"""How long the device is idle between steps, by its own clock and without a profiler."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from adaverify.bench.endtoend.arms import Adaptive, OurSteps
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.proof import PROVEN, STEPS
from adaverify.bench.endtoend.rounds import SETTLE, Seen, check_arm, launched, run_round
from adaverify.bench.endtoend.stamps import MODEL_BEGINS, MODEL_ENDS, STEP_BEGINS, STEP_ENDS, Stamps
from adaverify_verification import CostTable

FEW = 8
"""Steps that count on a CPU, where only the path is looked at."""


def measure_gaps(deck: Deck, table: CostTable) -> dict[str, Any] | None:
    """Capture all steps again with marks at their ends, and time what lies between 100 adaptive steps.

    A step is one graph, whose kernels nothing on the host can keep apart: what the host can delay lies
    between the last mark of one replay and the first of the next. Copies of results and inputs are there too.

    Returns:
        Microseconds: median, 95th percentile and longest of those stretches; the time from the first mark to
        the last, to the model and from the model; and what launching a graph takes on the host. None on an
        accelerator at sizes other than ``PROVEN``.

    Raises:
        WrongValueError: a step is not what the records say.
    """
    if deck.ground.kind == "cuda" and deck.requests not in PROVEN:
        return None
    ground, requests = deck.ground, deck.requests
    count = STEPS if ground.kind == "cuda" else FEW
    stamps = Stamps(ground.device, launched(OurSteps.ahead, count), whole=True)
    own = Deck(ground, requests, context=deck.context, stamps=stamps)
    try:
        own.price(table)
        steps = OurSteps(own, Adaptive(own))
        check_arm("adaptive, marked", steps, ground.text, ground.text.starts(requests, 0))
        run_round(steps, ground.text.starts(requests, 1), least=count)
        launches: list[float] = []

        def inspect(_: Seen) -> None:
            launches.append(1e6 * own.flight.launch_seconds)

        stamps.clear()
        run_round(steps, ground.text.starts(requests, 2), least=count, inspect=inspect)
        return {"steps": count, **_between(stamps, count), "launch_us": median(launches[SETTLE:])}
    finally:
        own.close()


def _between(stamps: Stamps, count: int) -> dict[str, float]:
    """Return what lies between and inside the ``count`` steps after the first few."""
    counted = slice(SETTLE, SETTLE + count)
    begins, ends = stamps.read(STEP_BEGINS), stamps.read(STEP_ENDS)
    idle = (begins[1:] - ends[:-1])[counted]
    return {
        "gap_us": float(np.median(idle)),
        "gap_us_p95": float(np.quantile(idle, 0.95)),
        "longest_gap_us": float(idle.max()),
        "inside_us": float(np.median((ends - begins)[counted])),
        "before_model_us": float(np.median((stamps.read(MODEL_BEGINS) - begins)[counted])),
        "behind_model_us": float(np.median((ends - stamps.read(MODEL_ENDS))[counted])),
    }
