"""What a captured decode step knows of each request beside its tokens: limits, pages and noise, by slot."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import Limits
from adaverify_engine.request import Request


class SlotInputs:
    """Static tensors by request slot, written once when a request begins to decode.

    Attributes:
        limit: int32 [S], prompt and output together.
        temperature: float32 [S], 0 is greedy; top_p: float32 [S].
        noise: float64 [S, L, 2], both coins of every position; a greedy request's are never read.
        block_table: int32 [S, W].
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        slots, columns = limits.max_requests, limits.max_kv_len + 1
        self.limit = torch.zeros(slots, dtype=torch.int32, device=device)
        self.temperature = torch.zeros(slots, dtype=torch.float32, device=device)
        self.top_p = torch.ones(slots, dtype=torch.float32, device=device)
        self.noise = torch.zeros((slots, columns, 2), dtype=torch.float64, device=device)
        self.block_table = torch.zeros((slots, limits.table_width), dtype=torch.int32, device=device)

    def load(self, request: Request, pages: np.ndarray) -> None:
        """Enqueue the inputs of ``request`` into its slot.

        Args:
            request: the slot's new owner.
            pages: int32 [W], its block-table row.
        """
        slot, sampling = request.slot, request.sampling
        self.limit[slot].fill_(request.prompt_len + request.max_output)
        self.temperature[slot].fill_(sampling.temperature)
        self.top_p[slot].fill_(sampling.top_p)
        self.block_table[slot].copy_(torch.from_numpy(pages), non_blocking=True)
        if request.noise is not None:
            end = request.prompt_len + len(request.noise)
            noise = torch.from_numpy(request.noise)
            self.noise[slot, request.prompt_len : end].copy_(noise, non_blocking=True)
            self.noise[slot, end:].zero_()

    def open(self, requests: int, limit: int, table: np.ndarray) -> None:
        """Give slots 0 .. requests - 1 to made-up greedy requests, for profiling.

        Args:
            requests: slots to fill.
            limit: their prompt and output together.
            table: int32 [max_requests, W], pages by slot.
        """
        self.limit[:requests].fill_(limit)
        self.temperature[:requests].fill_(0.0)
        self.block_table[:requests].copy_(torch.from_numpy(table[:requests]))
