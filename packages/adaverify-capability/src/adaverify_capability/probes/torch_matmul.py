"""Matrix product in the two dtypes the engine computes in, against integers worked out in plain Python."""

from __future__ import annotations

from adaverify_capability.probes.comparison import compared
from adaverify_contracts import Capability, KernelLevel, KernelReport, ProbeDescriptor

# Entries of -2 .. 2 over 8 terms stay within +-32: exact in bfloat16 (integers up to 256) and in TF32, so the
# comparison needs no tolerance on any device.
_SIZE = 8
_LEFT = [[(3 * i + 5 * j) % 5 - 2 for j in range(_SIZE)] for i in range(_SIZE)]
_RIGHT = [[(2 * i + 7 * j + i * j) % 5 - 2 for j in range(_SIZE)] for i in range(_SIZE)]


def known_answer() -> list[int]:
    """Return the flat product in plain Python."""
    return [sum(_LEFT[i][k] * _RIGHT[k][j] for k in range(_SIZE)) for i in range(_SIZE) for j in range(_SIZE)]


def _probe(facts: Capability) -> KernelReport:
    import torch

    device = "cpu" if facts.device_type == "cpu" else "cuda"
    report = KernelReport("torch-matmul", torch.__version__, KernelLevel.IMPORTED, "nothing ran")
    for dtype in (torch.float32, torch.bfloat16):
        left = torch.tensor(_LEFT, dtype=dtype, device=device)
        right = torch.tensor(_RIGHT, dtype=dtype, device=device)
        got = (left @ right).float().flatten().tolist()
        report = compared("torch-matmul", torch.__version__, known_answer(), got)
        if report.level is not KernelLevel.EXECUTED:
            return KernelReport(report.name, report.version, report.level, f"{dtype}: {report.reason}")
    return report


TORCH_MATMUL = ProbeDescriptor("torch-matmul", ("cpu", "cuda", "rocm"), _probe)
