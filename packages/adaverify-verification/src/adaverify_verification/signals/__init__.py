"""Confidence sources."""

from adaverify_verification.signals.acceptance_history import AcceptanceHistorySignal
from adaverify_verification.signals.builtin import (
    ACCEPTANCE_HISTORY,
    CALIBRATED,
    DRAFTER,
    OPTIMISTIC,
    TEMPERATURE_SCALED,
    builtin_signals,
)
from adaverify_verification.signals.calibrated import CalibratedSignal
from adaverify_verification.signals.drafter import DrafterSignal
from adaverify_verification.signals.optimistic import OptimisticSignal
from adaverify_verification.signals.temperature_scaled import TemperatureScaledSignal

__all__ = [
    "ACCEPTANCE_HISTORY",
    "CALIBRATED",
    "DRAFTER",
    "OPTIMISTIC",
    "TEMPERATURE_SCALED",
    "AcceptanceHistorySignal",
    "CalibratedSignal",
    "DrafterSignal",
    "OptimisticSignal",
    "TemperatureScaledSignal",
    "builtin_signals",
]
