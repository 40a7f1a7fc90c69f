"""Refusals in our words, before the library is called: what it does not check, and what it checks late."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import LayoutError
from adaverify_sm90_flatten.deep_gemm.versions import LogitsContract


@dataclass(frozen=True, slots=True)
class LogitsCall:
    """The tensors of one call (deepgemm section 4).

    Attributes:
        q: float8_e4m3fn [M, N, H, D], contiguous.
        kv: uint8 [pages, P, 1, D + 4], each page dense, pages a multiple of 16 bytes apart.
        weights: float32 [M x N, H], contiguous.
        row_lens: int32 [M, N], contiguous, the true lengths, non-decreasing along N.
        block_table: int32 [M, W], dense in W, row stride free.
        schedule: int32 [slots + 1, 2], contiguous, built from max(row_lens, 1).
        max_context_len: width of the result, at least every length.
    """

    q: torch.Tensor
    kv: torch.Tensor
    weights: torch.Tensor
    row_lens: torch.Tensor
    block_table: torch.Tensor
    schedule: torch.Tensor
    max_context_len: int


def _refuse(what: str, arrived: object, allowed: str, remedy: str) -> LayoutError:
    return LayoutError(f"paged MQA logits: {what}", arrived=arrived, allowed=allowed, remedy=remedy)


def _words(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def check_sizes(contract: LogitsContract, heads: int, head_dim: int, page_size: int) -> None:
    """Refuse sizes of a model that the kernel does not take.

    Raises:
        LayoutError: naming the size, what arrived and what is allowed.
    """
    for what, value, allowed in (
        ("heads", heads, contract.heads),
        ("head_dim", head_dim, contract.head_dims),
        ("page size", page_size, contract.page_sizes),
    ):
        if value not in allowed:
            remedy = f"use another kernel for this model, or a {what} that was executed"
            raise _refuse(f"{what} {value} is not supported", value, _words(allowed), remedy)


def check_tokens_per_row(contract: LogitsContract, tokens: int) -> None:
    """Refuse a number of query tokens in one row that the kernel does not take (vllm #43457).

    Raises:
        LayoutError: naming the allowed ones.
    """
    if tokens not in contract.tokens_per_row:
        raise _refuse(
            f"{tokens} query tokens a row is not supported",
            tokens,
            _words(contract.tokens_per_row),
            "build rows with flatten (1) or paired (2)",
        )


def check_layout(
    call: LogitsCall, contract: LogitsContract, heads: int, head_dim: int, page: int, slots: int
) -> None:
    """Refuse wrong dtypes, shapes, strides and devices. Reads attributes only, so it is capture-safe.

    Raises:
        LayoutError: the first thing that is wrong.
    """
    if call.q.dim() != 4:
        shape = tuple(call.q.shape)
        raise _refuse("q has the wrong shape", shape, "[M, N, H, D]", "gather the queries by row_token")
    rows, tokens = call.q.shape[:2]
    check_tokens_per_row(contract, tokens)
    wide = head_dim + 4
    pages = call.kv.shape[0] if call.kv.dim() == 4 else -1
    width = call.block_table.shape[-1] if call.block_table.dim() == 2 else -1
    expected = {
        "q": (torch.float8_e4m3fn, (rows, tokens, heads, head_dim), True),
        "kv": (torch.uint8, (pages, page, 1, wide), False),
        "weights": (torch.float32, (rows * tokens, heads), True),
        "row_lens": (torch.int32, (rows, tokens), True),
        "block_table": (torch.int32, (rows, width), False),
        "schedule": (torch.int32, (slots + 1, 2), True),
    }
    for name, (dtype, shape, dense) in expected.items():
        tensor: torch.Tensor = getattr(call, name)
        if tensor.dtype != dtype:
            remedy = f"keep {name} as {dtype} from the start"
            raise _refuse(f"{name} has the wrong dtype", str(tensor.dtype), str(dtype), remedy)
        if tuple(tensor.shape) != shape:
            remedy = "take rows and schedule from one DecodeRows; sizes are fixed when the adapter is made"
            raise _refuse(f"{name} has the wrong shape", tuple(tensor.shape), str(list(shape)), remedy)
        if tensor.device != call.q.device:
            remedy = "keep every tensor of the call on one device; the library checks none"
            raise _refuse(f"{name} is on another device", str(tensor.device), str(call.q.device), remedy)
        if dense and not tensor.is_contiguous():
            remedy = f"own {name} as a contiguous buffer of fixed width"
            raise _refuse(f"{name} is not contiguous", tuple(tensor.stride()), "contiguous", remedy)
    _check_strides(call, wide, page)
    if rows > contract.max_rows:
        remedy = "split the batch; more has never been run"
        raise _refuse("too many rows in one call", rows, f"at most {contract.max_rows}", remedy)
    if not 0 <= call.max_context_len <= width * page:
        allowed = f"0 .. {width} columns x {page}"
        remedy = "pass the longest KV length that the block table can hold"
        raise _refuse("max_context_len does not fit the table", call.max_context_len, allowed, remedy)


def _check_strides(call: LogitsCall, wide: int, page: int) -> None:
    kv, table = call.kv, call.block_table
    apart = kv.stride(0)
    page_dense = kv.stride(3) == 1 and kv.stride(1) == wide
    if not page_dense or apart % 16 or not page * wide <= apart < 2**31 or kv.data_ptr() % 16:
        arrived = {"strides": tuple(kv.stride()), "address modulo 16": kv.data_ptr() % 16}
        allowed = (
            f"strides [s, {wide}, any, 1], s from {page * wide} below 2**31 and a multiple of 16; base too"
        )
        remedy = "allocate the pool as uint8 [pages, P, 1, D + 4]; pages may lie apart"
        raise _refuse("the pages of kv lie wrongly", arrived, allowed, remedy)
    # A one-column table may carry any stride in torch; .contiguous() would not change it (vllm #41094).
    if table.numel() and table.stride(1) != 1:
        remedy = "own the table as a contiguous buffer of fixed width"
        raise _refuse("block_table is not dense", tuple(table.stride()), "stride(1) == 1", remedy)


def check_values(call: LogitsCall) -> None:
    """Refuse lengths and page ids that would be read or written out of bounds. Waits for the device.

    For tests and debugging; never inside a capture (vllm #56771).

    Raises:
        LayoutError: a length is negative, decreases along a row or exceeds max_context_len, or a page id of a
            column in use is outside the pool.
    """
    lens = call.row_lens
    ordered = bool((lens.diff(dim=1) >= 0).all())
    if lens.numel() and not (ordered and int(lens.min()) >= 0 and int(lens.max()) <= call.max_context_len):
        arrived = {"smallest": int(lens.min()), "largest": int(lens.max()), "non-decreasing": ordered}
        allowed = f"0 .. {call.max_context_len}, non-decreasing along a row"
        remedy = "build rows with this plugin's strategies and pass a max_context_len that holds them"
        raise _refuse("row_lens holds a length the kernel misreads", arrived, allowed, remedy)
    page = call.kv.shape[1]
    columns = torch.arange(call.block_table.shape[1], device=lens.device) * page
    used = columns < lens[:, -1:]
    ids = call.block_table[used]
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < call.kv.shape[0]):
        arrived = {"smallest": int(ids.min()), "largest": int(ids.max())}
        remedy = f"map every page of a row's first ceil(length / {page}) columns"
        raise _refuse(
            "block_table names a page that is not there", arrived, f"0 .. {call.kv.shape[0] - 1}", remedy
        )
