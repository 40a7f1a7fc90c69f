"""Read and write the safetensors format: a length, a JSON header, raw little-endian tensors.

Written here because the format is smaller than a compiled dependency: 8 bytes of length, the header with
dtype, shape and offsets, then the data. Files are readable by the safetensors library and the other way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from adaverify_contracts import ModelFileError

_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "I32": torch.int32,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST_HEADER = 1 << 20


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write ``tensors`` (float32, float16, bfloat16, int8 or int32) and text ``metadata`` to ``path``."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    blobs, offset = [], 0
    for name, tensor in tensors.items():
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        place = [offset, offset + len(data)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the metadata of ``path``.

    Raises:
        ModelFileError: unreadable, cut short, or a header that contradicts the file.
    """
    try:
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        if not 2 <= length <= min(_LONGEST_HEADER, len(data) - 8):
            raise ValueError(f"header of {length} bytes in a file of {len(data)}")
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        body = memoryview(data)[8 + length :]
        return {name: _tensor(entry, body) for name, entry in header.items()}, metadata
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            "a weights file of the drafter cannot be read",
            arrived=f"{path.name}: {type(error).__name__}: {error}",
            allowed="a whole safetensors file",
            remedy="install the plugin again, or export the weights again",
        ) from error


def _tensor(entry: dict[str, Any], body: memoryview) -> torch.Tensor:
    dtype = _DTYPES[str(entry["dtype"])]
    shape: list[int] = list(entry["shape"])
    start, end = (int(offset) for offset in entry["data_offsets"])
    size = torch.Size(shape).numel() * dtype.itemsize
    if not (0 <= start <= end <= len(body) and end - start == size):
        raise ValueError(f"offsets {start}, {end} for {size} bytes in a body of {len(body)}")
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    # Copied: offsets need not be aligned for the dtype.
    return torch.frombuffer(body[start:end], dtype=torch.uint8).clone().view(dtype).view(shape)
