"""A trained module's linear layers in the fastest form that this device runs."""

from __future__ import annotations

import torch
from torch import nn

from adaverify_smollm2.drafter.model import BlockDrafterModel
from adaverify_smollm2.projection import make_projection, packing_refusal

LEAST_WEIGHTS = 1 << 14
"""Smaller weights stay as they are: the call costs more than reordering them saves."""


class PackedLinear(nn.Module):
    """A linear layer without bias whose weight was reordered for this CPU; inference only.

    Args:
        weight: [out, in].
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._project, self._out = make_projection(weight, packed=True), weight.shape[0]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., out] for ``rows`` [..., in]."""
        flat = rows.reshape(-1, rows.shape[-1]).contiguous()
        return self._project(flat).view(*rows.shape[:-1], self._out)


def pack_linears(model: BlockDrafterModel) -> BlockDrafterModel:
    """Replace the larger linear layers of ``model`` by packed ones where this device packs; return it.

    In float32 a row's result then does not depend on how many rows are computed with it.
    """
    weight = next(model.parameters())
    if packing_refusal(weight.device, weight.dtype) is not None:
        return model
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            large = isinstance(child, nn.Linear) and child.weight.numel() >= LEAST_WEIGHTS
            if large and child.bias is None:
                setattr(parent, name, PackedLinear(child.weight.detach()))
    return model
