"""Rotary position encoding over adjacent pairs, the layout GGUF keeps llama weights in."""

from __future__ import annotations

import torch

# Draft tokens may stand past the last position by K; a few rows more than any K in use, 64 KiB of table.
DRAFT_ROOM = 256


def rotary_table(positions: int, head_dim: int, base: float, device: torch.device) -> torch.Tensor:
    """Return unit complex numbers, complex64 [positions, 1, head_dim / 2].

    Element i of position p has the angle p * base^(-2 i / head_dim) (Su et al., RoFormer, section 3.4.2).
    Angles are taken in float64: at position 8191 a float32 product is off by up to 5e-4 radians.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = float(base) ** -exponents
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64).unsqueeze(1).to(device)


def rotate(heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn each adjacent pair of ``heads`` [T, heads, head_dim] by ``turns`` [T, 1, head_dim / 2].

    Computed in float32 and returned in the input's dtype. Converters to GGUF permute the query and key
    weights of llama models so that the two members of a rotated pair are neighbours; attention reads nothing
    but products of a query with a key, and those do not change. One complex product is also the fastest
    form measured on 2 cores: 66 us for 128 tokens of 12 bfloat16 heads, 176 for the form that splits halves.
    """
    # Not view(dtype), which would be two operations less: gradients end there, and drafters are trained.
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:-1], turns.shape[-1], 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(heads.dtype)
