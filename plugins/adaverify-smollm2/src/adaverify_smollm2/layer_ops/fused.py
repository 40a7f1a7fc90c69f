"""In Triton's launches: one for each operation of ``PlainOps``.

On an H200, 512 tokens in bfloat16 inside a graph, a join takes the device 2.0 us and in torch 4.7, a gate 2.2
and 8.2, a turn 5.5 and 7.8 (``docs/measurements/2026-11-30-h200-block-drafter.md``). Triton's module is
imported when one is made, so that a CPU can do without it.
"""

from __future__ import annotations

from typing import Any

import torch

from adaverify_contracts import CapabilityError, ceil_div
from adaverify_smollm2.layer_ops.plain import PlainOps

GATE_BLOCK = 512
"""Elements of a program of the gate: three programs a token at 1536, four elements a thread."""
WARPS = 4


class FusedOps(PlainOps):
    """A layer's small operations, a launch each; computed in float32, rounded once to the dtype given.

    Every tensor but positions is dense, and all of one dtype, bfloat16 or float32.

    Args:
        turns: complex64 [positions, 1, head_dim / 2], see ``rotary_table``.
        eps: added to a mean square before its root.

    Raises:
        CapabilityError: compiled kernels were asked to run on a CPU.
    """

    kind = "fused"

    def __init__(self, turns: torch.Tensor, eps: float) -> None:
        from adaverify_smollm2.layer_ops import kernel

        self._turn, self._join, self._gate = kernel.turn_kernel, kernel.join_kernel, kernel.gate_kernel
        _require_launchable(self._turn, turns.device)
        super().__init__(turns, eps)
        self._angles, self._half = torch.view_as_real(turns), turns.shape[-1]

    def located(self, positions: torch.Tensor) -> torch.Tensor:
        """Return ``positions``, dense: the launch finds the angles by itself."""
        return positions.contiguous()

    def turn(self, mixed: torch.Tensor, located: torch.Tensor, heads: int) -> torch.Tensor:
        """Turn the first ``heads`` of ``mixed`` [T, all heads, head_dim] where they lie and return them."""
        if len(mixed):
            self._turn[(len(mixed),)](
                mixed, located, self._angles, mixed.stride(0), HEADS=heads, HALF=self._half,
                BLOCK_HEADS=_power_of_two(heads), BLOCK_HALF=_power_of_two(self._half), num_warps=WARPS,
            )  # fmt: skip
        return mixed[:, :heads]

    def join(
        self, hidden: torch.Tensor, added: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``hidden`` + ``added``, both [T, hidden], rounded to their dtype, and the norm of that."""
        joined, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        count, width = hidden.shape
        if count:
            self._join[(count,)](
                hidden, added, weight, joined, normed, self._eps,
                HIDDEN=width, BLOCK=_power_of_two(width), num_warps=WARPS,
            )  # fmt: skip
        return joined, normed

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) x up, [T, inner], for ``gate_up`` [T, 2 inner], gate first."""
        count, inner = len(gate_up), gate_up.shape[1] // 2
        gated = torch.empty((count, inner), dtype=gate_up.dtype, device=gate_up.device)
        if count:
            self._gate[(count, ceil_div(inner, GATE_BLOCK))](
                gate_up, gated, INNER=inner, BLOCK=GATE_BLOCK, num_warps=WARPS
            )
        return gated


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _require_launchable(kernel: Any, device: torch.device) -> None:
    if device.type == "cpu" and type(kernel).__name__ != "InterpretedFunction":
        raise CapabilityError(
            "the decoder's Triton kernels cannot run on a CPU",
            arrived=str(device),
            allowed="a CUDA or ROCm device, or Triton's interpreter",
            remedy="use PlainOps on a CPU",
        )
