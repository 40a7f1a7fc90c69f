"""Help for tests of adaverify and its plugins; drawn inputs are in ``adaverify_testing.strategies``."""

from adaverify_testing.capabilities import fake_capability
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
    "InlineDistribution",
    "InlineEntryPoint",
    "IsolatedManager",
    "TinyModel",
    "TinyTokenizer",
    "Tolerance",
    "assert_close",
    "fake_capability",
    "inline_entry_points",
    "is_poisoned",
    "isolated_manager",
    "poison",
    "tiny_model",
    "tolerance",
]
