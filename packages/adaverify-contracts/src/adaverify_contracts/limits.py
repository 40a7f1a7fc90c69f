"""Sizes fixed at start. Every static buffer is derived from one ``Limits``."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import _check
from adaverify_contracts.errors import LimitsError

_LARGEST = 2**31 - 1


def ceil_div(value: int, divisor: int) -> int:
    """Return ``value / divisor`` rounded up; the one ceiling division every table width comes from."""
    return -(-value // divisor)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest shapes a deployment will ever see.

    Attributes:
        max_requests: decode requests in one step, at least 1.
        draft_tokens: K, draft tokens per request; 0 means no speculation.
        max_model_len: longest sequence in tokens, drafts excluded.
        page_size: tokens in one KV page.
        compress_ratio: query-side KV compression; each row's length is divided by it, rounding down.
        context_parallel_size: ranks that interleave one sequence's KV; 1 means none.
        context_parallel_rank: this rank, in 0 .. size - 1.
        context_parallel_interleave: consecutive tokens on one rank before the next rank's turn.
    """

    max_requests: int
    draft_tokens: int
    max_model_len: int
    page_size: int
    compress_ratio: int = 1
    context_parallel_size: int = 1
    context_parallel_rank: int = 0
    context_parallel_interleave: int = 1

    def __post_init__(self) -> None:
        lowest = {
            "max_requests": 1,
            "draft_tokens": 0,
            "max_model_len": 1,
            "page_size": 1,
            "compress_ratio": 1,
            "context_parallel_size": 1,
            "context_parallel_rank": 0,
            "context_parallel_interleave": 1,
        }
        for name, bound in lowest.items():
            _check.at_least("Limits", name, getattr(self, name), bound, LimitsError)
        if self.context_parallel_rank >= self.context_parallel_size:
            raise LimitsError(
                "Limits.context_parallel_rank is not a rank of the group",
                arrived=self.context_parallel_rank,
                allowed=f"0 .. {self.context_parallel_size - 1}",
                remedy="pass this process's rank within the context-parallel group",
            )
        if self.max_kv_len > _LARGEST:
            raise LimitsError(
                "Limits.max_model_len plus drafts does not fit the int32 lengths that kernels read",
                arrived=self.max_kv_len,
                allowed="at most 2**31 - 1",
                remedy="lower max_model_len",
            )
        if self.max_tokens > _LARGEST:
            raise LimitsError(
                "Limits.max_requests x (draft_tokens + 1) does not fit int32 boundaries",
                arrived=self.max_tokens,
                allowed="at most 2**31 - 1 query tokens in one step",
                remedy="lower max_requests to the largest batch that is really decoded",
            )
        for name, bound in lowest.items():
            if getattr(self, name) > _LARGEST:
                raise LimitsError(
                    f"Limits.{name} does not fit the int32 that kernels read",
                    arrived=getattr(self, name),
                    allowed=f"{bound} .. {_LARGEST}",
                    remedy=f"lower {name}",
                )

    @property
    def max_query_len(self) -> int:
        """Longest decode query: the certain token and K drafts."""
        return self.draft_tokens + 1

    @property
    def max_tokens(self) -> int:
        """Query tokens of the largest decode step; the decode ladder ends here."""
        return self.max_requests * self.max_query_len

    @property
    def max_kv_len(self) -> int:
        """Longest KV length a row can have: the model length with its drafts."""
        return self.max_model_len + self.draft_tokens

    @property
    def table_width(self) -> int:
        """Block-table columns, drafts and compression included; at least 1, fixed for the buffers' life.

        The width is ``ceil((max_kv_len // compress_ratio) / page_size)``; context parallelism only shortens
        local lengths, so the same width serves every rank.
        """
        return max(1, ceil_div(self.max_kv_len // self.compress_ratio, self.page_size))
