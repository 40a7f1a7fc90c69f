"""Whether a run on a CPU shares its processors with something else, and the setting that helps."""

from __future__ import annotations

import os

import torch

from adaverify.console import count_of
from adaverify.pricing import Prices
from adaverify_runtime import idle_threads_sleep

CROWDED = "cpu-contended"
"""Counted once in every engine of a run whose processors something else was seen to use."""


def load_average() -> float:
    """Return the system's mean number of runnable processes over the last minute; 0 where nobody knows."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def processors() -> int:
    """Return the processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def crowding(device: str, load: float, prices: Prices) -> str:
    """Return one line about a CPU that is shared; empty where nothing was seen, or nothing would help.

    A single thread waits for no other, and threads that sleep while they wait leave the processor to others.

    Args:
        device: torch device of the run.
        load: ``load_average`` before the command computed anything.
        prices: what measuring step times, just now, found.
    """
    if not device.startswith("cpu") or torch.get_num_threads() < 2 or idle_threads_sleep():
        return ""
    seen = []
    if load > processors():
        seen.append(f"the load was {load:.1f} on {count_of(processors(), 'processor')} before it began")
    if prices.source == "measured" and prices.table is not None and prices.table.disturbed:
        seen.append(f"{count_of(len(prices.table.disturbed), 'measured step time')} never came to rest")
    if prices.check is not None and prices.check.outcome == "undecided":
        seen.append("the stored step times could not be checked")
    if not seen:
        return ""
    return (
        f"{CROWDED}: {', and '.join(seen)}. Threads of torch spin while they wait, which makes steps many "
        "times slower beside another process: set OMP_WAIT_POLICY=PASSIVE, or quieten the machine"
    )
