"""Ragged calls and batches, a library that remembers its calls, and the capability of the device at hand.

Without a GPU the kernels run in Triton's interpreter; the choice is made before any kernel is first used.
"""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace

import pytest
import torch

from adaverify_capability import TRITON, probe
from adaverify_contracts import CapabilityError, DecodeBatch, Requirements
from adaverify_metadata import pack_pages, paged_mqa_logits_reference
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.checks import LogitsCall
from adaverify_sm100_varlen.library import EmulatedLibrary
from adaverify_sm100_varlen.pages import pack_micro_scaled_pages, plain_pages
from adaverify_sm100_varlen.schedule import reference_schedule

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


class RecordingLibrary(EmulatedLibrary):
    """The emulated library; keeps (function, positional arguments, keywords) of every call."""

    def __init__(self, version, processors=148):
        super().__init__(version, processors)
        self.calls = []

    def get_num_sms(self):
        return self._processors

    def get_paged_mqa_logits_metadata(self, *arguments, **keywords):
        self.calls.append(("metadata", arguments, keywords))
        return super().get_paged_mqa_logits_metadata(*arguments, **keywords)

    def fp8_fp4_paged_mqa_logits(self, *arguments, **keywords):
        self.calls.append(("logits", arguments, keywords))
        return super().fp8_fp4_paged_mqa_logits(*arguments, **keywords)


def make_call(
    contract,
    requests,
    *,
    padding=1,
    heads=64,
    device="cpu",
    width=None,
    seed=0,
    apart=0,
    signed=False,
    slots=148,
):
    """Make one call of (query tokens, KV length) requests: ascending rows, permuted pages, padding last."""
    made = torch.Generator().manual_seed(seed)
    ids = [request for request, (tokens, _) in enumerate(requests) for _ in range(tokens)]
    ends = [length for tokens, length in requests for _ in range(tokens)]
    lens = [max(0, length - tokens + 1 + j) for tokens, length in requests for j in range(tokens)]
    rows = len(ids) + padding
    row_lens = torch.tensor([*lens, *[0] * padding], dtype=torch.int32).view(-1, 1)
    indices = torch.tensor([*ids, *range(len(requests) + len(ids), len(requests) + rows)], dtype=torch.int32)
    width = max([1, *lens]) if width is None else width
    columns = max(1, -(-width // 64))
    pages = max(1, len(requests)) * columns + 1
    packed = pack_micro_scaled_pages if contract.micro_scales else pack_pages
    storage = torch.full((pages, 64 * 132 + apart), 0x7F, dtype=torch.uint8)
    kv = storage.as_strided((pages, 64, 1, 132), (64 * 132 + apart, 132, 132, 1))
    kv.copy_(packed(torch.randn(pages, 64, 128, generator=made)))
    by_request = torch.randperm(pages, generator=made)[: pages - 1].int().view(-1, columns)
    table = by_request[torch.tensor([*ids, *[0] * padding], dtype=torch.int64)]
    # Columns that no row of the request needs hold a page id that does not exist.
    reach = torch.tensor([*ends, *[0] * padding], dtype=torch.int64)[:, None]
    table = torch.where(torch.arange(columns) * 64 < reach, table, 2**30)
    weights = torch.randn(rows, heads, generator=made)
    weights = weights if signed else weights.abs() + 0.1
    schedule = reference_schedule(contract, row_lens.clamp(min=1), slots, indices)
    if apart and device != "cpu":
        kv = storage.to(device).as_strided(kv.shape, kv.stride())
    return LogitsCall(
        q=torch.randn(rows, 1, heads, 128, generator=made).to(torch.float8_e4m3fn).to(device),
        kv=kv if apart else kv.to(device),
        weights=weights.to(getattr(torch, contract.value_dtype)).to(device),
        row_lens=row_lens.to(device),
        block_table=table.to(device),
        request_indices=indices.to(device),
        schedule=schedule.to(device),
        max_context_len=width,
    )


def reference(contract, call):
    """Return the float32 answer of a call."""
    plain = plain_pages(call.kv) if contract.micro_scales else call.kv
    rest = (call.row_lens, call.block_table, call.max_context_len)
    return paged_mqa_logits_reference(call.q, plain, call.weights.float(), *rest)


def make_batch(query, kv_lens, padded_tokens, limits, *, device="cpu"):
    """Make a batch; host lengths are those of this moment and grow stale when tensors are rewritten."""
    made = torch.Generator().manual_seed(7)
    table = torch.randperm(len(query) * limits.table_width, generator=made).int().view(len(query), -1)
    seq = [kv + q if q else 0 for kv, q in zip(kv_lens, query, strict=True)]
    return DecodeBatch(
        query_start_loc=torch.tensor([0, *query]).cumsum(0).int().to(device),
        seq_lens=torch.tensor(seq, dtype=torch.int32, device=device),
        block_table=table.to(device),
        num_requests=len(query),
        num_tokens=sum(query),
        padded_tokens=padded_tokens,
        max_query_len=limits.max_query_len,
    )


def capture(work):
    """Run once, capture, and return (replay, what the captured run returned)."""
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    return graph.replay, found


@pytest.fixture(scope="session")
def kit():
    """The helpers of this file, for tests that cannot import a sibling under importlib mode."""
    return SimpleNamespace(
        library=RecordingLibrary, call=make_call, batch=make_batch, reference=reference, capture=capture
    )


@pytest.fixture(scope="session")
def here():
    """What the device at hand can do; tests skip by the strategy's own requirements."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    try:
        # What a kernel library warns of while it is imported is no fault of ours.
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            found = probe("cuda", [TRITON, *hooks.adaverify_register_probes()])
    except CapabilityError as error:
        pytest.skip(str(error))
    if unmet := hooks.BLACKWELL.unmet(found):
        pytest.skip("; ".join(unmet))
    return found


@pytest.fixture(scope="session")
def deep_gemm(here):
    """The library, where its probe executed it."""
    if unmet := Requirements(kernels=("deep-gemm-varlen",)).unmet(here):
        pytest.skip("; ".join(unmet))
    import deep_gemm

    return deep_gemm
