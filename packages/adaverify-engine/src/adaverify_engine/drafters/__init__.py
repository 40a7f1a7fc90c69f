"""Drafters that need no weights, and the frame for those that read the target."""

from adaverify_engine.drafters.lookup import LookupDrafter
from adaverify_engine.drafters.ngram import NgramDrafter
from adaverify_engine.drafters.reading import ReadingDrafter
from adaverify_engine.drafters.slots import SlotDrafter

__all__ = ["LookupDrafter", "NgramDrafter", "ReadingDrafter", "SlotDrafter"]
