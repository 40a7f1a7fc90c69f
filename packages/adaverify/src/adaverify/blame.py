"""Whose fault it is when a plugin's code raises in the middle of a run."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from adaverify_contracts import AdaverifyError, PluginError
from adaverify_contracts.describing import kind_of, text_of
from adaverify_runtime import PluginManager

# The packages that drive plugins: what they raise is a mistake of ours, also where a plugin called them.
_HOST = frozenset(
    f"adaverify{part}"
    for part in (
        "",
        "_capability",
        "_contracts",
        "_engine",
        "_graphs",
        "_metadata",
        "_replay",
        "_runtime",
        "_verification",
    )
)


@contextmanager
def blaming_plugins(plugins: PluginManager) -> Iterator[None]:
    """Turn what a plugin's code raises into a ``PluginError`` that names the plugin; leave the rest alone.

    Typed errors pass, and so does an exception whose innermost frame, libraries aside, is adaverify's own.

    Raises:
        PluginError: the exception came out of a plugin; it is kept as the cause.
    """
    try:
        yield
    except (AdaverifyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        guilty = _guilty(error, plugins)
        if guilty is None:
            raise
        plugin, where = guilty
        raise PluginError(
            f"plugin {plugin!r} raised {kind_of(error)} while it ran: {text_of(error)}",
            plugin=plugin,
            arrived=where,
            allowed="a typed error of adaverify_contracts, or none",
            remedy=f"report it to the plugin's author, or list {plugin} in ADAVERIFY_PLUGINS_DISABLED",
        ) from error


def _guilty(error: BaseException, plugins: PluginManager) -> tuple[str, str] | None:
    owners = _packages(plugins)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = _package(frame.f_globals.get("__name__", ""))
        if package in _HOST:
            return None
        if package in owners:
            return owners[package], f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    return None


def _packages(plugins: PluginManager) -> dict[str, str]:
    """Return the import package of every registered callable, with the plugin that it belongs to."""
    kinds = (
        plugins.models(),
        plugins.drafters(),
        plugins.decode_strategies(),
        plugins.signals(),
        plugins.policies(),
        plugins.graph_backends(),
        plugins.probes(),
        plugins.benchmarks(),
    )
    found: dict[str, str] = {}
    for entries in kinds:
        for entry in entries:
            descriptor: Any = entry.descriptor
            for value in (getattr(descriptor, field.name) for field in fields(descriptor)):
                if callable(value):
                    found.setdefault(_package(getattr(value, "__module__", None) or ""), entry.plugin)
    return found


def _package(module: str) -> str:
    return module.partition(".")[0]
