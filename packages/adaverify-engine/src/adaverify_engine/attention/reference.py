"""Attention over decode rows, one slot at a time: the oracle."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeRows


def attend_rows(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: DecodeRows, page_size: int
) -> torch.Tensor:
    """Return [T, heads, head_dim] float32 attention of query tokens over the rows' pages.

    Every slot attends to the first ``row_lens`` positions of its own row's block table; token t takes slot
    ``token_slot[t]``. The softmax scale is ``head_dim ** -0.5``.

    Args:
        query: [T, heads, head_dim].
        keys: one layer's cache, [tokens, kv_heads, head_dim].
        values: alike.
        rows: as built for T padded query tokens.
        page_size: tokens in one page.
    """
    out = torch.zeros(query.shape, dtype=torch.float32)
    group = query.shape[1] // keys.shape[1]
    for token, slot in enumerate(rows.token_slot.tolist()):
        row, column = divmod(slot, rows.tokens_per_row)
        length = int(rows.row_lens[row, column])
        if length == 0 or int(rows.row_token[row, column]) != token:
            continue
        at = torch.arange(length)
        index = rows.block_table[row].long()[at // page_size] * page_size + at % page_size
        key = keys[index].float().repeat_interleave(group, dim=1)
        value = values[index].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,lhd->hl", query[token].float(), key) * query.shape[2] ** -0.5
        out[token] = torch.einsum("hl,lhd->hd", scores.softmax(-1), value)
    return out
