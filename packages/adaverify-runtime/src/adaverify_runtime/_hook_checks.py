"""What a plugin's hooks must look like, checked when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pluggy

from adaverify_contracts import PROJECT_NAME, PluginError, Requirements, hookspecs
from adaverify_contracts.describing import describe, kind_of, shown, text_of
from adaverify_runtime._nearest import suggestion

_PREFIX = f"{PROJECT_NAME}_"
_IMPL = f"{PROJECT_NAME}_impl"

HOOK_NAMES = tuple(
    name
    for name, value in vars(hookspecs).items()
    if name.startswith(_PREFIX) and hasattr(value, f"{PROJECT_NAME}_spec")
)


_LONGEST_NAME = 100
_VALUES = (type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)


def check_plugin(plugin: object, name: object) -> None:
    """Require something that can be a plugin, under a name that can be read and typed.

    Raises:
        PluginError: says what arrived.
    """
    # A type of its own, so that a subclass of str cannot answer these questions itself.
    if type(name) is not str or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise PluginError(
            "a plugin's name is not usable",
            arrived=f"{shown(name)[:_LONGEST_NAME]} ({kind_of(name)})",
            allowed=f"1 to {_LONGEST_NAME} printable characters, such as an entry point's name",
            remedy="register the plugin under another name",
        )
    if type(plugin) in _VALUES or inspect.isroutine(plugin):
        raise PluginError(
            f"plugin {name!r} is no plugin",
            plugin=name,
            arrived=f"{shown(plugin)[:_LONGEST_NAME]} ({kind_of(plugin)})",
            allowed="a module, or an object whose methods carry adaverify_contracts.hookimpl",
            remedy="have the entry point name the module that holds the hooks",
        )


def requirements_of(plugin: object, name: str) -> Requirements | None:
    """Return what a plugin requires of the device in ``ADAVERIFY_REQUIRES``, None where it says nothing.

    Raises:
        PluginError: the attribute has another type.
    """
    requires = getattr(plugin, "ADAVERIFY_REQUIRES", None)
    if requires is None or isinstance(requires, Requirements):
        return requires
    problem = f"plugin {name!r}: ADAVERIFY_REQUIRES is not a Requirements"
    remedy = "build adaverify_contracts.Requirements"
    raise PluginError(problem, plugin=name, arrived=requires, allowed="Requirements", remedy=remedy)


@contextmanager
def examining(name: str) -> Iterator[None]:
    """Turn what a plugin's own attributes raise while they are read into an error that names the plugin.

    Raises:
        PluginError: the plugin cannot be examined; the exception is kept as the cause.
    """
    try:
        yield
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(
            f"plugin {name!r} cannot be examined: reading its attributes raised {describe(error)}",
            plugin=name,
            arrived=kind_of(error),
            allowed="attributes that can be listed and read",
            remedy="register a plain module or object",
        ) from error


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
    problem = f"plugin {name!r} cannot be registered: {text_of(error)}"
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
