"""Fill a buffer with values that no correct result holds, so that an element left unwritten shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# As a byte, and repeated as the bytes of wider integers: large, odd and negative, never a length, an id or a
# count. As an int32 it is -1515870811.
POISON_BYTE = 0xA5


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Overwrite every element in place and return the tensor.

    Floating-point and complex elements become NaN, integers the byte 0xA5 repeated. A bool has no value to
    spare and becomes True. float8_e4m3fn and its like are filled through their bytes. Strided and empty
    tensors are fine; elements outside the view are not touched.
    """
    import torch

    with torch.no_grad():
        if tensor.dtype is torch.bool:
            return tensor.fill_(True)
        if tensor.is_complex():
            return tensor.fill_(complex("nan"))
        if tensor.is_floating_point():
            if tensor.element_size() == 1:
                tensor.view(torch.uint8).fill_(_nan_byte(tensor.dtype))
                return tensor
            return tensor.fill_(float("nan"))
        return tensor.fill_(_integer(tensor.dtype))


def is_poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a bool mask of the elements that still hold the poison; True bools count as poisoned."""
    import torch

    if tensor.dtype is torch.bool:
        return tensor.clone()
    if tensor.is_floating_point() or tensor.is_complex():
        wide = tensor.float() if tensor.element_size() == 1 else tensor
        return torch.isnan(wide)
    return tensor == _integer(tensor.dtype)


def _integer(dtype: torch.dtype) -> int:
    import torch

    info = torch.iinfo(dtype)
    return int.from_bytes(bytes([POISON_BYTE]) * (info.bits // 8), "little", signed=info.min < 0)


def _nan_byte(dtype: torch.dtype) -> int:
    # The *fnuz formats have one NaN, 0x80; in e4m3fn and e5m2 all bits but the sign.
    return 0x80 if str(dtype).endswith("fnuz") else 0x7F
