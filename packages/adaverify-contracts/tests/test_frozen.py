"""Frozen values that are made quickly are those that dataclasses makes."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest

from adaverify_contracts import BudgetCandidates, Plan, Snapshot, StepOutcome, StepState
from adaverify_contracts._frozen import quick


@dataclass(frozen=True, slots=True)
class Slow:
    """A value whose area is counted once."""

    width: int
    height: int = 2
    area: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("no width")
        object.__setattr__(self, "area", self._area())

    def _area(self) -> int:
        return self.width * self.height


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    """The same, stored before it is closed."""

    width: int
    height: int = 2
    area: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("no width")
        self.area = self._area()

    def _area(self) -> int:
        return self.width * self.height


@pytest.mark.parametrize("arguments", [(3,), (3, 4), (0, 0)])
def test_it_is_made_of_the_same_arguments(arguments):
    slow, made = Slow(*arguments), Quick(*arguments)
    assert type(made) is Quick and dataclasses.astuple(made) == dataclasses.astuple(slow)
    assert repr(made) == repr(slow).replace("Slow", "Quick")
    assert made == Quick(*arguments) and hash(made) == hash(Quick(*arguments)) and made != slow
    assert Quick(height=4, width=3) == Quick(3, 4)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), dataclasses.replace(made)):
        assert other == made and other.area == made.area
    assert dataclasses.replace(made, width=5).area == 5 * made.height


@pytest.mark.parametrize("value", [Quick(3), Quick(3, 4)])
def test_it_stays_as_it_was_made(value):
    for name in ("width", "area", "other"):
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
            setattr(value, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.width
    assert value.width == 3 and not hasattr(value, "__dict__")


@pytest.mark.parametrize("wrong", [{}, {"width": 1, "depth": 2}, {"width": 1, "area": 2}])
def test_it_is_refused_what_the_other_is_refused(wrong):
    for kind in (Slow, Quick):
        with pytest.raises(TypeError):
            kind(**wrong)
        with pytest.raises(ValueError, match="no width"):
            kind(-1)


@pytest.mark.parametrize("kind", [BudgetCandidates, Plan, Snapshot, StepOutcome, StepState])
def test_what_a_step_makes_is_still_described(kind):
    """Its parameters are the fields that are given, with their types; the documentation shows them."""
    parameters = inspect.signature(kind).parameters
    assert list(parameters) == [one.name for one in dataclasses.fields(kind) if one.init]
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters.values())
    assert kind.__init__.__qualname__ == f"{kind.__name__}.__init__"


def test_a_counted_field_cannot_be_changed_either():
    none = np.zeros(0, np.int64)
    state = StepState(0, none, none, none, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.requests = 3
    assert state.requests == 0


@pytest.mark.parametrize("kind", [Quick, Plan, StepState])
def test_nobody_derives_from_one(kind):
    """What the derived class makes would be none of it."""
    with pytest.raises(TypeError, match=f"Wider derives from {kind.__name__}, which is final"):
        type("Wider", (kind,), {"__slots__": ()})


def test_a_class_without_slots_or_with_a_default_made_anew_is_refused():
    @dataclass(frozen=True)
    class Open:
        width: int

    @dataclass(frozen=True, slots=True)
    class Listed:
        widths: list[int] = field(default_factory=list)

    for kind in (Open, Listed):
        with pytest.raises(TypeError, match="slots"):
            quick(kind)
