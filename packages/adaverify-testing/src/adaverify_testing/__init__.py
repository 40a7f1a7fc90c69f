"""Help for tests of adaverify and its plugins, and the conformance kit.

Drawn inputs are in ``adaverify_testing.strategies``.
"""

from adaverify_testing.capabilities import fake_capability
from adaverify_testing.conformance import CheckOutcome, ConformanceReport, conformance_checks, run_conformance
from adaverify_testing.managers import (
    InlineDistribution,
    InlineEntryPoint,
    IsolatedManager,
    inline_entry_points,
    isolated_manager,
)
from adaverify_testing.models import TinyModel, TinyTokenizer, tiny_model
from adaverify_testing.poisoning import POISON_BYTE, is_poisoned, poison
from adaverify_testing.tolerances import EXACT, TOLERANCES, Tolerance, assert_close, tolerance

__all__ = [
    "EXACT",
    "POISON_BYTE",
    "TOLERANCES",
    "CheckOutcome",
    "ConformanceReport",
    "InlineDistribution",
    "InlineEntryPoint",
    "IsolatedManager",
    "TinyModel",
    "TinyTokenizer",
    "Tolerance",
    "assert_close",
    "conformance_checks",
    "fake_capability",
    "inline_entry_points",
    "is_poisoned",
    "isolated_manager",
    "poison",
    "run_conformance",
    "tiny_model",
    "tolerance",
]
