"""Rows, checks and notes of the whole benchmark from what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.origins import COLUMNS, Case, Origin, recorded
from adaverify.bench.endtoend.row_costs import row_cost_facts
from adaverify.bench.endtoend.said import checks_of, data_of, notes_of
from adaverify.bench.endtoend.shares import OURS, THEIRS
from adaverify.bench.endtoend.store import Store
from adaverify_contracts import AdaverifyError, BenchmarkCell, BenchmarkColumn, BenchmarkResult

_NAMES = (
    ("stage", "", True),
    ("case", "", True),
    ("variant", "", True),
    ("tokens_per_s", "1/s", True),
    ("ratio", "see notes", True),
    ("step_us", "us", True),
    ("accepted_length", "tokens", True),
    ("verified_a_step", "drafts", True),
    ("waste", "share", True),
    ("beside_model_us", "us", True),
    ("model_us", "us", True),
    ("host_us", "us", True),
    ("tokens_per_s_low", "1/s", False),
    ("tokens_per_s_high", "1/s", False),
    ("step_us_low", "us", False),
    ("step_us_high", "us", False),
    *((name, "", False) for name in COLUMNS),
)
_PLACES = {"ratio": 4, "accepted_length": 3, "waste": 4}

Row = dict[str, BenchmarkCell]


def result_of(
    store: Store,
    ground: Ground,
    origin: Origin,
    fresh: set[Case],
    unplotted: AdaverifyError | None = None,
) -> BenchmarkResult:
    """Return everything that is kept as one result; the file itself is in its facts.

    Args:
        store: what is kept; ground: what it stands on.
        origin: what this run measures by; fresh: the cases that it measured.
        unplotted: what kept plots from being drawn.

    Raises:
        AdaverifyError: nothing is kept yet.
    """
    rows = [*_curves(store), *_arms(store), *_shares(store), *_paired(store), *_captures(store)]
    if not rows:
        raise AdaverifyError(
            "nothing has been measured yet",
            arrived="no case in the results",
            allowed="at least one measured case",
            remedy="run the stages curve and arms first",
        )
    return BenchmarkResult(
        columns=tuple(BenchmarkColumn(name, unit, shown) for name, unit, shown in _NAMES),
        rows=tuple(tuple(_cell(row, name) for name, _, _ in _NAMES) for row in rows),
        checks=tuple(checks_of(store, fresh)),
        data=data_of(store, ground),
        cache="warm: graphs were replayed before; arms take turns over the same starts and the same text",
        notes=tuple(notes_of(store, ground, origin, fresh, unplotted)),
        facts={**store.as_dict(), **row_cost_facts(store, ground)},
    )


def _cell(row: Row, name: str) -> BenchmarkCell:
    value = row.get(name)
    return round(value, _PLACES.get(name, 2)) if isinstance(value, float) else value


def _curves(store: Store) -> Iterator[Row]:
    for case, found in store.stage("curve").items():
        for point in found["points"]:
            yield {
                "stage": "curve",
                "case": f"{case} requests",
                "variant": f"{point['tokens']} tokens",
                "step_us": 1e6 * point["seconds"],
                "step_us_low": 1e6 * point["low"],
                "step_us_high": 1e6 * point["high"],
                **recorded(found),
            }


def _arms(store: Store) -> Iterator[Row]:
    for case, found in store.stage("arms").items():
        arms: dict[str, dict[str, Any]] = found["arms"]
        full = max((name for name in arms if name.startswith("fixed-")), key=lambda name: int(name[6:]))
        base = arms[full]["tokens_per_s_rounds"]
        for name, arm in arms.items():
            middle = median(own / other for own, other in zip(arm["tokens_per_s_rounds"], base, strict=True))
            shown = {key: arm[key] for key, _, _ in _NAMES if key in arm}
            named = {"stage": "arms", "case": f"{case} requests", "variant": name, "ratio": middle}
            yield {**named, **shown, **recorded(found)}


def _shares(store: Store) -> Iterator[Row]:
    for case, found in store.stage("shares").items():
        for budget, one in found["budgets"].items():
            for name in (OURS, *THEIRS):
                shown = {key: one[name][key] for key, _, _ in _NAMES if key in one[name]}
                yield {
                    "stage": "shares",
                    "case": f"{case} requests",
                    "variant": f"{name}, budget {budget}",
                    "ratio": None if name == OURS else one[name]["step_ratio"]["median"],
                    **shown,
                    **recorded(found),
                }


def _paired(store: Store) -> Iterator[Row]:
    for case, found in store.stage("paired").items():
        for tier, one in found["tiers"].items():
            for name, times in one.items():
                if name == "ratio":
                    continue
                yield {
                    "stage": "paired",
                    "case": f"{case} context",
                    "variant": f"{name}, {tier} tokens",
                    "ratio": one["ratio"]["median"] if name == "paired" else None,
                    **{key: times[key] for key, _, _ in _NAMES if key in times},
                    **recorded(found),
                }


def _captures(store: Store) -> Iterator[Row]:
    for case, found in store.stage("capture").items():
        for name in ("fixed", "adaptive"):
            yield {
                "stage": "capture",
                "case": f"{case} requests",
                "variant": f"{name}, {found[name]['graphs']} graphs",
                "step_us": 1e6 * found[name]["seconds"],
                "ratio": found["seconds_ratio"] if name == "adaptive" else None,
                **recorded(found),
            }
