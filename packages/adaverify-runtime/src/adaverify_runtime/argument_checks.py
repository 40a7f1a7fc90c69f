"""What ``assemble`` and a verifier are given once: refused by type before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast, get_args

from adaverify_contracts import (
    AdaverifyError,
    CalibrationError,
    Capability,
    CapabilityError,
    CostTableError,
    DescriptorError,
    DrafterDescriptor,
    GraphError,
    Limits,
    LimitsError,
    NoStrategyError,
    PluginError,
    SettingsError,
)
from adaverify_runtime.plugins import PluginManager
from adaverify_runtime.row_choice import RowCostTable
from adaverify_runtime.settings import Mode, PluginSettings, Settings
from adaverify_verification import CostTable


def require_ground(settings: object, plugins: object, capability: object) -> None:
    """Require ``Settings``, a ``PluginManager`` and a ``Capability``, each or None.

    Raises:
        SettingsError, PluginError, CapabilityError: one is something else.
    """
    if settings is not None and not isinstance(settings, Settings):
        # An empty dict would otherwise pass for no settings, and the environment would be read.
        raise SettingsError(
            {"settings": (settings, "a Settings, or None to read the environment")},
            remedy="build it with read_settings(), or Settings(planner={...})",
        )
    _require(PluginError, "plugins", plugins, PluginManager, "pass load_plugins(settings), or None")
    _require(CapabilityError, "capability", capability, Capability, "pass what probe(...) returned, or None")


def require_mode(mode: object) -> Mode:
    """Return a mode that was passed as an argument; what the settings say of it was checked with them.

    Raises:
        SettingsError: it is none.
    """
    for known in get_args(Mode):
        if isinstance(mode, str) and mode == known:
            return cast(Mode, known)
    raise SettingsError(
        {"mode": (mode, "none, fixed or adaptive")},
        remedy="pass one of them as mode, or None for what ADAVERIFY_PLANNER_MODE says",
    )


def require_loading(settings: object, entry_points: object) -> None:
    """Require what ``load_plugins`` names for its arguments; an iterator of entry points is left unread.

    Raises:
        SettingsError, PluginError: one is something else.
    """
    if settings is not None and not isinstance(settings, Settings | PluginSettings):
        raise SettingsError(
            {"settings": (settings, "a Settings, a PluginSettings, or None to read the environment")},
            remedy="build it with read_settings(), or PluginSettings(enabled=(...))",
        )
    fits = entry_points is None or (isinstance(entry_points, Iterable) and not isinstance(entry_points, str))
    if isinstance(entry_points, list | tuple):
        fits = all(callable(getattr(one, "load", None)) for one in entry_points)
    if not fits:
        raise PluginError(
            "the entry points to load plugins from are none",
            arrived=entry_points,
            allowed="EntryPoint objects, or None for those that are installed",
            remedy="pass importlib.metadata.entry_points(...), or leave them out",
        )


def require_arguments(
    limits: object,
    drafter: object,
    cost_table: object,
    strategy: object,
    row_costs: object,
    target: object = None,
) -> None:
    """Require the types that ``assemble`` names for the rest of its arguments.

    Raises:
        LimitsError, DescriptorError, CostTableError, NoStrategyError, CalibrationError: one is something
            else.
    """
    if not isinstance(limits, Limits):
        raise LimitsError(
            "the limits to assemble for are none",
            arrived=limits,
            allowed="a Limits",
            remedy="build Limits(max_requests, draft_tokens, max_model_len, page_size)",
        )
    _require(
        DescriptorError,
        "drafter",
        drafter,
        DrafterDescriptor,
        "pass what the drafter declares, not the drafter or its name; None assumes the strictest law",
    )
    _require(
        CostTableError, "cost_table", cost_table, CostTable, "pass what CostTable.load(...) returned, or None"
    )
    if strategy is not None and not isinstance(strategy, str):
        raise NoStrategyError(
            "the decode strategy is asked for by what is no name",
            {repr(strategy): ("a strategy's name is a str",)},
            remedy="pass a name that `adaverify doctor` lists, or None",
        )
    if row_costs is not None and not isinstance(row_costs, str | Path | RowCostTable):
        raise CostTableError(
            "the row costs are neither a file nor a table",
            arrived=row_costs,
            allowed="a Path, a RowCostTable or None",
            remedy="pass the file that `adaverify bench rows` wrote",
        )
    _require(CalibrationError, "target", target, str, "pass the target model's name, not the model")


def require_observer(name: object, call: object) -> None:
    """Require a name that reports can show and something to call.

    Raises:
        DescriptorError: one is something else.
    """
    if not isinstance(name, str) or not name:
        raise DescriptorError(
            "an observer has no name",
            arrived=name,
            allowed="a non-empty str",
            remedy="pass the name that counters and reports shall call it, first of the two",
        )
    if not callable(call):
        raise DescriptorError(
            f"observer {name!r} cannot be called",
            arrived=call,
            allowed="a function of one StepRecord",
            remedy="pass the function, not its result",
        )


def require_callables(step: object, **optional: object) -> None:
    """Require a step to capture, and of the others what can be called, or None.

    Raises:
        GraphError: one is something else.
    """
    for name, value in {"step": step, **optional}.items():
        if not callable(value) and (value is not None or name == "step"):
            raise GraphError(
                f"the {name} to capture with cannot be called",
                arrived=value,
                allowed="a function" if name == "step" else "a function, or None",
                remedy=f"pass the function itself as {name}",
            )


def _require(error: type[AdaverifyError], name: str, value: Any, kind: type, remedy: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise error(
            f"the {name} to assemble with has the wrong type",
            arrived=value,
            allowed=f"a {kind.__name__}, or None",
            remedy=remedy,
        )


def captured_otherwise(arrived: str) -> GraphError:
    """Return the refusal of ``launch`` and ``replay`` where steps were captured for the other one."""
    return GraphError(
        "the decode step was captured the other way",
        arrived=arrived,
        allowed="launch for steps captured with a prologue, replay for the others",
        remedy="capture with a prologue to launch, without one to replay",
    )
