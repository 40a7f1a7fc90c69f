"""Which sizes adaptive engines capture, told before any of them is made."""

from __future__ import annotations

from adaverify_engine import EngineOptions
from adaverify_graphs import choose_families, choose_ladder
from adaverify_runtime import GraphSettings


def captured_sizes(graphs: GraphSettings, options: EngineOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return token counts of steps that draft and request counts of those that do not, both rising.

    Both are empty where steps run eagerly.

    Args:
        graphs: the user's settings.
        options: of the engine.
    """
    if not options.device.startswith("cuda") or graphs.backend == "eager" or graphs.mode == "never":
        return (), ()
    if graphs.mode == "uniform":
        return choose_ladder(options.limits, max_graphs=graphs.max_graphs).tiers, ()
    families = choose_families(options.limits, max_graphs=graphs.max_graphs)
    return families.drafting.tiers, families.bare
