"""How far the confidences of a run can be believed: predicted against observed acceptance, by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from adaverify.blame import blaming_plugins
from adaverify.console import out, say, table
from adaverify_engine import Engine
from adaverify_runtime import PluginManager

Rows = dict[str, list[dict[str, float | int | None]]]


@runtime_checkable
class Reliable(Protocol):
    """A signal that keeps count of how its confidences fared."""

    def reliability(self) -> Mapping[str, Sequence[Mapping[str, float | int | None]]]:
        """Return, for each sampling regime, one row a position: labels, predicted and observed acceptance."""


def reliability_of(engine: Engine, plugins: PluginManager) -> Rows | None:
    """Return the signal's reliability by regime, without regimes that have no labels.

    None where the signal keeps no such count. It is counted over everything the engine has run, warm-up
    included, and each label with the confidence that held when it was counted.

    Raises:
        PluginError: a plugin's signal raised.
    """
    signal = engine.verifier.manager.signal
    if not isinstance(signal, Reliable):
        return None
    with blaming_plugins(plugins):
        found = {regime: [dict(row) for row in rows] for regime, rows in signal.reliability().items()}
    return {regime: rows for regime, rows in found.items() if any(row["labels"] for row in rows)}


def render_reliability(modes: Mapping[str, dict[str, Any]]) -> None:
    """Print one table: the confidences of every mode that verified drafts."""
    rows = [
        (mode, regime, row["position"], row["labels"], row["predicted"], row["observed"], _difference(row))
        for mode, one in modes.items()
        for regime, positions in (one["reliability"] or {}).items()
        for row in positions
    ]
    if rows:
        columns = ("mode", "regime", "position", "labels", "predicted", "observed", "difference")
        out().print(table("Reliability of confidences", columns, rows))
        say(
            "labels: draft tokens that were verified and reached. predicted, observed: share of them "
            "accepted, as the signal foresaw it and as it was.",
            "dim",
        )
    else:
        say("Reliability of confidences: nothing was verified, or the signal keeps no count.")
    out().print()


def _difference(row: Mapping[str, float | int | None]) -> float | None:
    predicted, observed = row["predicted"], row["observed"]
    return None if predicted is None or observed is None else observed - predicted
