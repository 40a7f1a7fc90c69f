"""The input and output of decode-row builders (design section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaverify_contracts.errors import LayoutError

if TYPE_CHECKING:
    import torch


def _require(
    owner: str, field: str, tensor: torch.Tensor, dims: int, like: torch.Tensor | None = None
) -> None:
    """Require an int32 tensor of ``dims`` dimensions with a dense last one, on the device of ``like``.

    Reads attributes only, never values, so it is safe while a graph is captured.
    """
    dtype, shape = str(getattr(tensor, "dtype", type(tensor).__name__)), tuple(getattr(tensor, "shape", ()))
    if dtype != "torch.int32":
        raise LayoutError(
            f"{owner}.{field} has the wrong dtype",
            arrived=dtype,
            allowed="torch.int32",
            remedy=f"keep {field} as int32 from the start; a cast here would allocate on the decode path",
        )
    if len(shape) != dims:
        raise LayoutError(
            f"{owner}.{field} has the wrong number of dimensions",
            arrived=shape,
            allowed=f"{dims} dimension{'s' if dims > 1 else ''}",
            remedy=f"pass {field} as documented",
        )
    if shape[-1] > 1 and tensor.stride(dims - 1) != 1:
        raise LayoutError(
            f"{owner}.{field} is not dense in its last dimension",
            arrived=tuple(tensor.stride()),
            allowed="stride 1 in the last dimension (the row stride is free)",
            remedy=f"own {field} as a contiguous buffer of fixed width",
        )
    if like is not None and tensor.device != like.device:
        raise LayoutError(
            f"{owner}.{field} is on another device than the rest",
            arrived=str(tensor.device),
            allowed=str(like.device),
            remedy="keep all tensors of one batch on one device",
        )


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One decode step as the row builder sees it; device lengths are the truth.

    A batch is *padded*: tensors cover ``requests`` request slots of which only the first ``num_requests`` are
    real; a padding request has query length 0 and ``seq_lens`` 0. ``padded_tokens`` query tokens are
    produced, of which the device's ``query_start_loc[-1]`` are real.

    Attributes:
        query_start_loc: int32 [requests + 1], device; cumulative query lengths, starts at 0, never decreases.
        seq_lens: int32 [requests], device; KV length including this step's query tokens.
        block_table: int32 [requests, W], device; page ids, dense in the last dimension, row stride free.
        num_requests: real requests on the host, 0 <= num_requests <= requests.
        num_tokens: host total of real query tokens; equals ``query_start_loc[-1]`` on the device.
        padded_tokens: query tokens to produce, padding included; at least num_tokens.
        max_query_len: host upper bound of any query length.
        uniform_query_len: the common query length when host and device agree that every real request has it
            (nothing trimmed), else None. Only a builder of uniform rows reads it.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    num_requests: int
    num_tokens: int
    padded_tokens: int
    max_query_len: int
    uniform_query_len: int | None = None

    def __post_init__(self) -> None:
        _require("DecodeBatch", "query_start_loc", self.query_start_loc, 1)
        _require("DecodeBatch", "seq_lens", self.seq_lens, 1, self.query_start_loc)
        _require("DecodeBatch", "block_table", self.block_table, 2, self.query_start_loc)
        requests = self.requests
        if self.query_start_loc.shape[0] != requests + 1 or self.block_table.shape[0] != requests:
            raise LayoutError(
                "DecodeBatch tensors disagree about the number of padded requests",
                arrived={
                    "query_start_loc": tuple(self.query_start_loc.shape),
                    "seq_lens": tuple(self.seq_lens.shape),
                    "block_table": tuple(self.block_table.shape),
                },
                allowed="[R + 1], [R] and [R, W] for one R",
                remedy="pad every per-request tensor to the same R",
            )
        if not 0 <= self.num_requests <= requests:
            raise LayoutError(
                "DecodeBatch.num_requests is outside the padded batch",
                arrived=self.num_requests,
                allowed=f"0 .. {requests}",
                remedy="size the buffers for the largest padded request count",
            )
        if not 0 <= self.num_tokens <= self.padded_tokens:
            raise LayoutError(
                "DecodeBatch.num_tokens exceeds padded_tokens or is negative",
                arrived=(self.num_tokens, self.padded_tokens),
                allowed="0 <= num_tokens <= padded_tokens",
                remedy="run the step at a tier that holds the batch",
            )
        if self.max_query_len < 0 or self.num_tokens > self.num_requests * max(1, self.max_query_len):
            raise LayoutError(
                "DecodeBatch.max_query_len is not an upper bound",
                arrived=(self.num_tokens, self.num_requests, self.max_query_len),
                allowed="num_tokens <= num_requests x max_query_len",
                remedy="pass K + 1, or the longest host query length",
            )
        uniform = self.uniform_query_len
        if uniform is not None and (uniform < 1 or uniform * self.num_requests != self.num_tokens):
            raise LayoutError(
                "DecodeBatch.uniform_query_len does not describe this batch",
                arrived=(uniform, self.num_requests, self.num_tokens),
                allowed="uniform_query_len x num_requests == num_tokens",
                remedy="leave it None for a ragged batch",
            )

    @property
    def requests(self) -> int:
        """Padded request count R."""
        return int(self.seq_lens.shape[0])


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """What an attention kernel reads; views into static buffers, rewritten by every build.

    With N = ``tokens_per_row`` and M rows, slot (m, j) is the flat index ``m * N + j``.

    Attributes:
        strategy: name of the strategy that built the rows.
        tokens_per_row: N, query tokens in one row (next_n).
        row_lens: int32 [M, N]; KV length that slot may attend to, clamped at 0, non-decreasing along N; 0 for
            padding. Already divided by the compression ratio and localised to this context-parallel rank.
        schedule_lens: int32 [M, N]; ``max(row_lens, 1)``: what kernel schedules are built from.
        block_table: int32 [M, W]; page ids of the row's request in its first ``ceil(row_lens[m, -1] / page)``
            columns. With ``request_indices`` the last row of the request counts instead of row m: a kernel
            that joins rows reads the table of the first and the length of the last. Later columns are not
            written: they hold valid ids from earlier steps, initially 0; a kernel may prefetch them.
        row_request: int32 [M]; request of the row, in 0 .. R - 1; a padding row carries R + its own row
            number, an id that no request and no other row has.
        row_token: int32 [M, N]; query-token number of the slot, -1 for padding slots and the odd front
            slot of a paired row.
        token_slot: int32 [padded_tokens]; slot of each query token; a padding token points at a padding slot
            where one exists, else at slot 0, and its result is never used.
        request_indices: int32 [M] or None; run ids for ragged kernels that group rows by request.
        schedule: int32 [slots + 1, 2] or None; the kernel library's work schedule.
    """

    strategy: str
    tokens_per_row: int
    row_lens: torch.Tensor
    schedule_lens: torch.Tensor
    block_table: torch.Tensor
    row_request: torch.Tensor
    row_token: torch.Tensor
    token_slot: torch.Tensor
    request_indices: torch.Tensor | None = None
    schedule: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens_per_row < 1:
            raise LayoutError(
                "DecodeRows.tokens_per_row is out of range",
                arrived=self.tokens_per_row,
                allowed="an int >= 1",
                remedy="emit at least one slot a row",
            )
        shape = (self.row_lens.shape[0], self.tokens_per_row)
        for field, dims in (
            ("row_lens", 2),
            ("schedule_lens", 2),
            ("row_token", 2),
            ("block_table", 2),
            ("row_request", 1),
            ("token_slot", 1),
        ):
            tensor = getattr(self, field)
            _require("DecodeRows", field, tensor, dims, self.row_lens)
            wrong = field != "token_slot" and tensor.shape[0] != shape[0]
            if wrong or (dims == 2 and field != "block_table" and tuple(tensor.shape) != shape):
                raise LayoutError(
                    f"DecodeRows.{field} has the wrong shape",
                    arrived=tuple(tensor.shape),
                    allowed=f"{shape[0]} rows of {self.tokens_per_row} slots",
                    remedy="cut every view for the same rows",
                )

    @property
    def rows(self) -> int:
        """M, rows including padding."""
        return int(self.row_lens.shape[0])
