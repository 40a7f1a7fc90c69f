"""The built-in signals and policies, registered through the same hooks as a stranger's plugin."""

from collections.abc import Sequence

from adaverify_contracts import BudgetReads, PolicyDescriptor, SignalDescriptor, hookimpl
from adaverify_verification.policies import PricePolicy, RatioPolicy
from adaverify_verification.signals import builtin_signals


@hookimpl
def adaverify_register_signals() -> Sequence[SignalDescriptor]:
    """Return the built-in confidence sources."""
    return builtin_signals()


@hookimpl
def adaverify_register_policies() -> Sequence[PolicyDescriptor]:
    """Return the built-in budget policies; both read history only."""
    return (
        PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
        PolicyDescriptor("price", BudgetReads.HISTORY, PricePolicy),
    )
