"""Choosing decode strategies: every candidate with all its reasons, and never a silent replacement."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import (
    Capability,
    DecodeStrategyDescriptor,
    GraphSupport,
    Limits,
    NoStrategyError,
)
from adaverify_contracts.describing import describe, shown
from adaverify_runtime.plugins import PluginManager, Registered, pick

RAGGED = "ragged"
UNIFORM = "uniform"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One registered strategy as selection saw it.

    Attributes:
        role: ``ragged`` for strategies that read device lengths, else ``uniform``.
        reasons: every reason why it cannot be used here, all at once; empty when it can.
        chosen: whether a verifier would use it.
        behind: for one that fits and is not chosen, what was preferred and by which rule; else empty.
    """

    name: str
    owner: str
    version: str
    role: str
    priority: int
    graph_support: GraphSupport
    device_lengths: bool
    evidence: str
    reasons: tuple[str, ...]
    chosen: bool
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen strategies; either may be None, never both.

    Attributes:
        ragged: serves any query lengths, read from the device.
        uniform: serves batches whose common query length the host knows; None means ragged serves those too.
        candidates: every registered strategy, best first.
        notes: in words, what was taken instead of what, and why.
        alternatives: other ragged strategies that fit, best first; none when one was named explicitly.
    """

    ragged: DecodeStrategyDescriptor | None
    uniform: DecodeStrategyDescriptor | None
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]
    alternatives: tuple[DecodeStrategyDescriptor, ...] = ()


def select_strategies(
    plugins: PluginManager,
    capability: Capability,
    limits: Limits | None,
    mode: str,
    named: str | None = None,
    *,
    use_graphs: bool = False,
) -> Selection:
    """Choose a ragged and a uniform strategy: the highest priority that fits, of equals the first by name.

    Mode ``adaptive`` needs a strategy that reads device lengths and, when graphs are to be used, graph
    support of ``VARLEN_DECODE``; both are checked together. The other modes can do with a uniform strategy
    alone, and then refuse ragged batches.

    Args:
        plugins: the registered strategies.
        capability: what the device can do; injectable.
        limits: sizes of the deployment; None skips the strategies' own opinion of them.
        mode: ``none``, ``fixed`` or ``adaptive``.
        named: a strategy the user asked for; it must fit, and takes the role it can play.
        use_graphs: whether decode steps will be captured.

    Raises:
        UnknownNameError: nothing registered ``named``.
        NoStrategyError: the named strategy does not fit, or none does; carries all reasons of all.
    """
    entries = _ranked(plugins)
    if named is not None:
        pick(tuple(entries), "decode strategy", named, plugins.not_loaded())
    reasons = {
        entry.descriptor.name: _reasons(entry.descriptor, capability, limits, mode, use_graphs)
        for entry in entries
    }
    if named is not None:
        asked = next(entry.descriptor for entry in entries if entry.descriptor.name == named)
        if mode == "adaptive" and not asked.device_lengths:
            reasons[named] = (*reasons[named], _NOT_RAGGED)
        if reasons[named]:
            problem = f"decode strategy {named!r} was named explicitly and does not fit"
            remedy = f"cure the reasons of {named}, or name no strategy to have one chosen"
            listed = {name: why or ("fits",) for name, why in reasons.items()}
            raise NoStrategyError(problem, listed, remedy=remedy, asked=named)
    notes: list[str] = []
    ragged = _best(entries, reasons, RAGGED, named, notes)
    uniform = _best(entries, reasons, UNIFORM, named, notes)
    if ragged is None and (mode == "adaptive" or uniform is None):
        needed = " that reads ragged lengths from the device" if mode == "adaptive" else ""
        problem = f"mode {mode!r} needs a decode strategy{needed}, and none fits this device"
        listed = {name: why or (_NOT_RAGGED,) for name, why in reasons.items()}
        remedy = "cure the reasons of one of them, or turn trimming off with mode 'fixed'"
        raise NoStrategyError(problem, listed, remedy=remedy if mode == "adaptive" else None)
    if ragged is None:
        notes.append(f"ragged: none fits; mode {mode!r} then refuses a batch whose query lengths differ")
    if uniform is None:
        notes.append("uniform: none fits; the ragged strategy serves uniform batches too")
    winners = tuple(descriptor for descriptor in (ragged, uniform) if descriptor is not None)
    candidates = tuple(_candidate(entry, reasons, winners, named) for entry in entries)
    others = (
        ()
        if ragged is None or ragged.name == named
        else tuple(
            entry.descriptor
            for entry in entries
            if entry.descriptor is not ragged
            and entry.descriptor.device_lengths
            and not reasons[entry.descriptor.name]
        )
    )
    return Selection(ragged, uniform, candidates, tuple(notes), others)


def review_strategies(
    plugins: PluginManager,
    capability: Capability,
    limits: Limits | None,
    mode: str,
    *,
    use_graphs: bool = False,
) -> tuple[Candidate, ...]:
    """Return every registered strategy with all its reasons, best first, choosing none."""
    entries = _ranked(plugins)
    reasons = {
        entry.descriptor.name: _reasons(entry.descriptor, capability, limits, mode, use_graphs)
        for entry in entries
    }
    return tuple(_candidate(entry, reasons, ()) for entry in entries)


def _ranked(plugins: PluginManager) -> list[Registered[DecodeStrategyDescriptor]]:
    return sorted(
        plugins.decode_strategies(), key=lambda entry: (-entry.descriptor.priority, entry.descriptor.name)
    )


_NOT_RAGGED = "does not read device lengths, so it cannot serve a trimmed batch"


def _role(descriptor: DecodeStrategyDescriptor) -> str:
    return RAGGED if descriptor.device_lengths else UNIFORM


def _reasons(
    descriptor: DecodeStrategyDescriptor,
    capability: Capability,
    limits: Limits | None,
    mode: str,
    use_graphs: bool,
) -> tuple[str, ...]:
    reasons = list(descriptor.requirements.unmet(capability))
    if use_graphs:
        ragged = descriptor.device_lengths and mode == "adaptive"
        needed = GraphSupport.VARLEN_DECODE if ragged else GraphSupport.UNIFORM_BATCH
        # In the other modes a ragged batch runs without a graph, so a ragged strategy needs no support.
        if descriptor.graph_support < needed and (ragged or not descriptor.device_lengths):
            reasons.append(f"graph support is {descriptor.graph_support.name}, needs {needed.name}")
    if limits is not None:
        reasons.extend(limit_reasons(descriptor, limits))
    return tuple(reasons)


def limit_reasons(descriptor: DecodeStrategyDescriptor, limits: Limits) -> tuple[str, ...]:
    """Return why a strategy does not serve these sizes; that it cannot answer is itself a reason."""
    if descriptor.supports is None:
        return ()
    try:
        answer: object = descriptor.supports(limits)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's predicate
        return (f"its question about limits raised {describe(error)}",)
    if isinstance(answer, list | tuple) and all(isinstance(item, str) for item in answer):
        return tuple(answer)
    return (f"its question about limits returned {shown(answer)}, and not a tuple of reasons",)


def _best(
    entries: list[Registered[DecodeStrategyDescriptor]],
    reasons: dict[str, tuple[str, ...]],
    role: str,
    named: str | None,
    notes: list[str],
) -> DecodeStrategyDescriptor | None:
    ranked = [entry.descriptor for entry in entries if _role(entry.descriptor) == role]
    for descriptor in ranked:
        if descriptor.name == named:
            notes.append(f"{role}: {named} was named explicitly")
            return descriptor
    for place, descriptor in enumerate(ranked):
        if reasons[descriptor.name]:
            continue
        notes.append(f"{role}: {_taken(descriptor, ranked, place, reasons)}")
        return descriptor
    return None


def _taken(
    winner: DecodeStrategyDescriptor,
    ranked: list[DecodeStrategyDescriptor],
    place: int,
    reasons: dict[str, tuple[str, ...]],
) -> str:
    """Say why the one at ``place`` was taken: reasons are parted by semicolons, strategies by bars."""
    words = f"took {winner.name} (priority {winner.priority}), the highest that fits"
    equals = [
        other.name
        for other in ranked[place + 1 :]
        if other.priority == winner.priority and not reasons[other.name]
    ]
    if equals:
        verb = "has" if len(equals) == 1 else "have"
        words += f"; {', '.join(equals)} {verb} the same priority, and {winner.name} sorts first by name"
    if place:
        passed = " | ".join(
            f"{other.name} (priority {other.priority}): {'; '.join(reasons[other.name])}"
            for other in ranked[:place]
        )
        words += f"; those before it do not fit: {passed}"
    return words


def _behind(
    descriptor: DecodeStrategyDescriptor, winners: tuple[DecodeStrategyDescriptor, ...], named: str | None
) -> str:
    """Return by which rule a strategy that fits is not the one taken, empty where nothing was taken."""
    for winner in winners:
        if _role(winner) != _role(descriptor) or winner is descriptor:
            continue
        if winner.name == named:
            return f"fits; {winner.name} was named explicitly"
        if winner.priority == descriptor.priority:
            return f"fits; {winner.name} has the same priority and sorts first by name"
        return f"fits; {winner.name} has the higher priority {winner.priority}"
    return ""


def _candidate(
    entry: Registered[DecodeStrategyDescriptor],
    reasons: dict[str, tuple[str, ...]],
    winners: tuple[DecodeStrategyDescriptor, ...],
    named: str | None = None,
) -> Candidate:
    descriptor = entry.descriptor
    why = reasons[descriptor.name]
    return Candidate(
        name=descriptor.name,
        owner=entry.owner,
        version=entry.version,
        role=_role(descriptor),
        priority=descriptor.priority,
        graph_support=descriptor.graph_support,
        device_lengths=descriptor.device_lengths,
        evidence=descriptor.evidence,
        reasons=why,
        chosen=any(winner.name == descriptor.name for winner in winners),
        behind="" if why else _behind(descriptor, winners, named),
    )
