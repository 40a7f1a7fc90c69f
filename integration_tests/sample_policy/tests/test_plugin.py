"""Choices worked by hand."""

import numpy as np
import pytest
from adaverify_contracts import BudgetCandidates
from adaverify_testing import isolated_manager

from adaverify_sample_policy import hooks


@pytest.fixture
def policy():
    """The policy as the runtime makes it."""
    ((descriptor,),) = isolated_manager(hooks).hook.adaverify_register_policies()
    return descriptor.factory()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.010, 0.0105, 0.016], 1),
        ([0.010, 0.0120, 0.016], 0),
        ([0.010, 0.0102, 0.0105], 2),
    ],
)
def test_the_fastest_among_the_quick(policy, seconds, expected):
    """A step more than 10 % longer than verifying nothing is out, whatever it yields."""
    candidates = BudgetCandidates(
        budgets=np.array([0, 8, 24]),
        tokens=np.array([8.0, 14.0, 20.0]),
        seconds=np.array(seconds),
        rate=None,
    )
    assert policy.choose(candidates) == expected


def test_a_single_candidate_is_chosen(policy):
    """Where nothing can be trimmed, full verification is all there is."""
    only = BudgetCandidates(np.array([0]), np.array([4.0]), np.array([0.01]), None)
    assert policy.choose(only) == 0
