"""Stores confidences in the pinned ring, at the entry that a device scalar names.

The ring is host memory that the device can address, so that a store is a posted write over the bus and no
copy engine takes part. The host reads an entry when an event recorded behind this kernel has fired, or
sooner: when none of its values is the mark any more that the host had put there. So stores write through.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "confidence_stride", "entry_elements", "last_entry"])
def send_kernel(
    confidences,  # float32 [rows, DRAFTS], row stride confidence_stride
    entry,  # int32 [1]
    ring,  # float32 [last_entry + 1, at least rows, DRAFTS], contiguous
    rows,
    confidence_stride,
    entry_elements,  # elements of one ring entry
    last_entry,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store BLOCK values; grid (ceil(rows x DRAFTS / BLOCK),)."""
    chosen = tl.load(entry)
    # An index that is none of the ring's must not write elsewhere in host memory.
    chosen = tl.where((chosen < 0) | (chosen > last_entry), last_entry, chosen).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = i < rows * DRAFTS
    row = i // DRAFTS
    values = tl.load(confidences + row * confidence_stride + (i - row * DRAFTS), mask=exists)
    tl.store(ring + chosen * entry_elements + i, values, mask=exists, cache_modifier=".wt")
