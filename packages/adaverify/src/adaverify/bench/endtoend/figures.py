"""Stage ``plot``: pictures of what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaverify.bench.endtoend.places import CAPTURE, CURVE, PLANNING, THROUGHPUT
from adaverify.bench.endtoend.store import Store
from adaverify_replay.arm_plots import plot_arms, plot_capture, plot_planning, plot_tiers


def draw(store: Store, folder: Path) -> list[Path]:
    """Write a picture of each stage that is kept; returns the files.

    Raises:
        AdaverifyError: matplotlib is not installed.
    """
    drawn = []
    if arms := _by_requests(store.stage("arms")):
        shown = {requests: one["arms"] for requests, one in arms.items()}
        drawn.append(plot_arms(shown, folder / THROUGHPUT))
        drawn.append(plot_planning(shown, folder / PLANNING))
    if curves := _by_requests(store.stage("curve")):
        points = {
            requests: [(point["tokens"], point["seconds"]) for point in one["points"]]
            for requests, one in curves.items()
        }
        drawn.append(plot_tiers(points, folder / CURVE))
    if captures := _by_requests(store.stage("capture")):
        drawn.append(plot_capture(captures, folder / CAPTURE))
    return drawn


def _by_requests(stage: Mapping[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {int(case): stage[case] for case in sorted(stage, key=int)}
