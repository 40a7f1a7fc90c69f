"""Which of torch's attention kernels read prompts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def prompt_kernels(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which masked attention on ``device`` does not go to cuDNN.

    cuDNN plans each shape anew, and nearly every step with prompts has new ones: on an H200 such steps took
    20 ms, or 60, 100 and 140. Torch's choice is one for the whole process; the context restores it.
    """
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(chosen)
