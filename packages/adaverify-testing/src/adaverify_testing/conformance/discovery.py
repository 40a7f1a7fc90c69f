"""The strategies and probes of installed plugins, found as the runtime finds them, without the runtime.

The kit must run where a strategy's author is, on GPU machines that lack the runtime's own dependencies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata

from adaverify_contracts import (
    ENTRY_POINT_GROUP,
    DecodeStrategyDescriptor,
    DuplicateNameError,
    PluginError,
    ProbeDescriptor,
    UnknownNameError,
)
from adaverify_contracts.describing import describe
from adaverify_testing.managers import isolated_manager


def _told(error: BaseException) -> str:
    """Return type and words of an error, and the last line of Python that ran."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith("<") and "importlib" not in file:
            place = f" ({file}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{describe(error)}{place}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the installed plugins register.

    Attributes:
        strategies: by name.
        owners: distribution of each strategy, with its version.
        probes: of every plugin that loaded.
        broken: why a plugin could not be used, by the name of its entry point.
    """

    strategies: dict[str, DecodeStrategyDescriptor] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    probes: list[ProbeDescriptor] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)

    def strategy(self, name: str) -> DecodeStrategyDescriptor:
        """Return a strategy by name.

        Raises:
            PluginError: the plugin of that name was found and could not be loaded.
            UnknownNameError: no plugin that loaded registers it; the text names those that did not load too.
        """
        if name in self.strategies:
            return self.strategies[name]
        if name in self.broken:
            raise PluginError(
                f"plugin {name!r} is installed and was not loaded: {self.broken[name]}",
                plugin=name,
                arrived=name,
                allowed=", ".join(sorted(self.strategies)) or "no strategy",
                remedy="cure that error; nothing of the plugin can be judged before",
            )
        known = [f"{known} ({owner})" for known, owner in sorted(self.owners.items())]
        known += [f"[plugin {plugin} was not loaded: {why}]" for plugin, why in sorted(self.broken.items())]
        raise UnknownNameError("decode strategy", name, tuple(known))


def discover(entry_points: Iterable[metadata.EntryPoint] | None = None) -> Discovery:
    """Load every plugin and return what it registers; a plugin that fails is kept with its reason.

    Args:
        entry_points: what to load instead of the installed group ``adaverify``.

    Raises:
        DuplicateNameError: two distributions register one strategy.
    """
    found = Discovery()
    if entry_points is None:
        entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    # An editable install and a folder on the path may show one distribution twice.
    unique = {(point.name, point.value): point for point in entry_points}
    for point in sorted(unique.values(), key=lambda point: (point.name, point.value)):
        try:
            hook = isolated_manager(point.load()).hook
            strategies = [item for group in hook.adaverify_register_decode_strategies() for item in group]
            probes = [item for group in hook.adaverify_register_probes() for item in group]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything; it is kept and reported
            found.broken[point.name] = _told(error)
            continue
        found.probes.extend(probes)
        owner = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        for item in strategies:
            if item.name in found.strategies:
                raise DuplicateNameError("decode strategy", item.name, (found.owners[item.name], owner))
            found.strategies[item.name] = item
            found.owners[item.name] = owner
    return found
