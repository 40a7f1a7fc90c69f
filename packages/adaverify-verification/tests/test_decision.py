"""Our own ratio rule is asked without what contains a plugin: it decides and fails as a plugin would."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import BudgetCandidates
from adaverify_verification import ManagerOptions, RatioPolicy
from adaverify_verification.containment import PluginFault
from adaverify_verification.decision import Decider


class Plugin(RatioPolicy):
    """The same rule from somebody else."""


def settled(decider, candidates, executed):
    """Return the choice, or the fault in words."""
    try:
        return decider.choose(
            candidates, executed, bare_seconds=None, tiered=True, guarded=True, untried=lambda size: False
        )
    except PluginFault as fault:
        return fault.name, str(fault)


# Overflow and underflow make gains of no number and infinite ones.
TOKENS = st.sampled_from([0.0, 1e-300, 0.5, 1.0, 1.5, 2.0, 8.0, 1e300])
SECONDS = st.sampled_from([1e-300, 1e-9, 0.01, 0.02, 0.03, 1.0, 1e9, 1e300])
STEP = st.lists(st.tuples(TOKENS, SECONDS), min_size=1, max_size=6)


@given(st.lists(STEP, min_size=1, max_size=8), st.sampled_from([0.0, 0.02]))
@settings(max_examples=200, deadline=None)
def test_the_ratio_rule_is_the_same_as_a_plugin(steps, margin):
    options = ManagerOptions(margin=margin, explore_share=0.1, warmup_steps=0)
    ours, other = (Decider(policy, options) for policy in (RatioPolicy(), Plugin()))
    for step in steps:
        tokens, seconds = (np.sort(values) for values in zip(*step, strict=True))
        sizes = np.arange(len(tokens), dtype=np.int64)
        with np.errstate(all="ignore"):
            found, expected = (
                settled(decider, BudgetCandidates(sizes, tokens, seconds, None), 8 * sizes)
                for decider in (ours, other)
            )
        # Not by value: what is no number equals nothing, itself included.
        assert repr(found) == repr(expected)
