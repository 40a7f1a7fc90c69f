"""Launch of the paged decode attention, its scratch and what it can serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from adaverify_contracts import CapabilityError, DecodeRows, DescriptorError, LayoutError, ceil_div
from adaverify_engine.ops.launchable import is_interpreted, require_heads

DTYPES = (torch.bfloat16, torch.float32)
LOG2_E = 1.4426950408889634
LOOK_BACK = 64
"""Rows looked back over to find where a request's rows begin; a longer query is read more than once, and
still right."""


@dataclass(frozen=True, slots=True)
class PagedDecodeConfig:
    """How the kernel spreads over the device.

    ``split`` decides how a long sequence's sum is cut and so rounds; the rest decides time only. Every field
    is a power of two.

    Attributes:
        split: KV tokens of one program. 256: one request of 2048 tokens over 3 KV heads spreads over 24
            programs, while at 512 query tokens the partial results written and read again (264 bytes a
            split, head and token) stay below the keys and values read.
        block: KV tokens of one step of a program. 64: keys and values of 128 bytes a token are 16 KiB in
            flight a stage.
        lines: query heads x slots of a tile. 32: the 8 query tokens of K = 7 with 3 query heads a KV head,
            in whatever way a strategy spreads them over rows; the tile's shape, and so its rounding, is then
            the same for all strategies.
        num_warps: warps of a program.
        num_stages: tiles in flight.
    """

    split: int = 256
    block: int = 64
    lines: int = 32
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        for name, lowest in (("split", 16), ("block", 16), ("lines", 16), ("num_warps", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < lowest or value & (value - 1):
                raise DescriptorError(
                    f"PagedDecodeConfig.{name} is out of range",
                    arrived=value,
                    allowed=f"a power of two >= {lowest}",
                    remedy="choose one: Triton's blocks are powers of two, its products start at 16",
                )
        if self.block > self.split:
            raise DescriptorError(
                "PagedDecodeConfig.block is larger than a split",
                arrived=self.block,
                allowed=f"at most split = {self.split}",
                remedy="lower block or raise split",
            )


class PagedDecodeScratch:
    """What the splits hand to the combination, allocated once.

    Args:
        max_tokens: query tokens of the largest decode step, padding included.
        heads: query heads.
        head_dim: elements of one head.
        max_kv_len: longest KV length of any row, drafts included.
        device: torch device.
        config: how the kernel spreads; defaults where None.

    Attributes:
        partial: float32 [max_tokens, heads, splits, head_dim], unnormalised sums; empty when ``max_kv_len``
            fits one split.
        extremes: float32 [2, max_tokens, heads, splits], largest logits (base 2) and sums.
    """

    def __init__(
        self,
        max_tokens: int,
        heads: int,
        head_dim: int,
        max_kv_len: int,
        device: torch.device | str,
        config: PagedDecodeConfig | None = None,
    ) -> None:
        self.config = PagedDecodeConfig() if config is None else config
        self.max_tokens, self.heads, self.head_dim = max_tokens, heads, head_dim
        self.splits = max(1, ceil_div(max_kv_len, self.config.split))
        cells = (max_tokens, heads, self.splits) if self.splits > 1 else (0, heads, 1)
        self.partial = torch.empty((*cells, head_dim), dtype=torch.float32, device=device)
        self.extremes = torch.empty((2, *cells), dtype=torch.float32, device=device)


def check_geometry(page_size: int, head_dim: int, heads: int, kv_heads: int) -> None:
    """Raise unless the kernel serves this cache and these heads.

    Raises:
        CapabilityError: the page size or head size is not a power of two, or heads do not divide.
    """
    if page_size < 1 or page_size & (page_size - 1):
        raise CapabilityError(
            "paged decode attention does not serve this page size",
            arrived=page_size,
            allowed="a power of two",
            remedy="choose a page size of 16, 32 or 64",
        )
    require_heads(
        "paged decode attention", head_dim, heads, kv_heads, "use the gathered attention for this model"
    )


def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: DecodeRows,
    out: torch.Tensor,
    *,
    page_size: int,
    max_kv_len: int,
    scratch: PagedDecodeScratch,
) -> None:
    """Enqueue the attention of every slot of ``rows``; one launch where one split is enough, else two.

    Allocates and reads nothing, so it may be captured; a replay follows the rows' device contents. A token's
    result is the same bit for bit whatever else is in the batch and however it is padded. NaN or infinity
    past a row's length is never read; within a request, a NaN value of a draft token may reach the tokens
    before it.

    Args:
        query: bfloat16 or float32 [T, heads, head_dim], last dimension dense.
        keys: one layer's pool, [pool tokens, kv_heads, head_dim], like ``query``; page p holds tokens
            p x page_size and on.
        values: like ``keys``.
        rows: built for T padded query tokens. Rows of a request lie next to one another and reach ever
            further, as all builders make them.
        out: like ``query``; every element is written: 0 for padding tokens and slots of length 0.
        page_size: tokens in one page, a power of two.
        max_kv_len: host upper bound of every row length, at least 1; fixed in a captured graph.
        scratch: made for at least these sizes.

    Raises:
        LayoutError: tensors, rows and scratch do not fit together.
        CapabilityError: the kernel does not serve the geometry, or compiled kernels were asked to run on a
            CPU.
    """
    _check(query, keys, values, rows, out, max_kv_len, scratch)
    tokens, heads, dim = query.shape
    kv_heads = keys.shape[1]
    check_geometry(page_size, dim, heads, kv_heads)
    if not tokens:
        return
    split_kernel, combine_kernel = _kernels(query.device)
    config, slots, group = scratch.config, rows.tokens_per_row, heads // kv_heads
    join = _power_below(max(1, config.lines // (slots * group)), LOOK_BACK)
    blocks = ceil_div(slots * group, config.lines)
    splits = ceil_div(max_kv_len, config.split)
    whole = splits == 1
    grid = (max(rows.rows, tokens) if whole else rows.rows, kv_heads * blocks, splits)
    if grid[0]:
        split_kernel[grid](
            query, keys, values, rows.row_lens, rows.row_token, rows.row_request, rows.token_slot,
            rows.block_table, out, scratch.partial, scratch.extremes,
            query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), values.stride(0),
            values.stride(1), rows.block_table.stride(0), out.stride(0), out.stride(1),
            scratch.splits, scratch.extremes.stride(0), dim**-0.5 * LOG2_E, rows.rows, tokens,
            SLOTS=slots, GROUP=group, DIM=dim, JOIN=join, BACK=LOOK_BACK, LINES=config.lines,
            LINE_BLOCKS=blocks, PAGE=page_size, SPLIT=config.split, BLOCK=config.block, WHOLE=whole,
            WIDEN=is_interpreted(split_kernel), num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
    if not whole:
        combine_kernel[(tokens, heads)](
            scratch.partial, scratch.extremes, rows.row_lens, rows.row_token, rows.token_slot, out,
            out.stride(0), out.stride(1), scratch.splits, scratch.extremes.stride(0), rows.rows,
            SLOTS=slots, DIM=dim, SPLIT=config.split, CHUNK=8, num_warps=1,
        )  # fmt: skip


def _kernels(device: torch.device) -> tuple[Any, Any]:
    """Return both kernels, ready for tensors of ``device``."""
    from adaverify_engine.ops.paged_decode.kernel import paged_decode_combine_kernel, paged_decode_kernel

    if device.type == "cpu" and not is_interpreted(paged_decode_kernel):
        raise CapabilityError(
            "the Triton kernel paged_decode_kernel cannot run on a CPU",
            arrived=str(device),
            allowed="a CUDA or ROCm device, or Triton's interpreter",
            remedy="use DecodeAttention on a CPU",
        )
    return paged_decode_kernel, paged_decode_combine_kernel


def _power_below(value: int, highest: int) -> int:
    return min(highest, 1 << (value.bit_length() - 1))


def _check(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: DecodeRows,
    out: torch.Tensor,
    max_kv_len: int,
    scratch: PagedDecodeScratch,
) -> None:
    """Raise ``LayoutError`` unless everything fits; reads attributes only."""
    for name, tensor in (("query", query), ("keys", keys), ("values", values), ("out", out)):
        if tensor.dim() != 3 or tensor.stride(2) != 1 or tensor.dtype not in DTYPES:
            raise LayoutError(
                f"{name} does not have the layout of paged decode attention",
                arrived=(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())),
                allowed="bfloat16 or float32, three dimensions, the last one dense",
                remedy="pass [tokens, heads, head_dim]",
            )
    alike = {(t.dtype, t.device, t.shape[2]) for t in (query, keys, values, out)}
    if len(alike) != 1 or query.shape != out.shape or keys.shape != values.shape:
        raise LayoutError(
            "query, keys, values and out disagree",
            arrived=[(t.dtype, str(t.device), tuple(t.shape)) for t in (query, keys, values, out)],
            allowed="one dtype, device and head size; out like query, values like keys",
            remedy="keep the cache in the model's dtype",
        )
    if len(rows.token_slot) != len(query) or rows.row_lens.device != query.device:
        raise LayoutError(
            "the rows were built for another number of query tokens or on another device",
            arrived=(len(rows.token_slot), str(rows.row_lens.device)),
            allowed=f"{len(query)} tokens on {query.device}",
            remedy="pass the decode tokens of the step, padding included",
        )
    fits = scratch.heads == query.shape[1] and scratch.head_dim == query.shape[2]
    needed = ceil_div(max_kv_len, scratch.config.split)
    if not fits or len(query) > scratch.max_tokens or not 1 <= needed <= scratch.splits:
        raise LayoutError(
            "the scratch was made for other sizes",
            arrived=(*query.shape, max_kv_len),
            allowed=f"at most {scratch.max_tokens} tokens of {scratch.heads} x {scratch.head_dim} over "
            f"1 .. {scratch.splits * scratch.config.split} KV tokens",
            remedy="make PagedDecodeScratch for the largest step",
        )
