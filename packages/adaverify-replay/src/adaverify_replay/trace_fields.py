"""The fields of a trace's record: what each may hold, and in words what is wrong with one."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from adaverify_contracts import PlanState, StepRecord

_LARGEST = 2**63
_TYPES = get_type_hints(StepRecord)
_STATES = tuple(state.value for state in PlanState)


def fault_of(name: str, value: object) -> tuple[str, str] | None:
    """Return what is wrong with the value of a record's field and what is allowed; None where it fits.

    ``rows`` are judged by ``read_rows``.
    """
    kinds = _kinds(_TYPES[name])
    if not any(_is(value, kind) for kind in kinds):
        wanted = getattr(_TYPES[name], "__name__", str(_TYPES[name]))
        return f"the record's {name} has the wrong type", wanted
    # Python's JSON reads NaN, Infinity and ints of any length. Every number of a record counts or measures.
    if isinstance(value, float) and not (math.isfinite(value) and 0 <= value < _LARGEST):
        return f"the record's {name} is out of range", "a finite number, 0 or more, below 2**63"
    if isinstance(value, int) and not 0 <= value < _LARGEST:
        return f"the record's {name} is out of range", "0 .. 2**63 - 1"
    if name == "state" and value not in _STATES:
        return "the record's state is none that a plan has", ", ".join(_STATES)
    return None


def repeated(earlier: list[StepRecord], record: StepRecord) -> bool:
    """Return whether a record's step number is taken by the record before it.

    Numbers rise within a run. A trace may hold several runs, one after the other, and a lower number begins
    the next one; so does an equal number after a run of a single step, unless it is the same line again. An
    engine's second outcome of one step is told by the fallback that it was counted as.
    """
    if not earlier or earlier[-1].step != record.step:
        return False
    last = earlier[-1]
    alone = len(earlier) == 1 or earlier[-2].step >= record.step
    counted = not set(record.fallbacks) <= set(last.fallbacks)
    return last == record or not (alone or counted)


def _kinds(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)


def _is(value: object, kind: Any) -> bool:
    if kind is NoneType:
        return value is None
    if isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float)
    if isinstance(value, tuple):
        return get_args(kind) != () and all(isinstance(item, str) for item in value)
    return isinstance(value, kind) if isinstance(kind, type) else False
