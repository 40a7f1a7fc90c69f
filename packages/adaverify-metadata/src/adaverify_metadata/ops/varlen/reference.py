"""Reference of the varlen strategy: flattened rows that a kernel joins again by their request indices."""

from __future__ import annotations

from dataclasses import replace

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata.layout import RowLayout, reference_rows
from adaverify_metadata.ops.flatten.reference import flatten_layout


def varlen_layout(batch: DecodeBatch) -> RowLayout:
    """Return the flattened layout with tables that reach the end of each row's request."""
    return replace(flatten_layout(batch), whole_request=True)


def varlen_rows(batch: DecodeBatch, limits: Limits) -> DecodeRows:
    """Return one row a query token with request indices, equal ids exactly for rows of one request.

    ``request_indices`` is ``row_request``: a padding row is a run of its own. Every row of a request carries
    the pages of the request's last row, because a joined run reads its first row's table.
    """
    return reference_rows("varlen", batch, limits, varlen_layout(batch)).rows
