"""One door to the library's paged MQA logits: it absorbs what versions differ in and refuses the rest."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

from adaverify_contracts import CapabilityError, DecodeRows, GraphError, LayoutError
from adaverify_metadata import schedule_tail_heavy
from adaverify_metadata.ops.mask_logits.launch import mask_logits
from adaverify_sm90_flatten.deep_gemm.checks import (
    LogitsCall,
    check_layout,
    check_sizes,
    check_tokens_per_row,
    check_values,
)
from adaverify_sm90_flatten.deep_gemm.versions import KnownVersion, known_version

_LOGITS = "fp8_fp4_paged_mqa_logits"
_METADATA = "get_paged_mqa_logits_metadata"


def import_library() -> ModuleType:
    """Import the library into this process; the probe has tried that in a child process first.

    Raises:
        CapabilityError: it cannot be imported, with type and text of the error (DeepGEMM raises some empty).
    """
    try:
        import deep_gemm
    except Exception as error:
        raise CapabilityError(
            "DeepGEMM cannot be imported",
            arrived=f"{type(error).__name__}: {str(error) or 'no message'}",
            allowed="a build for this torch, beside a CUDA toolkit",
            remedy="install adaverify-sm90-flatten[deepgemm], and no second distribution of deep_gemm",
        ) from error
    return deep_gemm


class PagedMqaLogits:
    """Paged MQA logits of one model's sizes on one device.

    ``warm_up`` compiles, calls only launch. The library allocates the result of each call: under capture it
    comes from the graph's pool, outside a graph every call allocates.

    Args:
        module: the imported library, or anything with its functions.
        heads: H.
        head_dim: D.
        page_size: P.
        device: where every tensor lives.
        checked: validate lengths and page ids of every call on the host; waits, and cannot be captured.
        backend: ``triton`` or ``torch``, of the mask.

    Raises:
        CapabilityError: the library is too old: it has only the call that takes one-dimensional lengths.
        LayoutError: heads, head_dim or page size that were not executed.
    """

    def __init__(
        self,
        module: Any,
        *,
        heads: int,
        head_dim: int,
        page_size: int,
        device: str | torch.device,
        checked: bool = False,
        backend: str = "triton",
    ) -> None:
        missing = [name for name in (_LOGITS, _METADATA, "get_num_sms") if not hasattr(module, name)]
        if missing:
            raise CapabilityError(
                "this build of the library lacks functions",
                arrived=missing,
                allowed=f"{_LOGITS}, {_METADATA}, get_num_sms",
                remedy="install the build that adaverify-sm90-flatten[deepgemm] names",
            )
        self._known = known_version(str(getattr(module, "__version__", "")))
        check_sizes(self._known.contract, heads, head_dim, page_size)
        self._module, self._heads, self._head_dim, self._page_size = module, heads, head_dim, page_size
        self._device, self._checked, self._backend = torch.device(device), checked, backend
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        # Asked once: the host check of every later call compares with it (set_num_sms would change it).
        with self._on_device():
            self._processors = int(module.get_num_sms())
        self._warm: set[int] = set()

    @property
    def known(self) -> KnownVersion:
        """What the table says about the loaded version."""
        return self._known

    def slots(self, tokens_per_row: int) -> int:
        """Return the slots a schedule must have: the library's processors, half of them for N = 4.

        Raises:
            LayoutError: the kernel does not take that many tokens a row.
        """
        check_tokens_per_row(self._known.contract, tokens_per_row)
        return self._processors // 2 if tokens_per_row == 4 else self._processors

    def schedule(self, schedule_lens: torch.Tensor) -> torch.Tensor:
        """Return the library's own schedule int32 [slots + 1, 2] of lengths int32 [M, N], each at least 1.

        Strategies build an equal one without the library. This one compiles anew for each 32 rows.
        """
        slots = self.slots(schedule_lens.shape[1])
        with self._on_device():
            return getattr(self._module, _METADATA)(schedule_lens.contiguous(), self._page_size, slots)

    def warm_up(self, tokens_per_row: Iterable[int] | None = None) -> None:
        """Compile what calls with these N need, the mask included; None warms every allowed N.

        Takes seconds for each N on first use. A call captured without it is refused.
        """
        dim, page, device = self._head_dim, self._page_size, self._device
        for tokens in tokens_per_row or self._known.contract.tokens_per_row:
            lens = torch.ones(1, tokens, dtype=torch.int32, device=device)
            call = LogitsCall(
                q=torch.zeros(1, tokens, self._heads, dim, device=device).to(torch.float8_e4m3fn),
                kv=torch.zeros(1, page, 1, dim + 4, dtype=torch.uint8, device=device),
                weights=torch.zeros(tokens, self._heads, device=device),
                row_lens=lens,
                block_table=torch.zeros(1, 1, dtype=torch.int32, device=device),
                schedule=schedule_tail_heavy(lens, self.slots(tokens), self._known.contract.split),
                max_context_len=page,
            )
            self._launch(call)
            self._warm.add(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def rows(
        self, q: torch.Tensor, kv: torch.Tensor, weights: torch.Tensor, rows: DecodeRows, max_context_len: int
    ) -> torch.Tensor:
        """Return masked logits float32 [M x N, max_context_len] of decode rows that carry a schedule.

        Query token t is at result row ``rows.token_slot[t]``.

        Args:
            q: float8_e4m3fn [M, N, H, D], by slot (``gather_slots``).
            kv: uint8 [pages, P, 1, D + 4].
            weights: float32 [M x N, H], by slot; a positive query scale is folded in.
            rows: from a strategy of this plugin.
            max_context_len: result columns; no length may exceed it.

        Raises:
            LayoutError: the rows carry no schedule, or see ``__call__``.
            GraphError: see ``__call__``.
        """
        if rows.schedule is None:
            raise LayoutError(
                f"rows of strategy {rows.strategy!r} carry no schedule",
                arrived=None,
                allowed="rows of flatten, paired or uniform-native",
                remedy="allocate the strategy through its descriptor",
            )
        lens, table = rows.row_lens, rows.block_table
        return self(LogitsCall(q, kv, weights, lens, table, rows.schedule, max_context_len))

    def __call__(self, call: LogitsCall) -> torch.Tensor:
        """Return masked logits float32 [M x N, max_context_len]: slot s is -inf from column ``len(s)`` on.

        Without rows or without width the result is empty and the library is not called: what it does then is
        undefined. Launch-only otherwise; ``indices`` is never passed, which this architecture refuses.

        Raises:
            LayoutError: dtype, shape, stride, device or size that the kernel does not take; in checked mode
                also lengths and page ids.
            GraphError: called under capture before ``warm_up``, so that it would compile there.
        """
        tokens = call.q.shape[1] if call.q.dim() == 4 else 0
        contract = self._known.contract
        if call.q.device != self._device:
            raise LayoutError(
                "paged MQA logits: q is not on the adapter's device",
                arrived=str(call.q.device),
                allowed=str(self._device),
                remedy="make one adapter for each device",
            )
        slots = self.slots(tokens) if tokens else 0
        check_layout(call, contract, self._heads, self._head_dim, self._page_size, slots)
        slots_out = call.q.shape[0] * tokens
        if not slots_out or not call.max_context_len:
            return torch.empty(slots_out, call.max_context_len, device=self._device)
        if tokens not in self._warm and self._capturing():
            raise GraphError(
                f"paged MQA logits with {tokens} tokens a row would compile inside a capture",
                arrived=tokens,
                allowed=f"warmed: {sorted(self._warm)}",
                remedy="call warm_up before the capture",
            )
        if self._checked:
            check_values(call)
        return self._launch(call)

    def _launch(self, call: LogitsCall) -> torch.Tensor:
        with self._on_device():
            # Seven positional arguments: names differ between versions, and so does what comes eighth. A bare
            # q would make the binding format tensor values into its TypeError and break a capture.
            logits = getattr(self._module, _LOGITS)(
                (call.q, None),
                call.kv,
                call.weights,
                call.row_lens,
                call.block_table,
                call.schedule,
                call.max_context_len,
            )
            return mask_logits(logits, call.row_lens, backend=self._backend)

    def _capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _on_device(self) -> AbstractContextManager[object]:
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return torch.cuda.device(self._device)
