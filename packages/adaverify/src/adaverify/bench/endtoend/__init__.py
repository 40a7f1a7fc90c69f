"""The whole decode step over recorded truth: every policy, and the published arrangement beside them."""
