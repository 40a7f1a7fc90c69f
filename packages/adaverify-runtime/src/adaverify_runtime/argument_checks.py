"""What ``assemble`` is given: refused by type before settings are read or a device is probed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaverify_contracts import (
    AdaverifyError,
    Capability,
    CapabilityError,
    CostTableError,
    DescriptorError,
    DrafterDescriptor,
    Limits,
    LimitsError,
    NoStrategyError,
    PluginError,
    SettingsError,
)
from adaverify_runtime.plugins import PluginManager
from adaverify_runtime.row_choice import RowCostTable
from adaverify_runtime.settings import Settings
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


def require_arguments(
    limits: object, drafter: object, cost_table: object, strategy: object, row_costs: object
) -> None:
    """Require the types that ``assemble`` names for the rest of its arguments.

    Raises:
        LimitsError, DescriptorError, CostTableError, NoStrategyError: one is something else.
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


def _require(error: type[AdaverifyError], name: str, value: Any, kind: type, remedy: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise error(
            f"the {name} to assemble with has the wrong type",
            arrived=value,
            allowed=f"a {kind.__name__}, or None",
            remedy=remedy,
        )
