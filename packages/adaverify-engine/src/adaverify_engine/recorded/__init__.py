"""Decode steps whose truth was recorded: any model body, real drafting scores and real acceptances."""

from adaverify_engine.ops.recorded.layout import RecordTables
from adaverify_engine.recorded.state import RecordedState
from adaverify_engine.recorded.step import Body, RecordedStep

__all__ = ["Body", "RecordTables", "RecordedState", "RecordedStep"]
