"""Whole steps with each row strategy, as the runtime's row-cost table has them."""

from __future__ import annotations

from typing import Any

from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.paired import STRATEGIES
from adaverify.bench.endtoend.sources import PAGE_SIZE
from adaverify.bench.endtoend.store import Store


def row_cost_facts(store: Store, ground: Ground) -> dict[str, Any]:
    """Return ``row_costs`` and the setup they belong to, JSON-ready; nothing where no pairs were measured.

    Where two batches have one size, the one in which pairs fared worse counts: they must not lose anywhere.
    """
    first, second = STRATEGIES
    worst: dict[tuple[int, int], dict[str, Any]] = {}
    for found in store.stage("paired").values():
        for tier, one in found["tiers"].items():
            if "ratio" not in one:
                continue
            place = (int(tier), int(found["context"]))
            known = worst.get(place)
            if known is None or one["ratio"]["median"] < known["ratio"]["median"]:
                worst[place] = one
    if not worst:
        return {}
    costs = [
        {
            "strategy": name,
            "tokens": tokens,
            "context": context,
            "seconds": 1e-6 * one[name]["step_us"],
            "noise_seconds": 0.5e-6 * (one[name]["step_us_high"] - one[name]["step_us_low"]),
        }
        for (tokens, context), one in sorted(worst.items())
        for name in (first, second)
    ]
    device = ground.options.capability.device_name
    return {"device": device, "page_size": PAGE_SIZE[ground.kind], "row_costs": costs}
