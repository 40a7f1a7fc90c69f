"""The rows in torch: the oracle of the kernel, and the form where Triton does not run."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeBatch, Limits
from adaverify_metadata import flatten_rows


def write_rows_reference(
    boundaries: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    longest: int,
) -> None:
    """Write one row a query token into vLLM's buffers.

    Args:
        boundaries: int32 [R + 1], device boundaries of the decode requests.
        seq_lens: int32 [R], KV lengths, this step's query tokens included.
        block_table: int32 [R, W].
        outputs: int32 row lengths [T], row tables [T, at least W], query lengths of rows [T].
        longest: upper bound of any query length.
    """
    lens, table, ones = outputs
    requests, tokens, width = seq_lens.shape[0], lens.shape[0], block_table.shape[1]
    limits = Limits(max(1, requests), longest, max(1, width - longest), 1)
    # Lengths and owners are the strategy's; the table is copied here, whole rows as vLLM does.
    unused = block_table.new_zeros(requests, limits.table_width)
    batch = DecodeBatch(boundaries, seq_lens, unused, requests, 0, tokens, longest)
    rows = flatten_rows(batch, limits)
    request = rows.row_request.long()
    real = request < requests
    lens.copy_(rows.row_lens[:, 0])
    ones.fill_(1)
    found = block_table[request.clamp(max=requests - 1)]
    table[:, :width] = torch.where(real[:, None], found, table[:, :width])
    table[:, 0] = torch.where(real, table[:, 0], 0)
