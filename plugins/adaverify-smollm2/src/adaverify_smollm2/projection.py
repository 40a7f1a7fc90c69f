"""Linear layers without bias, in the fastest form this device really runs."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional


class Projection(Protocol):
    """Multiply rows by one weight."""

    @property
    def kind(self) -> str:
        """``packed`` or ``dense``."""
        ...

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [T, out] for contiguous rows [T, in] of the weight's dtype and device."""
        ...


class DenseProjection:
    """A weight in plain row-major layout, multiplied by torch's own linear. Works on every device."""

    kind = "dense"

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.contiguous()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``."""
        return functional.linear(rows, self._weight)


class PackedProjection:
    """A CPU weight reordered once into oneDNN's blocked layout.

    With plain weights oneDNN reorders tiles again in every call. Measured on 2 cores with AMX, the 121
    products of one SmolLM2 step, plain against packed: bfloat16 27.9 against 21.8 ms for 8 rows, 28.5 against
    26.1 for 16, 36.5 against 28.4 for 32, 74.8 against 47.6 for 128; float32 50.3 against 32.6 for 8 rows and
    near equal from 32 (medians of 7; ``benchmarks/forward.py`` times whole steps).

    In float32 a row's result does not depend on how many rows are multiplied with it, bit for bit (the plain
    product has four variants between 1 and 128 rows). oneDNN's single-row kernel alone sums in another order
    when ``in`` is large, so a single float32 row is doubled; the weight is the traffic, not the rows.
    """

    kind = "packed"

    def __init__(self, weight: torch.Tensor) -> None:
        self._out = weight.shape[0]
        self._double = weight.dtype == torch.float32
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``."""
        count = rows.shape[0]
        if count == 0:
            return rows.new_empty(0, self._out)
        if count == 1 and self._double:
            rows = rows.repeat(2, 1)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, None, "none", [], "")
        return product[:count]


def packing_refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why weights cannot be packed here, or None if they can.

    The operators belong to torch's own compiler and carry no promise of stability, so the answer comes from
    running them on a small product with a known result, not from their presence.
    """
    if device.type != "cpu":
        return f"packing is for CPU weights, and the device is {device}"
    if dtype == torch.bfloat16 and not _bfloat16_supported():
        return "this CPU has no bfloat16 products in oneDNN"
    weight = (torch.arange(24 * 16).reshape(24, 16) % 7 - 3).to(dtype)
    rows = (torch.arange(3 * 16).reshape(3, 16) % 5 - 2).to(dtype)
    try:
        product = PackedProjection(weight)(rows)
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"oneDNN's packed product failed: {error}"
    # Small integers: exact in both dtypes, whatever the order of summation.
    if not torch.equal(product.double(), rows.double() @ weight.double().t()):
        return "oneDNN's packed product gave wrong values"
    return None


def make_projection(weight: torch.Tensor, *, packed: bool) -> Projection:
    """Return the projection by ``weight`` [out, in]; ``packed`` only where ``packing_refusal`` is None."""
    return PackedProjection(weight) if packed else DenseProjection(weight)


def _bfloat16_supported() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False
