"""Checks that the host values of a step apply to themselves: arrays, counts and slots."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

from adaverify_contracts.errors import PlanError

# Plans are digested, and so exported, as integers of 64 bits.
LARGEST = 2**63 - 1
# More than any batch has; a step emits at most one token a request beside its accepted drafts.
MOST_REQUESTS = 2**24
# Arrays up to this long are summed as lists: NumPy's first microsecond goes into the call.
_SHORT = 64


class Drafts(NamedTuple):
    """Draft counts of a batch: their sum, the smallest and the largest; 0 for no requests."""

    total: int
    least: int
    most: int


# Decode batches repeat: comparing with the last values that passed takes 0.2 us, where looking for duplicates
# among 256 takes 5 and three reductions take 6. Each is dtype and bytes, and what was found of them.
_slots: tuple[tuple[Any, bytes], int] | None = None
_drafts: tuple[tuple[Any, bytes], Drafts] | None = None

_WORDS = {"i": "signed integers", "f": "floats", "b": "bool"}


def array(owner: str, field: str, value: object, kind: str, dims: int = 1) -> None:
    """Require a NumPy array of one kind of dtype: ``i`` signed integers, ``f`` floats, ``b`` bool."""
    try:
        if value.dtype.kind == kind and value.ndim == dims:  # type: ignore[attr-defined]
            return
    except AttributeError:
        # A torch dtype has no kind: a tensor is refused here, and not by a wait for its device later.
        pass
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", None) != kind or len(getattr(value, "shape", ())) != dims:
        shape = getattr(value, "shape", None)
        raise PlanError(
            f"{owner}.{field} is not the array it should be",
            arrived=type(value).__name__ if dtype is None else (str(dtype), tuple(shape or ())),
            allowed=f"a NumPy array of {_WORDS[kind]} with {dims} dimension{'s' if dims > 1 else ''}",
            remedy=f"build {field} with np.array(..., dtype=...) as documented",
        )


def are_rows(first: Any, second: Any, third: Any) -> bool:
    """Return whether three values are signed integers [R] of one dtype at a glance; False says nothing."""
    try:
        dtype = first.dtype
        return (
            dtype is second.dtype is third.dtype
            and dtype.kind == "i"
            and first.ndim == 1
            and first.shape == second.shape == third.shape
        )
    except AttributeError:
        return False


def are_usual(integers: Sequence[Any], flags: Sequence[Any], scores: Any) -> bool:
    """Return whether arrays pass ``array`` and ``same_length`` at a glance; False says nothing.

    Args:
        integers: should be signed integers [R] of one dtype.
        flags: should be bool [R].
        scores: should be floats [R, K].
    """
    first = integers[0]
    try:
        dtype, shape = first.dtype, first.shape
        if dtype.kind != "i" or len(shape) != 1 or scores.dtype.kind != "f" or scores.ndim != 2:
            return False
        for values in integers:
            if values.dtype is not dtype or values.shape != shape:
                return False
        for values in flags:
            if values.dtype.kind != "b" or values.shape != shape:
                return False
    except AttributeError:
        return False
    return len(scores) == len(first)


def same_length(owner: str, arrays: dict[str, Any]) -> None:
    """Require one entry a request in each array."""
    if len({len(values) for values in arrays.values()}) > 1:
        raise lengths_disagree(owner, arrays)


def lengths_disagree(owner: str, arrays: dict[str, Any]) -> PlanError:
    """Return the refusal of arrays that have not one entry a request each."""
    return PlanError(
        f"{owner} arrays disagree about the number of requests",
        arrived={name: len(values) for name, values in arrays.items()},
        allowed="one entry a request in each",
        remedy="build them from one list of requests",
    )


def is_int(value: object) -> bool:
    """Return whether ``value`` is an integer of Python or NumPy; a bool is none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def count(owner: str, field: str, value: object, most: int = LARGEST) -> None:
    """Require an integer in 0 .. ``most``."""
    if type(value) is int and 0 <= value <= most:
        return
    if not is_int(value) or not 0 <= value <= most:  # type: ignore[operator]
        raise PlanError(
            f"{owner}.{field} is no count",
            arrived=value,
            allowed=f"an int in 0 .. {most}",
            remedy="count from the batch",
        )


def are_counts(first: Any, second: Any, third: Any, fourth: Any) -> bool:
    """Return whether four values pass ``count`` at a glance; False says nothing."""
    alike = type(first) is type(second) is type(third) is type(fourth) is int
    # The bits of all are those of a count where those of each are: its bound is all ones.
    return alike and 0 <= first | second | third | fourth <= LARGEST


def flag(owner: str, field: str, value: object) -> None:
    """Require a bool of Python or NumPy: a word such as ``no`` would count as yes."""
    if value is not True and value is not False and type(value).__name__ not in ("bool", "bool_"):
        raise PlanError(
            f"{owner}.{field} is neither True nor False",
            arrived=value,
            allowed="a bool",
            remedy=f"pass {field} as a bool",
        )


def total(values: Any) -> int:
    """Return the sum of an int array [R]; of a short one in a fifth of the time of its own ``sum``."""
    return sum(values.tolist()) if len(values) <= _SHORT else int(values.sum())


def any_true(mask: Any) -> bool:
    """Return whether a bool array holds True, in a fifth of the time of its own ``any``."""
    raw = mask.tobytes()
    return bool(raw.count(0) != len(raw))


def drafts(values: Any) -> Drafts:
    """Return what the draft counts int [R] of a batch come to."""
    global _drafts
    key = (values.dtype, values.tobytes())
    if _drafts is not None and _drafts[0] == key:
        return _drafts[1]
    some = len(values) > 0
    found = Drafts(int(values.sum()), int(values.min()) if some else 0, int(values.max()) if some else 0)
    _drafts = (key, found)
    return found


def slots(owner: str, values: Any) -> int:
    """Require that no slot appears twice and that none is negative; return the highest, -1 without any.

    Generations may be negative: no request has such a one, which is how a profiler publishes for nobody.

    Args:
        owner: what the slots belong to.
        values: int [R].
    """
    global _slots
    key = (values.dtype, values.tobytes())
    if _slots is not None and _slots[0] == key:
        return _slots[1]
    listed = values.tolist()
    if len(set(listed)) != len(listed):
        raise PlanError(
            f"{owner}.slots names a request twice",
            arrived=sorted({slot for slot in listed if listed.count(slot) > 1}),
            allowed="each slot once",
            remedy="give every running request a slot of its own",
        )
    if listed and min(listed) < 0:
        raise PlanError(
            f"{owner}.slots holds a negative slot",
            arrived=min(listed),
            allowed=">= 0 for each request",
            remedy="list real requests only: padding is added when the step is staged",
        )
    highest = max(listed, default=-1)
    _slots = (key, highest)
    return highest
