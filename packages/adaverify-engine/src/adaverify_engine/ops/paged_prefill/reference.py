"""Causal attention of prompt chunks in plain float32 torch: the oracle of the kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaverify_engine.ops.paged_prefill.tiles import Piece


def paged_prefill_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pieces: Sequence[Piece], page_size: int
) -> torch.Tensor:
    """Return float32 [T, heads, head_dim]: every token's attention over its own and all earlier positions.

    The softmax scale is ``head_dim ** -0.5``.

    Args:
        query: [T, heads, head_dim], the tokens of all chunks, one chunk after the other.
        keys: one layer's pool, [pool tokens, kv_heads, head_dim]; page p holds tokens p x page_size and on.
        values: alike.
        pieces: the chunks.
        page_size: tokens in one page.
    """
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    _, heads, dim = query.shape
    group, token = heads // keys.shape[1], 0
    for pages, start, length in pieces:
        row = torch.from_numpy(pages).long().to(query.device)
        for position in range(start, start + length):
            at = torch.arange(position + 1, device=query.device)
            index = row[at // page_size] * page_size + at % page_size
            key = keys[index].float().repeat_interleave(group, dim=1)
            value = values[index].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,lhd->hl", query[token].float(), key) * dim**-0.5
            out[token] = torch.einsum("hl,lhd->hd", scores.softmax(-1), value)
            token += 1
    return out
