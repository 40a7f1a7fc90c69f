"""The whole decode step over recorded truth: every policy, and the published arrangement, on the same requests."""
