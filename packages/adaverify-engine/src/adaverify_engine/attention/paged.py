"""Decode attention by the paged kernel, and the one place that decides who uses it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from adaverify_contracts import CapabilityError, DecodeRows, Limits, ModelGeometry
from adaverify_engine.attention.decode import DecodeAttention
from adaverify_engine.cache import PagedCache
from adaverify_engine.ops.paged_decode import PagedDecodeScratch, check_geometry, paged_decode

GATHERED = "attention-gathered"
"""Counted for each step whose decode attention gathered pages on an accelerator."""


class PagedDecodeAttention:
    """Attention of one step's decode tokens straight over the pages; may be captured.

    Args:
        rows: decode rows of the step, on the cache's device.
        max_kv_len: host upper bound of any KV length; fixed in a captured graph.
        cache: the paged cache.
        scratch: made for the engine's largest step.
    """

    def __init__(
        self, rows: DecodeRows, *, max_kv_len: int, cache: PagedCache, scratch: PagedDecodeScratch
    ) -> None:
        self._rows, self._max_kv_len, self._cache, self._scratch = rows, max_kv_len, cache, scratch

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, head_dim] for query [T, heads, head_dim]; padding tokens are 0."""
        keys, values = self._cache.layer(layer)
        out = torch.empty_like(query)
        paged_decode(
            query,
            keys,
            values,
            self._rows,
            out,
            page_size=self._cache.page_size,
            max_kv_len=self._max_kv_len,
            scratch=self._scratch,
        )
        return out


class DecodeAttentionChoice:
    """Which decode attention an engine's steps use, decided once when the engine is made.

    ``paged`` is the kernel, on an accelerator that Triton serves; ``torch`` is ``DecodeAttention``: the
    ordinary path of a CPU, and elsewhere a fallback that is counted every step.

    Args:
        geometry: of the model.
        limits: of the engine; the scratch is made for its largest step.
        cache: the paged cache.

    Attributes:
        name: ``paged`` or ``torch``.
        reason: why the kernel is not used; empty where it is.
    """

    def __init__(self, geometry: ModelGeometry, limits: Limits, cache: PagedCache) -> None:
        self._cache, self._group = cache, geometry.heads // geometry.kv_heads
        device = cache.data.device
        self.reason = _obstacle(geometry, cache, device)
        self.name = "torch" if self.reason else "paged"
        self._is_fallback = bool(self.reason) and device.type != "cpu"
        self._fallbacks = 0
        self._scratch = None
        if not self.reason:
            self._scratch = PagedDecodeScratch(
                limits.max_tokens, geometry.heads, geometry.head_dim, limits.max_kv_len, device
            )

    def plan(
        self, rows: DecodeRows, query_start_loc: torch.Tensor, *, queries: int, max_kv_len: int
    ) -> DecodeAttention | PagedDecodeAttention:
        """Return the attention of one step; arguments as for ``DecodeAttention``."""
        if self._scratch is not None:
            return PagedDecodeAttention(rows, max_kv_len=max_kv_len, cache=self._cache, scratch=self._scratch)
        self._fallbacks += self._is_fallback
        return DecodeAttention(
            rows,
            query_start_loc,
            queries=queries,
            max_kv_len=max_kv_len,
            group=self._group,
            cache=self._cache,
        )

    def take_fallbacks(self) -> tuple[str, ...]:
        """Return and forget the fallbacks since the last call, one name for each step that took one."""
        taken, self._fallbacks = self._fallbacks, 0
        return (GATHERED,) * taken


def _obstacle(geometry: ModelGeometry, cache: PagedCache, device: torch.device) -> str:
    """Return why the kernel cannot serve, or an empty string."""
    heads = geometry.heads, geometry.kv_heads
    return kernel_obstacle(device, lambda: check_geometry(cache.page_size, geometry.head_dim, *heads))


def kernel_obstacle(device: torch.device, check: Callable[[], None]) -> str:
    """Return why a Triton kernel cannot serve ``device``, or an empty string.

    Args:
        device: of the cache.
        check: raises ``CapabilityError`` when the kernel does not serve the geometry.
    """
    if device.type == "cpu":
        return "a CPU reads views of the pages faster"
    if device.type != "cuda":
        return f"the kernel was not compiled for {device.type} devices"
    if find_spec("triton") is None:
        return "Triton is not installed"
    try:
        check()
    except CapabilityError as error:
        return str(error)
    return ""
