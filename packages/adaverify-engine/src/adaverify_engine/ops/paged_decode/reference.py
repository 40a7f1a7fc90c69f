"""Decode attention over rows in plain float32 torch: the oracle of the kernel."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeRows


def paged_decode_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: DecodeRows, page_size: int
) -> torch.Tensor:
    """Return float32 [T, heads, head_dim]: every slot's attention over the positions its length allows.

    Slot (m, j) holds token ``row_token[m, j]`` and sees positions 0 .. ``row_lens[m, j]`` - 1 of the pages of
    its own row; with no position it gives 0. Tokens without a slot (padding) are 0. The softmax scale is
    ``head_dim ** -0.5``.

    Args:
        query: [T, heads, head_dim].
        keys: one layer's pool, [pool tokens, kv_heads, head_dim]; page p holds tokens p x page_size and on.
        values: alike.
        rows: decode rows of any strategy.
        page_size: tokens in one page.
    """
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    _, heads, dim = query.shape
    group = heads // keys.shape[1]
    lens, table = rows.row_lens.tolist(), rows.block_table.long()
    for row, tokens in enumerate(rows.row_token.tolist()):
        for column, token in enumerate(tokens):
            length = lens[row][column]
            if token < 0 or length == 0:
                continue
            at = torch.arange(length, device=query.device)
            index = table[row, at // page_size] * page_size + at % page_size
            key = keys[index].float().repeat_interleave(group, dim=1)
            value = values[index].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,lhd->hl", query[token].float(), key) * dim**-0.5
            out[token] = torch.einsum("hl,lhd->hd", scores.softmax(-1), value)
    return out
