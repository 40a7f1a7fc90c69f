"""The settings in force inside vLLM, and what is said of those that do nothing there."""

from __future__ import annotations

from typing import Any

from adaverify_contracts import SettingsError
from adaverify_runtime import PathSettings, Settings, read_settings

TRACE = "ADAVERIFY_PATHS_TRACE"
SIGNAL = "vLLM's own confidence"
# Settings of our own engine: there a signal warms up, and what is not lossless may be downgraded.
ELSEWHERE = ("warmup_steps", "lossless")
IDLE = {
    "cost_table": "step times come from vLLM's own profiling",
    "row_costs": "vLLM's own builder and ours make the same rows",
    "calibration": "the signal is vLLM's own confidence",
}


def settings_in_force() -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and a line for each variable that does nothing here.

    A trace that cannot be written costs the trace alone.

    Raises:
        SettingsError: names every variable that is wrong but the trace's.
    """
    try:
        settings = read_settings()
    except SettingsError as error:
        if set(error.problems) != {TRACE}:
            raise
        value, form = error.problems[TRACE]
        settings = Settings(paths=PathSettings(trace=None))
        return settings, (f"no trace is written: {TRACE} is {value!r}, expected {form}", *_idle(settings))
    return settings, (*settings.warnings, *_idle(settings))


def planner_in_force(settings: Settings) -> dict[str, Any]:
    """Return what the planner goes by, JSON-ready: the settings, and what vLLM fixes.

    The signal is vLLM's, and vLLM pads every batch to its captured sizes, one with a prompt's chunk as well.
    """
    values = settings.planner.model_dump(mode="json", exclude=set(ELSEWHERE))
    return values | {
        "signal": SIGNAL,
        "mixed_tiers": True,
        "agreement": settings.bridge.vllm_agreement,
        "relay_depth": settings.relay.depth,
    }


def _idle(settings: Settings) -> tuple[str, ...]:
    return tuple(
        f"ADAVERIFY_PATHS_{name.upper()} is set and does nothing inside vLLM: {why}"
        for name, why in IDLE.items()
        if getattr(settings.paths, name) is not None
    )
