"""Staged steps of the sparse decoder, without a verifier: any lengths, any strategy, on the device at hand.

Without a GPU the kernels run in Triton's interpreter; the choice is made before a kernel module is imported.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import DecodeBatch, Limits
from adaverify_engine.sparse_moe import SparseMoe, SparseMoeSizes
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, VarlenRowBuilder
from adaverify_verification import Assignment

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUILDERS = {"flatten": FlattenRowBuilder, "paired": PairedRowBuilder, "varlen": VarlenRowBuilder}


def make_limits(requests=3, longest=200, drafts=7, page=8):
    """Return limits of the tiny decoder: pages of 8 entries, 4 tokens each."""
    return Limits(requests, drafts, longest, page, compress_ratio=4)


def stage(limits, query, kv_lens, table, *, padding=0, strategy="flatten", device="cpu"):
    """Return a staged step (assignment and rows) of the first requests of ``table``.

    Args:
        query: query tokens of each request, 0 for a padding request.
        kv_lens: tokens before the step.
        padding: padding tokens behind the real ones.
    """
    total, count = sum(query), len(query)
    owner = [request for request, tokens in enumerate(query) for _ in range(tokens)] + [-1] * padding
    offset = [place for tokens in query for place in range(tokens)] + [-1] * padding
    ints = {"dtype": torch.int32, "device": device}
    start = torch.tensor([0, *query]).cumsum(0).to(**ints)
    lens = [old + new if new else 0 for old, new in zip(kv_lens, query, strict=True)]
    assignment = Assignment(
        admitted=torch.tensor([max(tokens - 1, 0) for tokens in query], **ints),
        query_start_loc=start,
        seq_lens=torch.tensor(lens, **ints),
        token_request=torch.tensor(owner, **ints),
        token_offset=torch.tensor(offset, **ints),
    )
    batch = DecodeBatch(
        query_start_loc=start,
        seq_lens=assignment.seq_lens,
        block_table=table[:count].to(device),
        num_requests=count,
        num_tokens=total,
        padded_tokens=total + padding,
        max_query_len=limits.max_query_len,
    )
    backend = "torch" if torch.device(device).type == "cpu" else "triton"
    rows = BUILDERS[strategy](strategy, limits, device, backend=backend).build(batch)
    return SimpleNamespace(assignment=assignment, rows=rows)


def run(model, query, kv_lens, **options):
    """Return hidden states of one step of the model's own requests."""
    table = model.caches.block_table
    staged = stage(model.limits, query, kv_lens, table, device=model.device, **options)
    lens = torch.tensor(kv_lens, dtype=torch.int32, device=model.device)
    return model.hidden(staged, lens, table)


@pytest.fixture(scope="session")
def moe():
    """The helpers of this file, for tests that cannot import a sibling under importlib mode."""
    return SimpleNamespace(
        Model=SparseMoe,
        Sizes=SparseMoeSizes,
        device=DEVICE,
        builders=BUILDERS,
        limits=make_limits,
        stage=stage,
        run=run,
    )
