"""The paged KV cache: one tensor, token-major."""

from __future__ import annotations

import math
from importlib.util import find_spec

import torch

from adaverify_contracts import EngineError, ModelGeometry
from adaverify_engine.ops.store_kv.launch import store_kv


class PagedCache:
    """Keys and values of every page of every layer.

    One tensor [layers, 2, pages x page_size, kv_heads, head_dim]. A token's heads lie together, so a step's
    writes are whole-row copies, a page is one block to gather, and a run of pages is a strided [kv_heads,
    tokens, head_dim] view that attention reads in place. Rolling back is free: what lies past a request's
    length is never read and is overwritten by the next step.

    Args:
        geometry: of the model.
        pages: pages, the null page included.
        page_size: tokens in one page.
        dtype: torch dtype of keys and values.
        device: torch device.
    """

    def __init__(
        self, geometry: ModelGeometry, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (geometry.layers, 2, pages * page_size, geometry.kv_heads, geometry.head_dim)
        # Zeros, not empty: a masked value still meets a weight of 0, and 0 x NaN is NaN.
        try:
            self._data = torch.zeros(shape, dtype=dtype, device=device)
        except (RuntimeError, MemoryError) as error:
            size = math.prod(shape) * dtype.itemsize
            raise EngineError(
                "the KV cache does not fit the memory",
                arrived=f"{size / 1e9:.1f} GB: {pages} pages of {page_size} tokens on {device}",
                allowed="what the device can give",
                remedy="lower num_pages, max_requests, max_model_len or page_size",
            ) from error
        self._layers = [(self._data[i, 0], self._data[i, 1]) for i in range(geometry.layers)]
        self._backend = "triton" if device.type == "cuda" and find_spec("triton") is not None else "torch"
        self.page_size = page_size

    @property
    def data(self) -> torch.Tensor:
        """The whole tensor, [layers, 2, tokens, kv_heads, head_dim]."""
        return self._data

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._data.dtype

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of ``layer``, each [tokens, kv_heads, head_dim]."""
        return self._layers[layer]

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at token ``slots`` int64 [T]."""
        keys, values = self._layers[layer]
        store_kv(key, value, keys, values, slots, backend=self._backend)
