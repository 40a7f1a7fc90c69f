"""Descriptors of the built-in signals, as the hooks register them."""

from __future__ import annotations

from adaverify_contracts import Seen, SignalDescriptor
from adaverify_verification.signals.acceptance_history import AcceptanceHistorySignal
from adaverify_verification.signals.calibrated import CalibratedSignal
from adaverify_verification.signals.drafter import DrafterSignal
from adaverify_verification.signals.optimistic import OptimisticSignal
from adaverify_verification.signals.temperature_scaled import TemperatureScaledSignal

# ``seen`` is what a signal adds to the drafter's score: none of these looks at a drawn token by itself.
OPTIMISTIC = SignalDescriptor("optimistic", Seen.HISTORY, False, OptimisticSignal)
ACCEPTANCE_HISTORY = SignalDescriptor("acceptance-history", Seen.HISTORY, False, AcceptanceHistorySignal)
DRAFTER = SignalDescriptor("drafter", Seen.HISTORY, True, DrafterSignal)
CALIBRATED = SignalDescriptor("calibrated", Seen.HISTORY, True, CalibratedSignal)
TEMPERATURE_SCALED = SignalDescriptor("temperature-scaled", Seen.HISTORY, True, TemperatureScaledSignal)


def builtin_signals() -> tuple[SignalDescriptor, ...]:
    """Return every built-in signal, the default ``calibrated`` first."""
    return (CALIBRATED, TEMPERATURE_SCALED, DRAFTER, ACCEPTANCE_HISTORY, OPTIMISTIC)
