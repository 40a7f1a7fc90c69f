"""Triton: compile and run a masked prefix sum, the operation every row builder is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaverify_capability.probes.comparison import compared
from adaverify_contracts import Capability, KernelLevel, KernelReport, ProbeDescriptor

if TYPE_CHECKING:
    import torch

# 11 lengths in a block of 16: the mask matters, and zeros and repeats are among them.
LENGTHS = (3, 1, 4, 0, 1, 5, 9, 2, 6, 0, 5)
_GUARD = -7


def known_answer() -> list[int]:
    """Return the running sums in plain Python, then the untouched guard value behind them."""
    sums: list[int] = []
    for length in LENGTHS:
        sums.append((sums[-1] if sums else 0) + length)
    return [*sums, _GUARD]


def run(device: str) -> torch.Tensor:
    """Launch the kernel on ``device``; return int32 [len(LENGTHS) + 1], the last element a guard."""
    import torch

    from adaverify_capability.probes._triton_kernel import prefix_sum_kernel

    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    sums = torch.full((len(LENGTHS) + 1,), _GUARD, dtype=torch.int32, device=device)
    prefix_sum_kernel[(1,)](lengths, sums, len(LENGTHS), BLOCK=16)
    return sums


def _probe(facts: Capability) -> KernelReport:
    try:
        import triton
    except ModuleNotFoundError as error:
        reason = f"{type(error).__name__}: {error}"
        return KernelReport("triton", "", KernelLevel.ABSENT, reason)
    version = str(triton.__version__)
    if facts.device_type == "cpu":
        reason = "Triton imports; its kernels cannot run on a CPU, so nothing was executed"
        return KernelReport("triton", version, KernelLevel.IMPORTED, reason)
    return compared("triton", version, known_answer(), run("cuda").tolist())


TRITON = ProbeDescriptor("triton", ("cpu", "cuda", "rocm"), _probe)
