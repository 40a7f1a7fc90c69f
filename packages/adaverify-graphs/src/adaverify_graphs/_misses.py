"""Why no graph serves a batch, in the order in which a user can do something about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adaverify_contracts import GraphKey


def miss_reason(batch: GraphKey, captured: Sequence[GraphKey], failed: Iterable[GraphKey]) -> str:
    """Return the reason in a few words; ``captured`` holds no key that dominates the batch."""
    if any(key.dominates(batch) for key in failed):
        return "size failed to capture"
    if not captured:
        return "nothing captured"
    fitting = [key for key in captured if key.table_width == batch.table_width]
    if not fitting:
        return "table width"
    for field, words in (
        ("tokens", "more tokens than any graph"),
        ("requests", "more requests than any graph"),
        ("max_query_len", "longer query than any graph"),
    ):
        fitting = [key for key in fitting if getattr(key, field) >= getattr(batch, field)]
        if not fitting:
            return words
    return "uniform length not captured"
