"""What a plugin's hooks must look like, checked when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pluggy

from adaverify_contracts import PROJECT_NAME, PluginError, hookspecs
from adaverify_runtime._nearest import suggestion

_PREFIX = f"{PROJECT_NAME}_"
_IMPL = f"{PROJECT_NAME}_impl"

HOOK_NAMES = tuple(
    name
    for name, value in vars(hookspecs).items()
    if name.startswith(_PREFIX) and hasattr(value, f"{PROJECT_NAME}_spec")
)


def check_hooks(plugin: object, name: str) -> None:
    """Require that every ``adaverify_*`` function is a marked, correctly spelt, unwrapped hook.

    pluggy ignores unmarked functions without a word, so a forgotten marker would lose a whole plugin.

    Raises:
        PluginError: names plugin and function, and the nearest hook.
    """
    for attribute, function in _functions(plugin):
        options = getattr(function, _IMPL, None)
        if options is None:
            if attribute.startswith(_PREFIX):
                raise _unmarked(name, attribute)
            continue
        hook = options["specname"] or attribute
        if hook not in HOOK_NAMES:
            raise _misspelt(name, hook)
        if options["wrapper"] or options["hookwrapper"]:
            problem = f"plugin {name!r}: {hook} is a hook wrapper"
            remedy = "return your own descriptors; other plugins' results are not yours to change"
            allowed = "plain implementations"
            raise PluginError(problem, plugin=name, arrived=attribute, allowed=allowed, remedy=remedy)


def registration_error(plugin: object, name: str, error: Exception) -> PluginError:
    """Return pluggy's complaint as a ``PluginError`` that names the plugin, its hook and the signature."""
    for attribute, function in _functions(plugin):
        hook = (getattr(function, _IMPL, None) or {}).get("specname") or attribute
        if hook not in HOOK_NAMES or not isinstance(error, pluggy.PluginValidationError):
            continue
        wanted = tuple(inspect.signature(getattr(hookspecs, hook)).parameters)
        given = tuple(inspect.signature(getattr(plugin, attribute)).parameters)
        extra = tuple(argument for argument in given if argument not in wanted)
        if extra:
            problem = f"plugin {name!r}: {hook} takes arguments that the hook does not offer"
            allowed = f"{hook}({', '.join(wanted)})"
            return PluginError(
                problem, plugin=name, arrived=extra, allowed=allowed, remedy="match the hook specification"
            )
    problem = f"plugin {name!r} cannot be registered: {error}"
    return PluginError(problem, plugin=name, remedy="register each plugin object once, under one name")


def _functions(plugin: object) -> Iterator[tuple[str, object]]:
    for attribute in dir(plugin):
        value = inspect.getattr_static(plugin, attribute, None)
        value = getattr(value, "__func__", value)
        if not inspect.isroutine(value):
            continue
        # A module may import functions of other packages; only its own are meant as hooks.
        foreign = isinstance(plugin, ModuleType) and getattr(value, "__module__", None) != plugin.__name__
        if not foreign or hasattr(value, _IMPL):
            yield attribute, value


def _unmarked(name: str, attribute: str) -> PluginError:
    # A name that is right needs no other.
    hint = "" if attribute in HOOK_NAMES else suggestion(attribute, HOOK_NAMES)
    problem = f"plugin {name!r}: {attribute} is not marked as a hook{hint}"
    return PluginError(
        problem,
        plugin=name,
        arrived=attribute,
        allowed=", ".join(HOOK_NAMES),
        remedy="decorate it with adaverify_contracts.hookimpl, or rename it if it is no hook",
    )


def _misspelt(name: str, hook: str) -> PluginError:
    problem = f"plugin {name!r}: there is no hook {hook}{suggestion(hook, HOOK_NAMES)}"
    return PluginError(
        problem,
        plugin=name,
        arrived=hook,
        allowed=", ".join(HOOK_NAMES),
        remedy="correct the function's name",
    )
