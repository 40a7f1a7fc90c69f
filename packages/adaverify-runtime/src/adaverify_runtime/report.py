"""The start-up report: what is there, what was chosen, and every reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from adaverify_contracts import Capability
from adaverify_runtime.backends import BackendCandidate
from adaverify_runtime.plugins import PluginManager, PluginOutcome, Registered
from adaverify_runtime.selection import Candidate


@dataclass(frozen=True, slots=True)
class Component:
    """A registered signal, policy, drafter, model or benchmark; ``facts`` are what it declares."""

    name: str
    owner: str
    version: str
    facts: dict[str, Any]
    chosen: bool


@dataclass(frozen=True, slots=True)
class StartupReport:
    """Everything that was discovered, chosen or not, before any model is loaded.

    Attributes:
        mode: ``none``, ``fixed`` or ``adaptive``.
        capability: device facts and kernels.
        plugins: every discovered plugin with its outcome and reason.
        strategies: every decode strategy, best first, with all reasons.
        backends: every graph backend, best first, with all reasons.
        signals, policies, drafters, models, benchmarks: everything registered.
        notes: decisions in words: what was taken instead of what, and why.
        warnings: what the user should look at: unknown variables, plugins that failed.
        problems: what keeps a verifier from being assembled; empty when one can be.
        settings: the settings in force.
    """

    mode: str
    capability: Capability
    plugins: tuple[PluginOutcome, ...]
    strategies: tuple[Candidate, ...]
    backends: tuple[BackendCandidate, ...]
    signals: tuple[Component, ...]
    policies: tuple[Component, ...]
    drafters: tuple[Component, ...]
    models: tuple[Component, ...]
    benchmarks: tuple[Component, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    settings: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; levels appear by name."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def plugin_warnings(plugins: PluginManager) -> tuple[str, ...]:
    """Return one warning for each plugin that did not load for another reason than the user's wish."""
    quiet = ("LOADED", "DISABLED")
    return tuple(plugins.warnings) + tuple(
        f"plugin {item.name} of {item.owner} was not loaded ({item.outcome.value}): {item.reason}"
        for item in plugins.plugins()
        if item.outcome.name not in quiet
    )


def components(
    entries: tuple[Registered[Any], ...], facts: tuple[str, ...], chosen: str | None = None
) -> tuple[Component, ...]:
    """Return the registered descriptors with the fields named in ``facts``."""
    return tuple(
        Component(
            name=entry.descriptor.name,
            owner=entry.owner,
            version=entry.version,
            facts={name: getattr(entry.descriptor, name) for name in facts},
            chosen=entry.descriptor.name == chosen,
        )
        for entry in entries
    )


def _plain(value: Any) -> Any:
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
