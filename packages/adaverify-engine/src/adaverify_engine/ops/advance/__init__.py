"""Accepting drafts and moving every request on, on the device."""
