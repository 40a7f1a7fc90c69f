"""The device's clock, written where a captured step comes by."""
