"""Which draft tokens are verified."""

from adaverify_verification.assignment.assigner import Assigner, Assignment

__all__ = ["Assigner", "Assignment"]
