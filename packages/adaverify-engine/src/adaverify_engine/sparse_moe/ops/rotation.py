"""Rotary position embedding of the last ``rope`` elements, and the norm: what the references share."""

from __future__ import annotations

import torch

EPSILON = 1e-6
"""Added to a mean square before its root."""
E4M3_MAX = 448.0
"""Largest finite e4m3fn value."""
AMAX_FLOOR = 1e-4
"""Smallest magnitude that is scaled to it; as ``adaverify_metadata.pack_pages`` has it."""


def rotation_tables(positions: int, rope: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines float32 [positions, rope / 2] of angles position x 10000^(-2 i / rope)."""
    rates = 10000.0 ** (-torch.arange(0, rope, 2, dtype=torch.float64, device=device) / rope)
    angles = torch.arange(positions, dtype=torch.float64, device=device)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def normed(values: torch.Tensor) -> torch.Tensor:
    """Return float32 values divided by their root mean square along the last dimension."""
    wide = values.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)


def rotated(values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return float32 [..., D] with the last 2 n elements rotated: element i with element n + i.

    Args:
        values: [..., D].
        cosine: float32, broadcastable to [..., n].
        sine: alike.
    """
    half = cosine.shape[-1]
    plain, left, right = torch.split(values.float(), [values.shape[-1] - 2 * half, half, half], dim=-1)
    return torch.cat((plain, left * cosine - right * sine, left * sine + right * cosine), dim=-1)


def quantised(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return e4m3 codes [..., D] and their scale float32 [...]: the largest magnitude over 448."""
    scale = values.abs().amax(-1).clamp(min=AMAX_FLOOR) / E4M3_MAX
    return (values / scale[..., None]).to(torch.float8_e4m3fn), scale
