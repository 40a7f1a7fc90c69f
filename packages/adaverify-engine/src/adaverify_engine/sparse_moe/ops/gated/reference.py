"""Reference of the gate, in plain torch."""

from __future__ import annotations

import torch
from torch.nn.functional import silu


def gated_reference(values: torch.Tensor) -> torch.Tensor:
    """Return silu(left half) x right half of [N, 2 W], computed in float32, in the dtype of ``values``."""
    gate, up = values.float().chunk(2, dim=-1)
    return (silu(gate) * up).to(values.dtype)
