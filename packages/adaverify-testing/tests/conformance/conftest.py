"""A correct strategy of the kit's own, in a hundred lines of torch, and ten ways to break it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import (
    DecodeRows,
    DecodeStrategyDescriptor,
    GraphSupport,
    LayoutError,
    Limits,
    Requirements,
)

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=120, page_size=16)


class Rows:
    """One row a query token, as the contract says; subclasses break one sentence each."""

    grouped = False

    def __init__(self, limits, device, name="flat"):
        self.limits, self.strategy = limits, name
        tokens = limits.max_tokens

        def zeros(*shape):
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        self._buffers = {
            "row_lens": zeros(tokens, 1),
            "schedule_lens": zeros(tokens, 1),
            "block_table": zeros(tokens, limits.table_width),
            "row_request": zeros(tokens),
            "row_token": zeros(tokens, 1),
            "token_slot": zeros(tokens),
        }

    @property
    def buffers(self):
        return self._buffers

    def fits(self, batch):
        limits = self.limits
        return (
            batch.requests <= limits.max_requests
            and batch.padded_tokens <= limits.max_tokens
            and batch.block_table.shape[1] == limits.table_width
            and batch.seq_lens.device == self._buffers["row_lens"].device
        )

    def build(self, batch):
        if not self.fits(batch):
            raise LayoutError("the batch does not fit", arrived=batch.requests, allowed=str(self.limits))
        found = self.compute(batch)
        for name, tensor in found.items():
            getattr(self.view(batch), name).copy_(tensor)
        return self.view(batch)

    def view(self, batch):
        own, count = self._buffers, batch.padded_tokens
        ids = own["row_request"][:count]
        return DecodeRows(
            self.strategy,
            1,
            **{k: v[:count] for k, v in own.items()},
            request_indices=ids if self.grouped else None,
        )

    def token(self, batch):
        return torch.arange(batch.padded_tokens)

    def owner(self, batch, token):
        return torch.searchsorted(batch.query_start_loc[1:].long(), token, right=True)

    def compute(self, batch):
        token, requests, limits = self.token(batch), batch.requests, self.limits
        owner = self.owner(batch, token)
        real = owner < requests
        inside = owner.clamp(max=max(0, requests - 1))
        seen = self.seen(batch, inside, token)
        lens = torch.where(real, seen, 0)
        lens = self.clamp(lens) // limits.compress_ratio
        size, rank, turn = (
            limits.context_parallel_size,
            limits.context_parallel_rank,
            limits.context_parallel_interleave,
        )
        lens = lens // (size * turn) * turn + (lens % (size * turn) - rank * turn).clamp(0, turn)
        needed = torch.arange(limits.table_width) * limits.page_size < lens[:, None]
        kept = self._buffers["block_table"][: batch.padded_tokens]
        rows = torch.arange(batch.padded_tokens)
        return {
            "row_lens": lens[:, None],
            "schedule_lens": lens.clamp(min=1)[:, None],
            "block_table": torch.where(needed, batch.block_table[inside], kept),
            "row_request": torch.where(real, owner, self.padding_id(batch, rows)),
            "row_token": torch.where(real, token, -1)[:, None],
            "token_slot": self.slots(token),
        }

    def seen(self, batch, request, token):
        return batch.seq_lens[request] - (batch.query_start_loc[1:][request] - 1 - token)

    def clamp(self, lens):
        return lens.clamp(min=0)

    def padding_id(self, batch, rows):
        return batch.requests + rows

    def slots(self, token):
        return torch.argsort(token)


class UniformRows(Rows):
    """The same rows for uniform batches only."""

    def build(self, batch):
        width = batch.uniform_query_len
        if width is None or width > self.limits.max_query_len:
            raise LayoutError("not uniform", arrived=width, allowed=f"1 .. {self.limits.max_query_len}")
        return super().build(batch)


class GroupedRows(Rows):
    """The same rows with request indices and tables that reach the end of the request."""

    grouped = True

    def compute(self, batch):
        found = super().compute(batch)
        requests = batch.requests
        owner = self.owner(batch, self.token(batch)).clamp(max=max(0, requests - 1))
        real = found["row_token"][:, 0] >= 0
        needed = (
            torch.arange(self.limits.table_width) * self.limits.page_size < batch.seq_lens[owner][:, None]
        ) & real[:, None]
        kept = self._buffers["block_table"][: batch.padded_tokens]
        return found | {"block_table": torch.where(needed, batch.block_table[owner], kept)}


def descriptor(kind, name="flat", **changes):
    made = DecodeStrategyDescriptor(
        name=name,
        requirements=Requirements(),
        graph_support=GraphSupport.UNIFORM_BATCH
        if issubclass(kind, UniformRows)
        else GraphSupport.VARLEN_DECODE,
        device_lengths=not issubclass(kind, UniformRows),
        priority=0,
        evidence="executed",
        allocate=lambda limits, device, capability: kind(limits, device, name),
    )
    return replace(made, **changes)


@pytest.fixture(scope="session")
def own():
    """The strategy, its kinds and its descriptor, for tests that cannot import a sibling."""
    return SimpleNamespace(
        Rows=Rows, UniformRows=UniformRows, GroupedRows=GroupedRows, descriptor=descriptor, limits=LIMITS
    )
