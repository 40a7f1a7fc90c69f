"""Reference decode engine: continuous batching, paged KV, and verification of as many drafts as pay."""

from adaverify_engine.engine import Engine
from adaverify_engine.options import EngineOptions, Sampling
from adaverify_engine.request import Completion, Event, FinishReason
from adaverify_engine.stats import EngineStats

__all__ = ["Completion", "Engine", "EngineOptions", "EngineStats", "Event", "FinishReason", "Sampling"]
