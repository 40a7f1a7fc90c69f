"""What this plugin registers; the function only returns descriptors."""

from __future__ import annotations

from collections.abc import Sequence

from adaverify_contracts import BudgetReads, PolicyDescriptor, hookimpl

from adaverify_sample_policy.policy import SamplePolicy


@hookimpl
def adaverify_register_policies() -> Sequence[PolicyDescriptor]:
    """Return the policy with what its budget depends on."""
    return (
        PolicyDescriptor(
            name="sample-policy",
            reads=BudgetReads.HISTORY,
            factory=SamplePolicy,
        ),
    )
