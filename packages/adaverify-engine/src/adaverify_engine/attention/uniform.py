"""Rows of equally many queries a request that all see its whole context: what a block of drafts looks at."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeRows


class ContextRows:
    """Static parts of decode rows with one row a request.

    Args:
        requests: most requests.
        queries: Q, queries a request.
        device: torch device.

    Attributes:
        queries: Q.
    """

    def __init__(self, requests: int, queries: int, device: torch.device) -> None:
        self.queries = queries
        tokens = torch.arange(requests * queries, dtype=torch.int32, device=device)
        self._row_token, self._token_slot = tokens.view(requests, queries), tokens
        self._start = torch.arange(requests + 1, dtype=torch.int32, device=device) * queries

    def over(self, context: torch.Tensor, table: torch.Tensor) -> tuple[DecodeRows, torch.Tensor]:
        """Return rows and query_start_loc int32 [R + 1]; launches only.

        Args:
            context: int32 [R], cached positions of each request, 0 for padding.
            table: int32 [R, W], its pages.
        """
        count = len(context)
        lens = context[:, None].expand(count, self.queries).contiguous()
        rows = DecodeRows(
            strategy="context",
            tokens_per_row=self.queries,
            row_lens=lens,
            schedule_lens=lens.clamp(min=1),
            block_table=table,
            row_request=self._start[:count] // self.queries,
            row_token=self._row_token[:count],
            token_slot=self._token_slot[: count * self.queries],
        )
        return rows, self._start[: count + 1]
