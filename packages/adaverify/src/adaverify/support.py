"""Which strategy serves which architecture, and how far that was proven, read from the plugins themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from adaverify_capability import ARCHITECTURES, CPU, assume
from adaverify_contracts import DecodeStrategyDescriptor, Requirements, UnknownNameError
from adaverify_runtime import PluginManager

ANY = "any"
REFUSED = "-"


@dataclass(frozen=True, slots=True)
class SupportMatrix:
    """One row a strategy, one column an architecture that a plugin names, and ``cpu``.

    Attributes:
        architectures: the columns.
        rows: for each strategy its facts and, by architecture, the level: the strategy's ``evidence`` where
            it names the architecture, ``any`` where it requires none and so is admitted without a proof on
            that one, ``-`` where it is refused.
    """

    architectures: tuple[str, ...]
    rows: tuple[SupportRow, ...]


@dataclass(frozen=True, slots=True)
class SupportRow:
    """One strategy with its level on every architecture of the matrix."""

    strategy: str
    levels: dict[str, str]
    evidence: str
    graph_support: str
    device_lengths: bool
    priority: int
    plugin: str
    owner: str


def support_matrix(plugins: PluginManager) -> SupportMatrix:
    """Return the matrix of every registered strategy; no device is touched."""
    entries = plugins.decode_strategies()
    named = {word for entry in entries for word in entry.descriptor.requirements.architectures}
    architectures = (CPU, *sorted(named - {CPU}, key=_by_number))
    rows = tuple(
        SupportRow(
            strategy=entry.descriptor.name,
            levels={
                word: level(entry.descriptor, word, plugins.requirements(entry.plugin))
                for word in architectures
            },
            evidence=entry.descriptor.evidence,
            graph_support=entry.descriptor.graph_support.name.lower(),
            device_lengths=entry.descriptor.device_lengths,
            priority=entry.descriptor.priority,
            plugin=entry.plugin,
            owner=entry.owner,
        )
        for entry in entries
    )
    return SupportMatrix(architectures, rows)


def level(strategy: DecodeStrategyDescriptor, architecture: str, plugin: Requirements | None = None) -> str:
    """Return how far a strategy is proven on an architecture, by the predicates that select it.

    Args:
        strategy: as registered.
        architecture: a word.
        plugin: what the strategy's plugin requires as a whole; nothing when None.
    """
    needs = strategy.requirements
    if _refuses(needs, architecture) or (plugin is not None and _refuses(plugin, architecture)):
        return REFUSED
    own = architecture in needs.architectures or needs.device_types == (CPU,)
    return strategy.evidence if own else ANY


def _refuses(needs: Requirements, architecture: str) -> bool:
    if architecture not in ARCHITECTURES:
        return bool(needs.architectures) and architecture not in needs.architectures
    # Kernels and modules are a matter of one machine; the matrix is about the chip.
    chip = assume(architecture, kernels=needs.kernels)
    return bool(replace(needs, modules=()).unmet(chip))


def known_kernels(plugins: PluginManager) -> tuple[str, ...]:
    """Return every kernel name that a probe reports, or that anything registered requires, sorted."""
    names = {entry.descriptor.name for entry in plugins.probes()}
    for strategy in plugins.decode_strategies():
        names.update(strategy.descriptor.requirements.kernels)
    for backend in plugins.graph_backends():
        names.update(backend.descriptor.requirements.kernels)
    for benchmark in plugins.benchmarks():
        names.update(benchmark.descriptor.requirements.kernels)
    return tuple(sorted(names))


def require_kernels(names: Iterable[str], plugins: PluginManager) -> None:
    """Refuse a kernel that nothing installed knows: assuming it would change nothing, in silence.

    Raises:
        UnknownNameError: lists the known ones.
    """
    known = known_kernels(plugins)
    for name in names:
        if name not in known:
            raise UnknownNameError("kernel", name, known, plugins.not_loaded())


def _by_number(word: str) -> tuple[str, int, str]:
    match = re.match(r"([a-z]+)(\d*)", word)
    letters, digits = match.groups() if match else (word, "")
    return letters, int(digits or 0), word
