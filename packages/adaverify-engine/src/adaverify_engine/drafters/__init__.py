"""Drafters that need no weights."""

from adaverify_engine.drafters.device_lookup import DeviceLookup
from adaverify_engine.drafters.lookup import LookupDrafter
from adaverify_engine.drafters.ngram import NgramDrafter

__all__ = ["DeviceLookup", "LookupDrafter", "NgramDrafter"]
