"""What a captured decode step knows of each request beside its tokens: limits, pages and noise, by slot."""

from __future__ import annotations

from collections.abc import Sequence

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

    def load(self, requests: Sequence[Request], pages: np.ndarray) -> None:
        """Enqueue the inputs of ``requests`` into their slots: one copy for all, and one for each noise.

        Args:
            requests: R new owners of slots.
            pages: int32 [R, W], their block-table rows.
        """
        at = np.array([request.slot for request in requests], dtype=np.int32)
        limit = [request.prompt_len + request.max_output for request in requests]
        laws = [(request.sampling.temperature, request.sampling.top_p) for request in requests]
        # Floats travel as the integers of their bits.
        bits = np.array(laws, dtype=np.float32).view(np.int32)
        facts = np.column_stack((at, np.array(limit, dtype=np.int32), bits, pages))
        sent = torch.from_numpy(facts).to(self.limit.device, non_blocking=True)
        slots, laws_sent = sent[:, 0].long(), sent[:, 2:4].contiguous().view(torch.float32)
        self.limit.index_copy_(0, slots, sent[:, 1])
        self.temperature.index_copy_(0, slots, laws_sent[:, 0])
        self.top_p.index_copy_(0, slots, laws_sent[:, 1])
        self.block_table.index_copy_(0, slots, sent[:, 4:])
        for request in requests:
            if request.noise is not None:
                self._load_noise(request, request.noise)

    def _load_noise(self, request: Request, noise: np.ndarray) -> None:
        begin, end = request.prompt_len, request.prompt_len + len(noise)
        self.noise[request.slot, begin:end].copy_(torch.from_numpy(noise), non_blocking=True)
        self.noise[request.slot, end:].zero_()

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
