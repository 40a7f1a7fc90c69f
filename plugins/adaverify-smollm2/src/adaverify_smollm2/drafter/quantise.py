"""Weights as int8 with one scale a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

SCALE = ".scale"
"""Suffix of the scales that belong to an int8 tensor."""


def quantise(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return every matrix as int8 [rows, columns] plus float32 scales [rows]; the rest as float32.

    A row's scale is its largest magnitude over 127, so no value is clipped and a row of zeros stays zero.
    Small matrices (fewer than 4096 values) stay as they are: they cost nothing and the confidence's few
    outputs deserve their precision.
    """
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.detach().float()
        if values.ndim != 2 or values.numel() < 4096:
            packed[name] = tensor if tensor.dtype == torch.int32 else values
            continue
        scale = values.abs().amax(1) / 127
        steps = values / scale.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
        packed[name] = steps.round().clamp(-127, 127).to(torch.int8)
        packed[name + SCALE] = scale
    return packed


def restore(packed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return float32 tensors from what ``quantise`` made; int32 tensors pass through."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in packed.items():
        if name.endswith(SCALE):
            continue
        if tensor.dtype == torch.int8:
            tensors[name] = tensor.float() * packed[name + SCALE].unsqueeze(1)
        else:
            tensors[name] = tensor
    return tensors
