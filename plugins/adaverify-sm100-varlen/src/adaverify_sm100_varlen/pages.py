"""KV pages with power-of-two scales, as the newer builds read them, and their plain form."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError
from adaverify_metadata import pack_pages

UNIT_SCALE = 0x7F7F7F7F
"""Four exponents of 2^0 in one int32: the scale of a query whose own scale is folded into the weights."""
_AMAX_FLOOR = 1e-4
_E4M3_MAX = 448.0


def pack_micro_scaled_pages(keys: torch.Tensor) -> torch.Tensor:
    """Return KV pages uint8 [pages, P, 1, D + 4] with micro scales of keys float32 [pages, P, D].

    P rows of D bytes e4m3, then P int32 of four equal exponent bytes; a byte b stands for 2^(b - 127) and is
    the smallest that keeps the largest magnitude within 448 (deepgemm section 6).
    """
    size, dim = keys.shape[1:]
    amax = keys.abs().amax(-1).clamp(min=_AMAX_FLOOR)
    exponent = (amax / _E4M3_MAX).log2().ceil().int() + 127
    packed = pack_pages(keys).view(len(keys), size * (dim + 4))
    codes = (keys / torch.exp2(exponent.float() - 127)[..., None]).to(torch.float8_e4m3fn)
    packed[:, : size * dim] = codes.view(torch.uint8).reshape(len(keys), -1)
    packed[:, size * dim :] = exponent.to(torch.uint8).repeat_interleave(4, dim=1)
    return packed.view(len(keys), size, 1, dim + 4)


def plain_pages(kv: torch.Tensor) -> torch.Tensor:
    """Return a copy of micro-scaled pages with one float32 scale for each position, for the reference.

    Raises:
        LayoutError: the four exponents of a position differ, which one float32 cannot express.
    """
    pages, size, _, wide = kv.shape
    flat = kv.as_strided((pages, size * wide), (kv.stride(0), 1)).clone()
    exponents = flat[:, size * (wide - 4) :].view(pages, size, 4)
    if not torch.equal(exponents, exponents[..., :1].expand_as(exponents)):
        raise LayoutError(
            "the exponents of a KV position differ",
            arrived="four exponents that are not equal",
            allowed="one exponent for all elements of a position",
            remedy="quantise FP8 keys with one scale a position",
        )
    # A float32 whose mantissa is zero: the exponent byte moved up by 23 bits is 2^(b - 127).
    scales = (exponents[..., 0].int() << 23).view(torch.float32)
    flat[:, size * (wide - 4) :] = scales.contiguous().view(torch.uint8)
    return flat.view(pages, size, 1, wide)
