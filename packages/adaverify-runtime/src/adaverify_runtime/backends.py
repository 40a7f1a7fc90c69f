"""Choosing a graph backend, with all reasons."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import Capability, CapabilityError, GraphBackendDescriptor
from adaverify_runtime.plugins import PluginManager, pick


@dataclass(frozen=True, slots=True)
class BackendCandidate:
    """One registered graph backend as selection saw it; ``reasons`` is empty when it fits."""

    name: str
    owner: str
    version: str
    priority: int
    captures: bool
    reasons: tuple[str, ...]
    chosen: bool


@dataclass(frozen=True, slots=True)
class BackendSelection:
    """The chosen backend, None when nothing fits, and every candidate, best first."""

    chosen: GraphBackendDescriptor | None
    candidates: tuple[BackendCandidate, ...]


def select_backend(
    plugins: PluginManager, capability: Capability, named: str | None = None
) -> BackendSelection:
    """Choose the graph backend of highest priority that fits, or the one the user named.

    Raises:
        UnknownNameError: nothing registered ``named``.
        CapabilityError: the named backend does not fit; lists all reasons.
    """
    entries = sorted(
        plugins.graph_backends(), key=lambda entry: (-entry.descriptor.priority, entry.descriptor.name)
    )
    reasons = {entry.descriptor.name: entry.descriptor.requirements.unmet(capability) for entry in entries}
    chosen = next((entry.descriptor for entry in entries if not reasons[entry.descriptor.name]), None)
    if named is not None:
        chosen = pick(tuple(entries), "graph backend", named, plugins.not_loaded()).descriptor
        if reasons[named]:
            problem = f"graph backend {named!r} was named explicitly and does not fit"
            allowed = "a backend whose requirements are met"
            remedy = "cure the reasons, or unset ADAVERIFY_GRAPHS_BACKEND"
            raise CapabilityError(problem, arrived=reasons[named], allowed=allowed, remedy=remedy)
    candidates = tuple(
        BackendCandidate(
            name=entry.descriptor.name,
            owner=entry.owner,
            version=entry.version,
            priority=entry.descriptor.priority,
            captures=entry.descriptor.captures,
            reasons=reasons[entry.descriptor.name],
            chosen=entry.descriptor is chosen,
        )
        for entry in entries
    )
    return BackendSelection(chosen, candidates)
