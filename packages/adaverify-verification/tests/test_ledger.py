"""Open plans and their order: what was overtaken is refused, however steps are numbered."""

import numpy as np
import pytest

from adaverify_contracts import PlanError, StepState
from adaverify_verification.ledger import Entry, Ledger


def entry():
    none = np.zeros(1, dtype=np.int64)
    return Entry(StepState(0, none, none, none, 1), creditable=True)


@pytest.fixture
def ledger():
    """Steps 1, 2 and 3, planned in this order."""
    made = Ledger()
    for step in (1, 2, 3):
        made.open(step, entry())
    return made


def test_steps_may_be_skipped_and_executed_again(ledger):
    for step in (1, 3, 3):
        ledger.require_current(step)
        ledger.executed(step)
        ledger.require_current(step)


def test_an_overtaken_plan_is_refused(ledger):
    ledger.executed(2)
    ledger.require_current(3)
    with pytest.raises(PlanError, match="older than one that was executed"):
        ledger.require_current(1)


def test_the_order_is_that_of_planning_and_not_of_numbers(ledger):
    """A profile and what is served after it count their steps apart."""
    ledger.executed(3)
    ledger.open(1, entry())
    ledger.require_current(1)
    ledger.executed(1)
    with pytest.raises(PlanError):
        ledger.require_current(2)


def test_a_step_that_is_not_open_is_none_of_its_business(ledger):
    ledger.executed(2)
    ledger.close(1)
    ledger.require_current(1)
    ledger.executed(9)
    ledger.require_current(2)
