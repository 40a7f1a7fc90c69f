"""Reference decode engine: continuous batching, paged KV, and verification of as many drafts as pay."""

from adaverify_engine.compare import Comparison, Divergence, ModeResult, compare
from adaverify_engine.engine import Engine
from adaverify_engine.options import EngineOptions, Sampling
from adaverify_engine.profiling import (
    check_cost_table,
    fingerprint,
    grid_for,
    profile_drafting,
    profile_engine,
)
from adaverify_engine.request import Completion, Event, FinishReason
from adaverify_engine.stats import EngineStats

__all__ = [
    "Comparison",
    "Completion",
    "Divergence",
    "Engine",
    "EngineOptions",
    "EngineStats",
    "Event",
    "FinishReason",
    "ModeResult",
    "Sampling",
    "check_cost_table",
    "compare",
    "fingerprint",
    "grid_for",
    "profile_drafting",
    "profile_engine",
]
