"""Drafters that need no weights."""

from adaverify_engine.drafters.lookup import LookupDrafter
from adaverify_engine.drafters.ngram import NgramDrafter

__all__ = ["LookupDrafter", "NgramDrafter"]
