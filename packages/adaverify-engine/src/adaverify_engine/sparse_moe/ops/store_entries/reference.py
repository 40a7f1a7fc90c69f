"""Reference of the storing of entries, in plain torch."""

from __future__ import annotations

import torch

from adaverify_engine.sparse_moe.ops.rotation import normed, quantised, rotated


def store_entries_reference(
    mixed: torch.Tensor,
    cell: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    latents: torch.Tensor,
    index: torch.Tensor,
    base: torch.Tensor,
    own: torch.Tensor,
    *,
    latent: int,
    index_dim: int,
) -> None:
    """Write base, own and the caches; arguments as ``store_entries`` documents them.

    Tokens that complete nothing write to the first cell of page 0, the null page, what stands there.
    """
    rank, rope = base.shape[1], 2 * cosine.shape[1]
    rest = mixed.shape[1] - rank - latent - rope - index_dim
    query, value, tail, key, _ = torch.split(mixed, [rank, latent, rope, index_dim, rest], dim=1)
    base.copy_(normed(query))
    own.copy_(torch.cat((normed(value), rotated(tail, cosine, sine)), dim=1))
    codes, scale = quantised(rotated(normed(key), cosine, sine))
    store = cell >= 0
    cells = cell.clamp(min=0)
    latents[cells] = torch.where(store[:, None], own, latents[0])
    page, wide = index.shape[1], index.shape[3]
    flat = index.view(len(index), page * wide)
    place = cells // page, cells % page
    all_codes = flat[:, : page * index_dim].view(len(flat), page, index_dim)
    all_codes[place] = torch.where(store[:, None], codes.view(torch.uint8), all_codes[0, 0])
    scales = flat[:, page * index_dim :].view(torch.float32)
    scales[place] = torch.where(store, scale, scales[0, 0])
