"""Drafters of the reference engine."""

from adaverify_engine.drafters.lookup import LookupDrafter
from adaverify_engine.drafters.ngram import NgramDrafter

__all__ = ["LookupDrafter", "NgramDrafter"]
