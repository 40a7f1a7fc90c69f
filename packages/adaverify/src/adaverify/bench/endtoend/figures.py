"""Stage ``plot``: pictures of what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaverify.bench.endtoend.places import CAPTURE, CURVE, PLANNING, THROUGHPUT
from adaverify.bench.endtoend.store import Store
from adaverify_replay.arm_plots import plot_arms, plot_capture, plot_planning, plot_tiers


def draw(store: Store, folder: Path) -> list[Path]:
    """Write a picture of each stage that is kept, with what it was measured on; returns the files.

    Raises:
        AdaverifyError: matplotlib is not installed, or a file cannot be written.
    """
    drawn = []
    if arms := _by_requests(store.stage("arms")):
        shown, words = {requests: one["arms"] for requests, one in arms.items()}, caption(store, "arms")
        drawn.append(plot_arms(shown, folder / THROUGHPUT, words))
        drawn.append(plot_planning(shown, folder / PLANNING, words))
    if curves := _by_requests(store.stage("curve")):
        points = {
            requests: [(point["tokens"], point["seconds"]) for point in one["points"]]
            for requests, one in curves.items()
        }
        drawn.append(plot_tiers(points, folder / CURVE, caption(store, "curve")))
    if captures := _by_requests(store.stage("capture")):
        drawn.append(plot_capture(captures, folder / CAPTURE, caption(store, "capture")))
    return drawn


def caption(store: Store, stage: str) -> str:
    """Return what a stage was measured on, in one line: device, model, context, records, rounds."""
    known = store.as_dict()["identity"]
    records, model = known.get("records", {}), known.get("model", {})
    counts = sorted({str(one.get("rounds", "not recorded")) for one in store.stage(stage).values()})
    parts = (
        str(known.get("device")),
        f"torch {known.get('torch')}",
        f"context {known.get('context')}",
        f"records of {records.get('model')} with {records.get('drafter')}",
        f"rounds: {', '.join(counts)}",
        f"model: {', '.join(f'{name} {value}' for name, value in model.items())}",
    )
    return "; ".join(parts)


def _by_requests(stage: Mapping[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {int(case): stage[case] for case in sorted(stage, key=int)}
