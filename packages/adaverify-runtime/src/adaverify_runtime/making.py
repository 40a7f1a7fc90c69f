"""Calling the factories of plugins: what one raises or returns is said with the plugin's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from adaverify_contracts import (
    AdaverifyError,
    BlockDrafter,
    DecodeRowBuilder,
    DecodeStrategyDescriptor,
    Drafter,
    DrafterDescriptor,
    GraphBackend,
    GraphBackendDescriptor,
    PluginError,
    Policy,
    PolicyDescriptor,
    Signal,
    SignalDescriptor,
)
from adaverify_contracts.describing import kind_of, shown, text_of
from adaverify_runtime.allocation import allocating
from adaverify_runtime.plugins import Registered

D = TypeVar("D")

# Descriptor type -> (word for messages, field of the factory, what the factory must return).
_FACTORIES: dict[type, tuple[str, str, tuple[type, ...]]] = {
    DecodeStrategyDescriptor: ("decode strategy", "allocate", (DecodeRowBuilder,)),
    SignalDescriptor: ("signal", "factory", (Signal,)),
    PolicyDescriptor: ("policy", "factory", (Policy,)),
    GraphBackendDescriptor: ("graph backend", "factory", (GraphBackend,)),
    DrafterDescriptor: ("drafter", "factory", (Drafter, BlockDrafter)),
}


def contained(entry: Registered[D]) -> D:
    """Return the descriptor of ``entry``, its factory replaced by one that fails with typed errors only.

    The factory raises ``PluginError``, naming plugin and descriptor, where the plugin's own raises anything
    that is not a typed error, or returns something else than the contract names. Typed errors pass, those of
    an allocator arrive as ``LimitsError``, and ``KeyboardInterrupt`` passes. A drafter's ``obstacle`` is held
    to the same.
    """
    descriptor: Any = entry.descriptor
    _, field, _ = _about(descriptor)
    changes = {field: partial(_make, entry)}
    if isinstance(descriptor, DrafterDescriptor) and descriptor.obstacle is not None:
        changes["obstacle"] = partial(_ask, entry)
    return cast(D, replace(descriptor, **changes))


def contained_as(plugin: str, descriptor: D) -> D:
    """Return what ``contained`` does for a descriptor whose distribution does not matter."""
    return contained(Registered(descriptor, plugin, plugin, ""))


def _make(entry: Registered[Any], *arguments: Any) -> Any:
    """Call the factory of ``entry`` and return what it made."""
    descriptor = entry.descriptor
    word, field, needed = _about(descriptor)
    who = f"{word} {descriptor.name!r} of plugin {entry.plugin!r}"
    rows = field == "allocate"
    what = f"the row buffers of strategy {descriptor.name}" if rows else f"the buffers of {who}"
    with _blaming(entry.plugin, f"{who}: {field}"), allocating(what):
        made = getattr(descriptor, field)(*arguments)
    with _blaming(entry.plugin, f"{who}: what {field} returned"):
        lacking = _lacking(made, needed)
    if lacking:
        raise PluginError(
            f"{who}: {field} returned something that is no {' or '.join(kind.__name__ for kind in needed)}",
            plugin=entry.plugin,
            arrived=f"{shown(made)}, which lacks {lacking}",
            allowed=" or ".join(f"a {kind.__name__}{_members_in_words(kind)}" for kind in needed),
            remedy=_remedy(entry.plugin, f"return one from {field}"),
        )
    return made


def _ask(entry: Registered[Any], draft_tokens: int) -> str:
    """Return what the obstacle of a drafter's ``entry`` says about K."""
    who = f"drafter {entry.descriptor.name!r} of plugin {entry.plugin!r}: obstacle"
    with _blaming(entry.plugin, who):
        reason = entry.descriptor.obstacle(draft_tokens)
    if not isinstance(reason, str):
        raise PluginError(
            f"{who} returned something that is no str",
            plugin=entry.plugin,
            arrived=reason,
            allowed="a str, empty where nothing is in the way",
            remedy=_remedy(entry.plugin, "return why the drafter cannot serve"),
        )
    return reason


def _about(descriptor: object) -> tuple[str, str, tuple[type, ...]]:
    return next(about for kind, about in _FACTORIES.items() if isinstance(descriptor, kind))


@contextmanager
def _blaming(plugin: str, what: str) -> Iterator[None]:
    try:
        yield
    except (AdaverifyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(
            f"{what} raised {kind_of(error)}: {text_of(error)}",
            plugin=plugin,
            arrived=kind_of(error),
            allowed="a typed error of adaverify_contracts, or none",
            remedy=_remedy(plugin, "report it to the plugin's author"),
        ) from error


def _lacking(made: object, needed: tuple[type, ...]) -> str:
    """Return what ``made`` lacks to be the nearest of ``needed``, an empty string where it is one of them."""
    if isinstance(made, type):
        # The class itself has every attribute that its instances have.
        return f"an instance: it is the class {made.__name__}"
    gaps = [tuple(name for name in _members(kind) if not _has(made, kind, name)) for kind in needed]
    return ", ".join(sorted(gaps, key=_count)[0])


def _count(names: tuple[str, ...]) -> int:
    return len(names)


def _has(made: Any, kind: type, name: str) -> bool:
    if not hasattr(made, name):
        return False
    if isinstance(vars(kind).get(name), property):
        # Keys of the verifier; other properties may have no value before their owner is bound.
        return isinstance(made.strategy, str) if name == "strategy" else True
    return callable(getattr(made, name))


def _members(kind: type) -> tuple[str, ...]:
    """Return the names that a protocol asks for, those of its bases first."""
    owners = [base for base in kind.__mro__ if getattr(base, "_is_protocol", False)]
    names = [name for base in reversed(owners) for name in vars(base) if not name.startswith("_")]
    return tuple(dict.fromkeys(names))


def _members_in_words(kind: type) -> str:
    return f", an object with {', '.join(_members(kind))}"


def _remedy(plugin: str, first: str) -> str:
    return f"{first}, or list {plugin} in ADAVERIFY_PLUGINS_DISABLED"
