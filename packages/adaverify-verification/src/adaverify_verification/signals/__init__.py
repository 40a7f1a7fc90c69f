"""Confidence sources."""

from adaverify_verification.signals.acceptance_history import AcceptanceHistorySignal
from adaverify_verification.signals.builtin import (
    ACCEPTANCE_HISTORY,
    CALIBRATED,
    DRAFTER,
    OPTIMISTIC,
    builtin_signals,
)
from adaverify_verification.signals.calibrated import CalibratedSignal
from adaverify_verification.signals.drafter import DrafterSignal
from adaverify_verification.signals.optimistic import OptimisticSignal

__all__ = [
    "ACCEPTANCE_HISTORY",
    "CALIBRATED",
    "DRAFTER",
    "OPTIMISTIC",
    "AcceptanceHistorySignal",
    "CalibratedSignal",
    "DrafterSignal",
    "OptimisticSignal",
    "builtin_signals",
]
