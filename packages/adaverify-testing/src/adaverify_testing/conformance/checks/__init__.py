"""The checks of the conformance kit, in the order in which they run."""

from adaverify_testing.conformance.checks.registry import CHECKS, Check, run_check

__all__ = ["CHECKS", "Check", "run_check"]
