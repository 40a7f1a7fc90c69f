"""Ordered words compare as the design says."""

from adaverify_contracts import BudgetReads, GraphSupport, KernelLevel, LoadOutcome, PlanState, Seen


def test_levels_rise():
    assert list(GraphSupport) == sorted(GraphSupport)
    assert [level.name for level in GraphSupport] == ["NEVER", "UNIFORM_BATCH", "VARLEN_DECODE", "ALWAYS"]
    assert KernelLevel.ABSENT < KernelLevel.IMPORTED < KernelLevel.EXECUTED
    assert Seen.HISTORY < Seen.PREFIX < Seen.DRAWN_TOKEN
    assert BudgetReads.HISTORY < BudgetReads.FRONTIER < BudgetReads.LIVE


def test_states_and_outcomes_are_words():
    assert [str(state) for state in PlanState] == ["unpriced", "warming", "full", "trimming", "idle"]
    assert len({str(outcome) for outcome in LoadOutcome}) == 5
