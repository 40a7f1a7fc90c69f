"""Buffers that do not fit the device: a typed error that names them, and not an allocator's deep inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from adaverify_contracts import Capability, Limits, LimitsError

_INT32 = 4


def table_bytes(limits: Limits) -> int:
    """Return the bytes of the static block table, int32 [max_requests, table_width]."""
    return _INT32 * limits.max_requests * limits.table_width


def require_memory(limits: Limits, capability: Capability) -> None:
    """Require that the static block table alone fits a device whose memory is known.

    The host's allocator promises memory that it does not have and has the process killed at the first write.

    Raises:
        LimitsError: it is larger than the whole device.
    """
    needed, there = table_bytes(limits), capability.memory_bytes
    if there and not capability.assumed and needed > there:
        raise _too_large("the static block table", needed, f"{capability.device_name} has {there} bytes")


@contextmanager
def allocating(what: str, needed: int | None = None) -> Iterator[None]:
    """Turn an allocator's failure into a ``LimitsError`` that names ``what`` and the bytes.

    Args:
        what: the buffers, in words.
        needed: their bytes, None where only the allocator knows.

    Raises:
        LimitsError: the allocator failed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        # torch's CPU allocator raises a bare RuntimeError; other errors of that type are no business of ours.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "alloc" not in text.lower():
            raise
        raise _too_large(what, needed, text or "no memory") from error


def _too_large(what: str, needed: int | None, found: str) -> LimitsError:
    return LimitsError(
        f"the limits are too large for this device: {what} cannot be allocated",
        arrived=f"{what}, {'an unknown number of' if needed is None else needed} bytes; {found}",
        allowed="buffers that fit the device's free memory",
        remedy="lower max_requests, max_model_len or draft_tokens, or raise page_size",
    )
