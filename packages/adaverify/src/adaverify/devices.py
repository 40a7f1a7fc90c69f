"""The torch device that a user's word stands for."""

from __future__ import annotations

import torch

from adaverify_contracts import CapabilityError


def usable_device(name: str) -> str:
    """Return the torch device of ``name``, ``auto`` being the accelerator when torch finds one.

    Raises:
        CapabilityError: torch cannot run on a device of that name here; lists those it can.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if count else "cpu"
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if name not in known:
        raise CapabilityError(
            f"there is no device {name!r} here",
            arrived=name,
            allowed=", ".join(known),
            remedy="choose one of them, or install a torch built for the accelerator",
        )
    return name
