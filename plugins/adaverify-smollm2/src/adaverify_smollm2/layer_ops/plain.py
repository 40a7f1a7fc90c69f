"""In torch's own operations: what a CPU runs, and the reference of the launches."""

from __future__ import annotations

import torch
from torch.nn import functional

from adaverify_smollm2.rope import rotate


class PlainOps:
    """A layer's small operations in torch; their only state is the rotary table.

    Args:
        turns: complex64 [positions, 1, head_dim / 2], see ``rotary_table``.
        eps: added to a mean square before its root.
    """

    kind = "plain"

    def __init__(self, turns: torch.Tensor, eps: float) -> None:
        self._turns, self._eps = turns, eps

    def located(self, positions: torch.Tensor) -> torch.Tensor:
        """Return what ``turn`` wants for int64 ``positions`` [T]; made once a pass, used by every layer."""
        return self._turns[positions]

    def turn(self, mixed: torch.Tensor, located: torch.Tensor, heads: int) -> torch.Tensor:
        """Return the first ``heads`` of ``mixed`` [T, all heads, head_dim], rotated: [T, heads, head_dim].

        ``mixed`` is spent: the fused form turns it where it lies.
        """
        return rotate(mixed[:, :heads], located)

    def norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` [T, hidden] over their root mean square, times ``weight`` [hidden]."""
        # torch's rms_norm sums bfloat16 rows in float32; written out by hand it costs 34 us instead of 26.
        return functional.rms_norm(rows, weight.shape, weight, self._eps)

    def join(
        self, hidden: torch.Tensor, added: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``hidden`` + ``added``, both [T, hidden], rounded to their dtype, and the norm of that."""
        joined = hidden + added
        return joined, self.norm(joined, weight)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) x up, [T, inner], for ``gate_up`` [T, 2 inner], gate first."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up
