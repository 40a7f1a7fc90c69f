"""The plugin manager: one typed method per hook; nobody else touches pluggy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pluggy

from adaverify_contracts import (
    PROJECT_NAME,
    AdaverifyError,
    BenchmarkDescriptor,
    Capability,
    DecodeStrategyDescriptor,
    DrafterDescriptor,
    DuplicateNameError,
    GraphBackendDescriptor,
    LoadOutcome,
    ModelDescriptor,
    PluginError,
    PolicyDescriptor,
    ProbeDescriptor,
    Requirements,
    SignalDescriptor,
    StepRecord,
    UnknownNameError,
    hookspecs,
)
from adaverify_runtime._hook_checks import (
    check_hooks,
    check_plugin,
    examining,
    registration_error,
    requirements_of,
)

D = TypeVar("D")

# Hook name -> (word for messages, descriptor type), in the order of hookspecs.py: the order of the calls.
REGISTRATION_HOOKS: dict[str, tuple[str, type]] = {
    "adaverify_register_probes": ("probe", ProbeDescriptor),
    "adaverify_register_decode_strategies": ("decode strategy", DecodeStrategyDescriptor),
    "adaverify_register_signals": ("signal", SignalDescriptor),
    "adaverify_register_policies": ("policy", PolicyDescriptor),
    "adaverify_register_graph_backends": ("graph backend", GraphBackendDescriptor),
    "adaverify_register_drafters": ("drafter", DrafterDescriptor),
    "adaverify_register_models": ("model", ModelDescriptor),
    "adaverify_register_benchmarks": ("benchmark", BenchmarkDescriptor),
}
OBSERVER_HOOK = "adaverify_step_recorded"


@dataclass(frozen=True, slots=True)
class Registered(Generic[D]):
    """A descriptor with its origin: ``plugin`` is the entry point's name, ``owner`` the distribution."""

    descriptor: D
    plugin: str
    owner: str
    version: str


@dataclass(frozen=True, slots=True)
class PluginOutcome:
    """What became of one discovered plugin, and why; ``traceback`` is kept for failures."""

    name: str
    owner: str
    version: str
    outcome: LoadOutcome
    reason: str
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Observer:
    """One implementation of ``adaverify_step_recorded``, resolved to a plain callable."""

    plugin: str
    call: Callable[[StepRecord], None] = field(repr=False)


class PluginManager:
    """Holds the plugins and what they registered.

    Registration hooks are called once, when a plugin is registered, in the order of ``hookspecs.py``; the
    methods below only return what was resolved then. A plugin that breaks the contract leaves no trace.
    """

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT_NAME)
        self._pluggy.add_hookspecs(hookspecs)
        self._registered: dict[str, list[Registered[Any]]] = {hook: [] for hook in REGISTRATION_HOOKS}
        self._observers: list[Observer] = []
        self._plugins: dict[str, tuple[object, str, str]] = {}
        self._requires: dict[str, Requirements] = {}
        self._outcomes: dict[str, PluginOutcome] = {}
        self._named: set[str] = set()
        self.warnings: list[str] = []

    # Registration.

    def register(self, plugin: object, name: str, *, owner: str | None = None, version: str = "") -> None:
        """Register ``plugin`` and call its registration hooks once, or leave everything as it was.

        Args:
            plugin: a module or object whose functions carry ``hookimpl``.
            name: the entry point's name.
            owner: the distribution it came from; ``name`` when there is none.
            version: that distribution's version.

        Raises:
            PluginError: it is no plugin, or registered already; the name is taken or no name; a hook is
                misspelt, unmarked, wrapped or has a wrong signature, or returned something other than a list
                or tuple of its descriptors; ``ADAVERIFY_REQUIRES`` is no ``Requirements``.
            DuplicateNameError: a descriptor's name is taken; names both distributions.
            BaseException: whatever a registration hook raised.
        """
        check_plugin(plugin, name)
        owner = owner or name
        if name in self._plugins:
            raise DuplicateNameError("plugin", name, (self._plugins[name][1], owner))
        for taken, (known, _, _) in self._plugins.items():
            if known is plugin:
                raise _registered_already(plugin, name, taken)
        with examining(name):
            check_hooks(plugin, name)
            requires = requirements_of(plugin, name)
            self._register_in_pluggy(plugin, name)
        try:
            found = self._resolve(plugin, name, owner, version)
            self._require_unique(found)
        except BaseException:
            self._forget_in_pluggy(name)
            raise
        for hook, entries in found.items():
            self._registered[hook].extend(entries)
        self._observers.extend(self._observers_of(plugin, name))
        self._plugins[name] = (plugin, owner, version)
        if requires is not None:
            self._requires[name] = requires
        self.record(PluginOutcome(name, owner, version, LoadOutcome.LOADED, "all hooks resolved"))

    def unregister(self, name: str) -> None:
        """Drop a plugin and everything it registered.

        Raises:
            UnknownNameError: no plugin of that name is registered.
        """
        if name not in self._plugins:
            raise UnknownNameError("registered plugin", name, tuple(self._plugins), self.not_loaded())
        del self._plugins[name]
        self._requires.pop(name, None)
        self._forget_in_pluggy(name)
        for hook, entries in self._registered.items():
            self._registered[hook] = [entry for entry in entries if entry.plugin != name]
        self._observers = [observer for observer in self._observers if observer.plugin != name]
        self._outcomes.pop(name, None)

    def record(self, outcome: PluginOutcome) -> None:
        """Keep the outcome of one discovered plugin for the start-up report."""
        self._outcomes[outcome.name] = outcome

    def warn(self, text: str) -> None:
        """Keep a warning for the start-up report."""
        self.warnings.append(text)

    def name_explicitly(self, names: tuple[str, ...]) -> None:
        """Remember plugins that the user named: any other outcome than loaded is an error for them."""
        self._named.update(names)

    @property
    def requiring(self) -> bool:
        """Whether a registered plugin requires anything of the device, which must be probed then."""
        return bool(self._requires)

    def requirements(self, name: str) -> Requirements:
        """Return the ``ADAVERIFY_REQUIRES`` of a registered plugin, empty where it says nothing."""
        return self._requires.get(name, Requirements())

    def check_requirements(self, capability: Capability) -> None:
        """Drop plugins whose ``ADAVERIFY_REQUIRES`` the device does not meet; call once it was probed.

        Everything they registered goes with them: use nothing that was taken from the manager before.

        Raises:
            PluginError: a plugin the user named is among them.
        """
        unmet: list[PluginOutcome] = []
        for name, requires in list(self._requires.items()):
            if reasons := requires.unmet(capability):
                _, owner, version = self._plugins[name]
                self.unregister(name)
                outcome = PluginOutcome(name, owner, version, LoadOutcome.UNMET, "; ".join(reasons))
                self.record(outcome)
                unmet.append(outcome)
        self.fail_if_named(unmet)

    def fail_if_named(self, outcomes: list[PluginOutcome]) -> None:
        """Raise one error for all plugins among ``outcomes`` that the user named explicitly.

        Raises:
            PluginError: lists each with its reason, and what was discovered.
        """
        failed = [outcome for outcome in outcomes if outcome.name in self._named]
        if not failed:
            return
        listing = "; ".join(f"{item.name} ({item.outcome.value}): {item.reason}" for item in failed)
        problem = f"a plugin that was named explicitly cannot be used: {listing}"
        raise PluginError(
            problem,
            plugin=failed[0].name,
            arrived=tuple(item.name for item in failed),
            allowed=f"one that loads; discovered: {self.discovered()}",
            remedy="cure the reason, or take the name out of ADAVERIFY_PLUGINS_ENABLED or _REQUIRED",
        )

    # What plugins registered.

    def probes(self) -> tuple[Registered[ProbeDescriptor], ...]:
        """Return kernel probes in registration order."""
        return tuple(self._registered["adaverify_register_probes"])

    def decode_strategies(self) -> tuple[Registered[DecodeStrategyDescriptor], ...]:
        """Return decode strategies in registration order."""
        return tuple(self._registered["adaverify_register_decode_strategies"])

    def signals(self) -> tuple[Registered[SignalDescriptor], ...]:
        """Return confidence sources in registration order."""
        return tuple(self._registered["adaverify_register_signals"])

    def policies(self) -> tuple[Registered[PolicyDescriptor], ...]:
        """Return budget policies in registration order."""
        return tuple(self._registered["adaverify_register_policies"])

    def graph_backends(self) -> tuple[Registered[GraphBackendDescriptor], ...]:
        """Return graph backends in registration order."""
        return tuple(self._registered["adaverify_register_graph_backends"])

    def drafters(self) -> tuple[Registered[DrafterDescriptor], ...]:
        """Return drafters in registration order."""
        return tuple(self._registered["adaverify_register_drafters"])

    def models(self) -> tuple[Registered[ModelDescriptor], ...]:
        """Return target models in registration order."""
        return tuple(self._registered["adaverify_register_models"])

    def benchmarks(self) -> tuple[Registered[BenchmarkDescriptor], ...]:
        """Return benchmarks in registration order."""
        return tuple(self._registered["adaverify_register_benchmarks"])

    def step_observers(self) -> tuple[Observer, ...]:
        """Return the implementations of ``adaverify_step_recorded`` in registration order."""
        return tuple(self._observers)

    def step_recorded(self, record: StepRecord) -> None:
        """Call every observer with ``record``, in registration order; an exception reaches the caller."""
        for observer in self._observers:
            observer.call(record)

    def plugins(self) -> tuple[PluginOutcome, ...]:
        """Return every discovered plugin with its outcome, in discovery order."""
        return tuple(self._outcomes.values())

    def discovered(self) -> str:
        """Return the discovered plugins in words, for messages."""
        return (
            ", ".join(f"{item.name} ({item.outcome.value})" for item in self._outcomes.values()) or "nothing"
        )

    def not_loaded(self) -> tuple[str, ...]:
        """Return every discovered plugin that is not used, in words: one text for each reason."""
        grouped: dict[tuple[str, str], list[str]] = {}
        for item in self._outcomes.values():
            if item.outcome is not LoadOutcome.LOADED:
                grouped.setdefault((item.outcome.value, item.reason), []).append(item.name)
        return tuple(
            f"{_plugins_were(names)} not loaded ({outcome}): {reason}"
            for (outcome, reason), names in grouped.items()
        )

    # Resolution.

    def _resolve(
        self, plugin: object, name: str, owner: str, version: str
    ) -> dict[str, list[Registered[Any]]]:
        found: dict[str, list[Registered[Any]]] = {}
        for hook, (_, kind) in REGISTRATION_HOOKS.items():
            for function in self._implementations(hook, plugin):
                descriptors = function()
                if not isinstance(descriptors, (list, tuple)):
                    raise _wrong_result(name, hook, descriptors, kind)
                for descriptor in descriptors:
                    if not isinstance(descriptor, kind):
                        raise _wrong_result(name, hook, descriptor, kind)
                entries = [Registered(descriptor, name, owner, version) for descriptor in descriptors]
                found.setdefault(hook, []).extend(entries)
        return found

    def _require_unique(self, found: dict[str, list[Registered[Any]]]) -> None:
        for hook, entries in found.items():
            owners = {entry.descriptor.name: entry.owner for entry in self._registered[hook]}
            for entry in entries:
                name = entry.descriptor.name
                if name in owners:
                    raise DuplicateNameError(REGISTRATION_HOOKS[hook][0], name, (owners[name], entry.owner))
                owners[name] = entry.owner

    def _observers_of(self, plugin: object, name: str) -> list[Observer]:
        observers = []
        for impl in getattr(self._pluggy.hook, OBSERVER_HOOK).get_hookimpls():
            if impl.plugin is plugin:
                # An implementation may leave the argument out; pluggy would then not pass it.
                call = impl.function if impl.argnames else _without_argument(impl.function)
                observers.append(Observer(name, call))
        return observers

    def _implementations(self, hook: str, plugin: object) -> list[Callable[[], Any]]:
        implementations = getattr(self._pluggy.hook, hook).get_hookimpls()
        return [impl.function for impl in implementations if impl.plugin is plugin]

    def _register_in_pluggy(self, plugin: object, name: str) -> None:
        try:
            self._pluggy.register(plugin, name)
            self._pluggy.check_pending()
        except BaseException as error:
            # pluggy records the plugin before it checks its hooks, so a failure leaves half of it behind.
            self._forget_in_pluggy(name)
            if isinstance(error, ValueError | pluggy.PluginValidationError):
                raise registration_error(plugin, name, error) from error
            raise

    def _forget_in_pluggy(self, name: str) -> None:
        # By name: pluggy compares plugins by equality, and another one may say that it is equal.
        if self._pluggy.has_plugin(name):
            self._pluggy.unregister(name=name)


def pick(
    entries: tuple[Registered[D], ...], kind: str, name: str, not_loaded: tuple[str, ...] = ()
) -> Registered[D]:
    """Return the entry whose descriptor is called ``name``.

    Args:
        entries: what is registered.
        kind: word for it, for the message.
        name: the descriptor's.
        not_loaded: what ``PluginManager.not_loaded`` says, for the message.

    Raises:
        UnknownNameError: nothing registered it; lists the known names, and plugins that are not used.
    """
    for entry in entries:
        if entry.descriptor.name == name:  # type: ignore[attr-defined]
            return entry
    known = tuple(entry.descriptor.name for entry in entries)  # type: ignore[attr-defined]
    raise UnknownNameError(kind, name, known, not_loaded)


def _plugins_were(names: list[str]) -> str:
    return f"plugin {names[0]} was" if len(names) == 1 else f"plugins {', '.join(names)} were"


def _without_argument(function: Callable[[], None]) -> Callable[[StepRecord], None]:
    return lambda _record: function()


def _registered_already(plugin: object, name: str, taken: str) -> PluginError:
    return PluginError(
        f"plugin {name!r} cannot be registered: it is registered as {taken!r} already",
        plugin=name,
        arrived=plugin,
        allowed="each plugin object once, under one name",
        remedy=f"use {taken!r}, or unregister it first",
    )


def _wrong_result(name: str, hook: str, result: object, kind: type) -> AdaverifyError:
    problem = f"plugin {name!r}: {hook} returned something that is not a {kind.__name__}"
    return PluginError(
        problem,
        plugin=name,
        arrived=result,
        allowed=f"a list or tuple of {kind.__name__}, possibly empty",
        remedy=f"return descriptors from {hook}, and do no work in it",
    )
