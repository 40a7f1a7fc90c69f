"""Refusals in our words, before the library is called: what it does not check, and what it checks late."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import LayoutError
from adaverify_sm100_varlen.deep_gemm.versions import LogitsContract


@dataclass(frozen=True, slots=True)
class LogitsCall:
    """The tensors of one call (deepgemm sections 4 and 5); M rows of one query token.

    Attributes:
        q: float8_e4m3fn [M, 1, H, D], contiguous; a positive scale is folded into weights.
        kv: uint8 [pages, P, 1, D + 4], each page dense, pages a multiple of 16 bytes apart.
        weights: [M, H], contiguous, of the contract's dtype.
        row_lens: int32 [M, 1], contiguous, the true lengths, ascending inside a request.
        block_table: int32 [M, W], dense in W; a request's first row reaches the request's end.
        request_indices: int32 [M], contiguous, equal exactly for the rows of one request.
        schedule: int32 [slots + 1, 2], contiguous, built from max(row_lens, 1) and these indices.
        max_context_len: width of the result, at least every length.
    """

    q: torch.Tensor
    kv: torch.Tensor
    weights: torch.Tensor
    row_lens: torch.Tensor
    block_table: torch.Tensor
    request_indices: torch.Tensor
    schedule: torch.Tensor
    max_context_len: int


def _refuse(what: str, arrived: object, allowed: object, remedy: str) -> LayoutError:
    return LayoutError(f"paged MQA logits: {what}", arrived=arrived, allowed=str(allowed), remedy=remedy)


def check_sizes(contract: LogitsContract, heads: int, head_dim: int, page_size: int) -> None:
    """Refuse sizes of a model that the build does not take.

    Raises:
        LayoutError: naming the size, what arrived and what is allowed.
    """
    for what, value, allowed in (
        ("heads", heads, contract.heads),
        ("head_dim", head_dim, contract.head_dims),
        ("page size", page_size, contract.page_sizes),
    ):
        if value not in allowed:
            words = ", ".join(map(str, allowed))
            raise _refuse(f"{what} {value} is not supported", value, words, "use another kernel or build")


def check_layout(
    call: LogitsCall, contract: LogitsContract, heads: int, head_dim: int, page: int, slots: int
) -> None:
    """Refuse wrong dtypes, shapes, strides and devices. Reads attributes only, so it is capture-safe.

    Raises:
        LayoutError: the first thing that is wrong.
    """
    if call.q.dim() != 4 or call.q.shape[1] != 1:
        remedy = "build rows with varlen: one query token a row, joined by request indices"
        raise _refuse("q has the wrong shape", tuple(call.q.shape), "[M, 1, H, D]", remedy)
    rows, wide = call.q.shape[0], head_dim + 4
    pages = call.kv.shape[0] if call.kv.dim() == 4 else -1
    width = call.block_table.shape[-1] if call.block_table.dim() == 2 else -1
    expected = {
        "q": (torch.float8_e4m3fn, (rows, 1, heads, head_dim), True),
        "kv": (torch.uint8, (pages, page, 1, wide), False),
        "weights": (getattr(torch, contract.value_dtype), (rows, heads), True),
        "row_lens": (torch.int32, (rows, 1), True),
        "block_table": (torch.int32, (rows, width), False),
        "request_indices": (torch.int32, (rows,), True),
        "schedule": (torch.int32, (slots + 1, 2), True),
    }
    for name, (dtype, shape, dense) in expected.items():
        tensor: torch.Tensor = getattr(call, name)
        if tensor.dtype != dtype:
            remedy = f"keep {name} as {dtype}, which contract {contract.name!r} wants"
            raise _refuse(f"{name} has the wrong dtype", str(tensor.dtype), dtype, remedy)
        if tuple(tensor.shape) != shape:
            remedy = "take everything from one DecodeRows; sizes are fixed when the adapter is made"
            raise _refuse(f"{name} has the wrong shape", tuple(tensor.shape), list(shape), remedy)
        if tensor.device != call.q.device:
            remedy = "keep every tensor of the call on one device; the library checks none"
            raise _refuse(f"{name} is on another device", str(tensor.device), call.q.device, remedy)
        if dense and not tensor.is_contiguous():
            remedy = f"own {name} as a contiguous buffer of fixed width"
            raise _refuse(f"{name} is not contiguous", tuple(tensor.stride()), "contiguous", remedy)
    if call.request_indices.data_ptr() % 8:
        arrived = call.request_indices.data_ptr() % 8
        raise _refuse("request_indices lie wrongly", arrived, "a multiple of 8 bytes", "own the buffer")
    apart, kv = call.kv.stride(0), call.kv
    page_dense = kv.stride(3) == 1 and kv.stride(1) == wide
    if not page_dense or apart % 16 or not page * wide <= apart < 2**31 or kv.data_ptr() % 16:
        place = {"strides": tuple(kv.stride()), "address modulo 16": kv.data_ptr() % 16}
        allowed = f"[s, {wide}, any, 1], s a multiple of 16 from {page * wide} below 2**31; base too"
        raise _refuse("the pages of kv lie wrongly", place, allowed, "allocate whole pages")
    if call.block_table.numel() and call.block_table.stride(1) != 1:
        remedy = "own the table as a contiguous buffer of fixed width"
        raise _refuse("block_table is not dense", call.block_table.stride(), "stride(1) == 1", remedy)
    if rows > contract.max_rows:
        raise _refuse("too many rows in one call", rows, f"at most {contract.max_rows}", "split the batch")
    if not 0 <= call.max_context_len <= width * page:
        remedy = "pass the longest KV length that the block table can hold"
        raise _refuse("max_context_len does not fit", call.max_context_len, f"0 .. {width * page}", remedy)


def check_values(call: LogitsCall) -> None:
    """Refuse lengths, runs and page ids that would be read out of bounds or misread. Waits for the device.

    For tests and debugging; never inside a capture (vllm #56771).

    Raises:
        LayoutError: a length is negative, exceeds max_context_len or falls inside a run; rows of one run name
            different pages; a page id in use is outside the pool.
    """
    if not len(call.row_lens):
        return
    lens, table, ids = call.row_lens[:, 0], call.block_table, call.request_indices
    joined = ids[1:] == ids[:-1]
    ordered = bool((~joined | (lens.diff() >= 0)).all())
    if not (ordered and int(lens.min()) >= 0 and int(lens.max()) <= call.max_context_len):
        arrived = {"smallest": int(lens.min()), "largest": int(lens.max()), "ascending": ordered}
        allowed = f"0 .. {call.max_context_len}, ascending inside a run of equal request indices"
        remedy = "build rows with varlen and pass a max_context_len that holds them"
        raise _refuse("row_lens holds a length the kernel misreads", arrived, allowed, remedy)
    columns = torch.arange(table.shape[1], device=lens.device) * call.kv.shape[1]
    # A run reads its first row's table up to its last row's length (deepgemm section 9g).
    strangers = joined[:, None] & (columns < lens[:-1, None]) & (table[1:] != table[:-1])
    if bool(strangers.any()):
        row = int(strangers.any(1).nonzero()[0]) + 1
        remedy = "give every request an index of its own, padding rows included"
        raise _refuse("rows of one run name different pages", f"row {row}", "one request a run", remedy)
    opens = torch.cat([joined.new_ones(1), ~joined])
    ends = lens[torch.cat([~joined, joined.new_ones(1)])]
    named = table[opens][columns < ends[:, None]]
    if named.numel() and not (int(named.min()) >= 0 and int(named.max()) < call.kv.shape[0]):
        arrived = {"smallest": int(named.min()), "largest": int(named.max())}
        remedy = "map every page of a request in the table of its first row"
        allowed = f"0 .. {call.kv.shape[0] - 1}"
        raise _refuse("block_table names a page that is not there", arrived, allowed, remedy)
