"""Readable float32 reference of the paged MQA logits, and the page format it reads."""

from __future__ import annotations

import torch

from adaverify_contracts import ceil_div

# Largest finite e4m3fn value, and the floor that keeps an all-zero token from dividing by zero.
_E4M3_MAX = 448.0
_AMAX_FLOOR = 1e-4


def pack_pages(keys: torch.Tensor) -> torch.Tensor:
    """Return KV pages uint8 [pages, P, 1, D + 4] of keys float32 [pages, P, D].

    A page is *not* interleaved by token: P rows of D bytes e4m3, then P float32 scales (deepgemm section 6).
    The scale of a token is its largest magnitude over 448.
    """
    pages, size, dim = keys.shape
    scale = keys.abs().amax(-1, keepdim=True).clamp(min=_AMAX_FLOOR) / _E4M3_MAX
    packed = torch.empty(pages, size * (dim + 4), dtype=torch.uint8, device=keys.device)
    codes = (keys / scale).to(torch.float8_e4m3fn)
    packed[:, : size * dim] = codes.view(torch.uint8).reshape(pages, size * dim)
    packed[:, size * dim :] = scale.float().reshape(pages, size).view(torch.uint8)
    return packed.view(pages, size, 1, dim + 4)


def unpack_pages(kv: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes float32 [len(ids), P, D] and scales float32 [len(ids), P] of some pages.

    Args:
        kv: uint8 [pages, P, 1, D + 4]; pages may lie apart.
        ids: int64 [n], page ids.
    """
    pages, size, _, wide = kv.shape
    dim = wide - 4
    flat = kv.as_strided((pages, size * wide), (kv.stride(0), 1))[ids]
    codes = flat[:, : size * dim].contiguous().view(torch.float8_e4m3fn).float()
    scales = flat[:, size * dim :].contiguous().view(torch.float32)
    return codes.view(len(ids), size, dim), scales.view(len(ids), size)


def paged_mqa_logits_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    weights: torch.Tensor,
    row_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_context_len: int,
) -> torch.Tensor:
    """Return masked logits float32 [M x N, max_context_len] in plain torch (deepgemm section 10).

    logit[m N + j, c] = scale[c] sum_h weights[m N + j, h] max(sum_d q[m, j, h, d] k[c, d], 0) for
    c < row_lens[m, j], else -inf. All arithmetic is float32 on the e4m3 values. Reads lengths on the host.

    Args:
        q: float8_e4m3fn [M, N, H, D].
        kv: uint8 [pages, P, 1, D + 4] of ``pack_pages``.
        weights: float32 [M x N, H].
        row_lens: int32 [M, N].
        block_table: int32 [M, W].
        max_context_len: columns of the result.
    """
    rows, tokens, heads, _ = q.shape
    result = torch.full((rows, tokens, max_context_len), float("-inf"), device=q.device)
    weight = weights.view(rows, tokens, heads)
    for row, lens in enumerate(row_lens.tolist()):
        if max(lens, default=0) == 0:
            continue
        pages = ceil_div(max(lens), kv.shape[1])
        codes, scales = unpack_pages(kv, block_table[row, :pages].long())
        dots = torch.einsum("jhd,cd->jhc", q[row].float(), codes.flatten(0, 1))
        scores = torch.einsum("jhc,jh->jc", dots.relu(), weight[row]) * scales.flatten()
        for token, length in enumerate(lens):
            result[row, token, :length] = scores[token, :length]
    return result.view(rows * tokens, max_context_len)


def relative_errors(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return float64 [S + 1]: norm of the difference over norm of the reference, each row, then over all.

    Cells where the reference is -inf do not count, whatever ``got`` holds there. A row without a valid cell,
    or of zeros that were met exactly, has error 0; a NaN makes its row infinite.
    """
    valid = want != float("-inf")
    reference = torch.where(valid, want, 0.0).double()
    difference = (torch.where(valid, got, 0.0).double() - reference).nan_to_num(nan=float("inf"))
    off = torch.cat([difference.norm(dim=1), difference.norm().view(1)])
    size = torch.cat([reference.norm(dim=1), reference.norm().view(1)])
    return torch.where(off == 0, 0.0, off / size)
