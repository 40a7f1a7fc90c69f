"""Typed errors shared by every adaverify distribution.

Each error says what arrived, what was allowed and what to do, and keeps the three as attributes so that a
caller can act on them without parsing text.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any, Self

from adaverify_contracts.describing import shown


class _Said(Enum):
    """Tells an error about no value from one about the value None."""

    NOTHING = "nothing"


NOTHING = _Said.NOTHING


class AdaverifyError(Exception):
    """Base of every error adaverify raises on purpose.

    Args:
        problem: one sentence naming what is wrong.
        arrived: the offending value, kept as an attribute and shown with ``repr``, None too; without one the
            attribute is None and ``has_arrived`` False.
        allowed: what would have been accepted, in words.
        remedy: what the reader should do next, one imperative sentence.
    """

    def __init__(
        self,
        problem: str,
        *,
        arrived: object = NOTHING,
        allowed: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = problem
        self.has_arrived = arrived is not NOTHING
        self.arrived = arrived if self.has_arrived else None
        self.allowed = allowed
        self.remedy = remedy
        super().__init__(self._render())

    def _render(self) -> str:
        parts = [self.problem.rstrip(".")]
        if self.has_arrived:
            parts.append(f"arrived: {shown(self.arrived)}")
        if self.allowed is not None:
            parts.append(f"allowed: {self.allowed}")
        if self.remedy is not None:
            parts.append(f"to do: {self.remedy}")
        return "; ".join(parts)

    def within(self, place: str, remedy: str | None = None) -> Self:
        """Return this error, its type and attributes kept, said of ``place``.

        Args:
            place: what the problem is in, a file or the variable that names it; put in front.
            remedy: what else the reader can do; put behind the error's own.
        """
        told = self.advising(remedy)
        told.problem = f"{place}: {self.problem}"
        told.args = (told._render(),)
        return told

    def advising(self, remedy: str | None) -> Self:
        """Return this error, its type and attributes kept, with ``remedy`` behind what it advises already."""
        told = copy.copy(self)
        told.remedy = ", or ".join(part for part in (self.remedy, remedy) if part) or None
        told.args = (told._render(),)
        return told

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take other arguments than the text that Exception would be rebuilt from: without this an
        # error raised in a worker process cannot be unpickled, and breaks the pool instead of arriving.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[AdaverifyError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AdaverifyError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class DescriptorError(AdaverifyError):
    """A descriptor or value type was built with a field that breaks its contract."""


class SettingsError(AdaverifyError):
    """Settings are wrong; ``problems`` maps every offending variable to (value, expected form)."""

    def __init__(self, problems: dict[str, tuple[object, str]], *, remedy: str | None = None) -> None:
        self.problems = problems
        listing = "; ".join(
            f"{name} is {value!r}, expected {expected}" for name, (value, expected) in problems.items()
        )
        super().__init__(
            f"settings are not usable ({listing})",
            arrived={name: value for name, (value, _) in problems.items()},
            allowed="; ".join(f"{name}: {expected}" for name, (_, expected) in problems.items()),
            remedy=remedy or f"correct or unset {', '.join(problems)}",
        )


class PluginError(AdaverifyError):
    """A plugin cannot be used. ``plugin`` names it as its entry point does."""

    def __init__(
        self,
        problem: str,
        *,
        plugin: str | None = None,
        arrived: object = NOTHING,
        allowed: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.plugin = plugin
        super().__init__(problem, arrived=arrived, allowed=allowed, remedy=remedy)


class DuplicateNameError(PluginError):
    """Two distributions registered the same name; ``owners`` holds both."""

    def __init__(self, kind: str, name: str, owners: tuple[str, str]) -> None:
        self.kind = kind
        self.name = name
        self.owners = owners
        super().__init__(
            f"{kind} {name!r} is registered by both {owners[0]} and {owners[1]}",
            arrived=name,
            allowed="one owner for each name",
            remedy=f"uninstall or disable one of {owners[0]}, {owners[1]}",
        )


class UnknownNameError(PluginError):
    """A name was asked for that nothing registered; ``known`` lists what was discovered.

    ``not_loaded`` says which plugins are not used and why, one text for each reason: one of them may be the
    one that provides the name.
    """

    def __init__(
        self, kind: str, name: str, known: tuple[str, ...], not_loaded: tuple[str, ...] = ()
    ) -> None:
        self.kind = kind
        self.name = name
        self.known = known
        self.not_loaded = not_loaded
        cure = "cure what kept a plugin from loading, " if not_loaded else ""
        super().__init__(
            "; ".join((f"no {kind} is named {name!r}", *not_loaded)),
            arrived=name,
            allowed=", ".join(known) if known else f"none: no {kind} was discovered",
            remedy=f"{cure}install the distribution that provides it, or choose one of the allowed names",
        )


class CapabilityError(AdaverifyError):
    """The device cannot do what was asked, or could not be probed."""


class NoStrategyError(CapabilityError):
    """No decode strategy fits; ``reasons`` maps every candidate to all its reasons.

    The text gives them all, or those of the strategy ``asked`` for and the names of others that fit.
    """

    def __init__(
        self,
        problem: str,
        reasons: dict[str, tuple[str, ...]],
        *,
        remedy: str | None = None,
        asked: str | None = None,
    ) -> None:
        self.reasons = reasons
        told = {name: "; ".join(why) for name, why in sorted(reasons.items())}
        if asked is not None:
            # Who asked for one wants its reasons; the others are there to be taken instead.
            fit = [name for name, why in reasons.items() if why == ("fits",)]
            rest = [f"these fit: {', '.join(fit)}"] if fit else ["no other fits"]
            told = {asked: told[asked]} if asked in told else {}
        else:
            rest = []
        listing = " | ".join([*(f"{name}: {why}" for name, why in told.items()), *rest])
        super().__init__(
            problem,
            arrived=listing or "no candidates",
            allowed="at least one strategy whose requirements are met",
            remedy=remedy or "run `adaverify doctor` to see every strategy with every reason",
        )


class LimitsError(AdaverifyError):
    """Sizes fixed at start contradict one another."""


class LayoutError(AdaverifyError):
    """A batch's tensors or lengths do not have the layout the contract names."""


class PlanError(AdaverifyError):
    """A step state or plan is inconsistent and cannot be executed."""


class ClosedError(AdaverifyError):
    """Something was used after it had been closed."""


class LosslessError(AdaverifyError):
    """A signal and a policy together could change the output distribution."""


class CostTableError(AdaverifyError):
    """A cost table is malformed, unreadable or carries no usable measurement."""


class FingerprintMismatchError(CostTableError):
    """A cost table belongs to another setup; ``differences`` maps field to (table, here)."""

    def __init__(self, differences: dict[str, tuple[object, object]]) -> None:
        self.differences = differences
        listing = "; ".join(f"{key}: table {was!r}, here {now!r}" for key, (was, now) in differences.items())
        super().__init__(
            f"the cost table was measured on another setup ({listing})",
            arrived=tuple(differences),
            allowed="a table whose fingerprint equals this setup's",
            remedy="run `adaverify profile` here to measure a table for this setup",
        )


class CalibrationError(AdaverifyError):
    """Saved calibration is malformed, or belongs to another signal, drafter or K."""


class GraphError(AdaverifyError):
    """A graph cannot be planned, captured or replayed."""


class CaptureError(GraphError):
    """One size failed to capture; the other sizes stay usable."""


class StaleBufferError(GraphError):
    """A captured graph points at a buffer that has moved or been resized."""


class EngineError(AdaverifyError):
    """The reference engine was asked for something it cannot do."""


class ModelFileError(EngineError):
    """A model file is missing, unreadable or not what its checksum says."""


class PromptError(EngineError):
    """Prompts are missing, unreadable or empty."""


class WrongValueError(AdaverifyError):
    """A benchmark found a value that differs from its reference: it takes and prints no time."""


class TraceError(AdaverifyError):
    """A trace cannot be written or read; ``path`` and ``line`` (from 1, None for the whole) say where."""

    def __init__(
        self,
        problem: str,
        *,
        path: str,
        line: int | None = None,
        arrived: object = NOTHING,
        allowed: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.path = path
        self.line = line
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}", arrived=arrived, allowed=allowed, remedy=remedy)


class RecordsError(AdaverifyError):
    """Acceptance records are no usable truth, or their file cannot be read or written; ``path`` says which.

    ``path`` is None where the records never were in a file.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        arrived: object = NOTHING,
        allowed: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.path = path
        where = problem if path is None else f"{path}: {problem}"
        super().__init__(where, arrived=arrived, allowed=allowed, remedy=remedy)
