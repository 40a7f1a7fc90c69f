"""Batches, a library made of plain torch, and the capability of the device at hand.

Without a GPU the kernels run in Triton's interpreter; the choice is made before any kernel is first used.
"""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace

import pytest
import torch

from adaverify_capability import TRITON, probe
from adaverify_contracts import CapabilityError, DecodeBatch, Limits, Requirements
from adaverify_metadata import schedule_tail_heavy
from adaverify_metadata.paged_logits import pack_pages, paged_mqa_logits_reference
from adaverify_sm90_flatten import hooks
from adaverify_sm90_flatten.deep_gemm.checks import LogitsCall
from adaverify_sm90_flatten.deep_gemm.versions import PINNED

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


class TorchLibrary:
    """The library's functions in plain torch, with its habits: rubbish past the length, extra row stride."""

    __version__ = PINNED
    __file__ = "somewhere/deep_gemm/__init__.py"
    processors = 132

    def __init__(self):
        self.calls = []

    def get_num_sms(self):
        return self.processors

    def get_paged_mqa_logits_metadata(self, context_lens, page_size, num_sms):
        return schedule_tail_heavy(context_lens, num_sms)

    def fp8_fp4_paged_mqa_logits(self, *arguments):
        self.calls.append(arguments)
        (q, scale), kv, weights, lens, table, schedule, width = arguments
        assert scale is None and schedule.shape[1] == 2
        buffer = torch.full((q.shape[0] * q.shape[1], -(-width // 256) * 256), float("nan"))
        # All tokens of a row are scored up to the row's last length: the mask is the caller's.
        whole = lens[:, -1:].expand_as(lens)
        want = paged_mqa_logits_reference(q, kv, weights, whole, table, width)
        valid = want != float("-inf")
        buffer[:, :width][valid] = want[valid]
        return buffer[:, :width]


def make_call(lens, *, tokens=1, heads=64, device="cpu", width=None, seed=0, apart=0, signed=False):
    """Make one call: row m ends at lens[m], earlier tokens see one position less each; pages permuted."""
    made = torch.Generator().manual_seed(seed)
    ends = torch.tensor(lens, dtype=torch.int32).view(-1, 1)
    row_lens = (ends - torch.arange(tokens - 1, -1, -1, dtype=torch.int32)).clamp(min=0)
    width = max([1, *lens]) if width is None else width
    columns, rows = max(1, -(-width // 64)), len(lens)
    pages = rows * columns + 1
    pool = pack_pages(torch.randn(pages, 64, 128, generator=made))
    kv = torch.full((pages, 64 * 132 + apart), 0x7F, dtype=torch.uint8)[:, : 64 * 132].view(pages, 64, 1, 132)
    kv.copy_(pool)
    table = torch.randperm(pages, generator=made, dtype=torch.int32)[: rows * columns].view(rows, columns)
    # Columns that no row needs hold a page id that does not exist.
    needed = torch.arange(columns) * 64 < ends
    table = torch.where(needed, table, 2**30)
    draw = torch.randn if signed else torch.rand
    slots = 66 if tokens == 4 else 132
    return LogitsCall(
        q=torch.randn(rows, tokens, heads, 128, generator=made).to(torch.float8_e4m3fn).to(device),
        kv=kv.to(device) if not apart else _apart(kv, apart, device),
        weights=(draw(rows * tokens, heads, generator=made) + (0.0 if signed else 0.1)).to(device),
        row_lens=row_lens.to(device),
        block_table=table.to(device),
        schedule=schedule_tail_heavy(row_lens.clamp(min=1), slots).to(device),
        max_context_len=width,
    )


def _apart(kv, apart, device):
    pages = kv.shape[0]
    storage = torch.full((pages, 64 * 132 + apart), 0x7F, dtype=torch.uint8, device=device)
    view = storage.as_strided(kv.shape, (64 * 132 + apart, 132, 132, 1))
    view.copy_(kv)
    return view


def make_batch(query, kv_lens, padded_tokens, limits, *, device="cpu", uniform=None, table=None):
    """Make a batch; host lengths are those of this moment and grow stale when tensors are rewritten."""
    requests = len(query)
    if table is None:
        made = torch.Generator().manual_seed(7)
        size = requests * limits.table_width
        table = torch.randperm(size, generator=made, dtype=torch.int32).view(requests, -1)
    seq = [kv + q if q else 0 for kv, q in zip(kv_lens, query, strict=True)]
    return DecodeBatch(
        query_start_loc=torch.tensor([0, *query]).cumsum(0).int().to(device),
        seq_lens=torch.tensor(seq, dtype=torch.int32, device=device),
        block_table=table.to(device),
        num_requests=sum(q > 0 for q in query) if uniform else requests,
        num_tokens=sum(query),
        padded_tokens=padded_tokens,
        max_query_len=limits.max_query_len,
        uniform_query_len=uniform,
    )


@pytest.fixture(scope="session")
def kit():
    """The helpers of this file, for tests that cannot import a sibling under importlib mode."""
    return SimpleNamespace(library=TorchLibrary, call=make_call, batch=make_batch, limits=Limits)


@pytest.fixture(scope="session")
def here():
    """What the device at hand can do; tests skip by the strategies' own requirements."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    try:
        # What a kernel library warns of while it is imported is no fault of ours.
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            found = probe("cuda", [TRITON, *hooks.adaverify_register_probes()])
    except CapabilityError as error:
        pytest.skip(str(error))
    if unmet := hooks.HOPPER.unmet(found):
        pytest.skip("; ".join(unmet))
    return found


@pytest.fixture(scope="session")
def deep_gemm(here):
    """The library, where its probe executed it."""
    if unmet := Requirements(kernels=("deep-gemm",)).unmet(here):
        pytest.skip("; ".join(unmet))
    import deep_gemm

    return deep_gemm
