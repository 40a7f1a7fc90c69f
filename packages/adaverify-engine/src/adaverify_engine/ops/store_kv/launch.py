"""Launch of the store."""

from __future__ import annotations

import torch

from adaverify_contracts import LayoutError
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.ops.store_kv.reference import store_kv_reference

# 3 heads of 64 are 256 lanes with padding: two elements a thread.
WARPS = 4


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    backend: str = "triton",
) -> None:
    """Store a step's keys and values in one layer of the paged cache; only launches.

    Args:
        key: [T, kv_heads, head_dim], last dimension dense, in the cache's dtype.
        value: alike.
        keys: [pool tokens, kv_heads, head_dim], dense.
        values: alike.
        slots: int64 [T], 0 <= slot < pool tokens; none but those of the null page may occur twice. The kernel
            stores nothing for one outside, the reference raises.
        backend: ``torch`` or ``triton``.

    Raises:
        LayoutError: an unknown backend, or tensors that do not fit together.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    if backend == "torch":
        store_kv_reference(key, value, keys, values, slots)
        return
    shape = (len(slots), *keys.shape[1:])
    if (
        key.shape != shape
        or value.shape != shape
        or keys.dtype != key.dtype
        or keys.dtype != value.dtype
        or key.stride(2) != 1
        or value.stride(2) != 1
    ):
        raise LayoutError(
            "key and value do not fit the paged cache",
            arrived=[(t.dtype, tuple(t.shape), tuple(t.stride())) for t in (key, value)],
            allowed=f"{shape} of {keys.dtype}, the last dimension dense",
            remedy="store in the model's dtype, one slot a token",
        )
    from adaverify_engine.ops.store_kv.kernel import store_kv_kernel

    require_launchable(store_kv_kernel, keys.device)
    tokens, heads, dim = shape
    if tokens:
        store_kv_kernel[(tokens,)](
            key, value, keys, values, slots, len(keys),
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            HEADS=heads, DIM=dim, BLOCK_HEADS=block_of(heads, 1), BLOCK_DIM=block_of(dim), num_warps=WARPS,
        )  # fmt: skip
