"""A block in which nothing may wait for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Make every call of torch that waits for a CUDA device raise inside the block.

    Not promised: waits in code that torch does not know of. Nothing is synchronised before or after: what a
    test has queued in front stays queued.
    """
    import torch

    with warnings.catch_warnings():
        # Torch says once a process that the mode is a prototype.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
