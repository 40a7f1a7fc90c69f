"""The small operations between a layer's products: rotation, residual and norm, gate.

``choose_layer_ops`` returns the form for a device; both forms take the same arguments.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from adaverify_smollm2.layer_ops.fused import FusedOps
from adaverify_smollm2.layer_ops.plain import PlainOps

if TYPE_CHECKING:
    import torch

__all__ = ["FusedOps", "PlainOps", "choose_layer_ops"]


def choose_layer_ops(turns: torch.Tensor, eps: float) -> PlainOps:
    """Return the fused form where ``turns`` lies on an accelerator and Triton is there, else the plain one.

    Args:
        turns: the rotary table, see ``rotary_table``.
        eps: added to a mean square before its root.
    """
    if turns.device.type == "cuda" and find_spec("triton") is not None:
        return FusedOps(turns, eps)
    return PlainOps(turns, eps)
