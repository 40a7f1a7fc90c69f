"""Plugin managers that see what a test gives them and nothing that is installed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pluggy

from adaverify_contracts import ENTRY_POINT_GROUP, PROJECT_NAME, PluginError, hookspecs


class IsolatedManager(pluggy.PluginManager):
    """A pluggy manager with adaverify's hook specifications and no way to discover installed plugins."""

    def __init__(self) -> None:
        super().__init__(PROJECT_NAME)
        self.add_hookspecs(hookspecs)

    def load_setuptools_entrypoints(self, group: str, name: str | None = None) -> NoReturn:
        """Refuse discovery.

        Raises:
            PluginError: always.
        """
        raise PluginError(
            "an isolated manager does not discover installed plugins",
            arrived=group if name is None else (group, name),
            allowed="plugins that the test passes in",
            remedy="define the plugin inside the test and register it",
        )


def isolated_manager(*plugins: object) -> IsolatedManager:
    """Return a manager that holds exactly ``plugins`` (modules or objects), in that order.

    Raises:
        pluggy.PluginValidationError: a hook is misspelt or has an argument the specification lacks.
    """
    manager = IsolatedManager()
    for plugin in plugins:
        manager.register(plugin)
    manager.check_pending()
    return manager


@dataclass(frozen=True, slots=True)
class InlineDistribution:
    """The distribution an inline entry point claims to come from."""

    name: str
    version: str = "0"
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InlineEntryPoint:
    """A plugin of a test in the form of an installed entry point, for loaders that take entry points.

    Attributes:
        name: name of the plugin as settings spell it.
        plugin: what ``load`` returns; an exception instance is raised instead.
        dist: distribution it claims to come from.
        group: entry-point group.
    """

    name: str
    plugin: Any = field(repr=False)
    dist: InlineDistribution = InlineDistribution("inline-plugin")
    group: str = ENTRY_POINT_GROUP

    @property
    def value(self) -> str:
        """The module path an installed entry point would show."""
        return f"inline:{self.name}"

    def load(self) -> Any:
        """Return the plugin, or raise the exception that stands for a broken one."""
        if isinstance(self.plugin, BaseException):
            raise self.plugin
        return self.plugin


def inline_entry_points(plugins: Iterable[tuple[str, object]]) -> tuple[InlineEntryPoint, ...]:
    """Return entry points for (name, plugin) pairs, each in a distribution of its own."""
    return tuple(
        InlineEntryPoint(name, plugin, InlineDistribution(f"{name}-distribution")) for name, plugin in plugins
    )
