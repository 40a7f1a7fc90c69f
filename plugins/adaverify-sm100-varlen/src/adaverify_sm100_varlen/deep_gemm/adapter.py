"""One door to the library's paged MQA logits with request indices: what builds differ in ends here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

from adaverify_contracts import CapabilityError, DecodeRows, GraphError, LayoutError
from adaverify_metadata import mask_logits
from adaverify_sm100_varlen.deep_gemm.checks import LogitsCall, check_layout, check_sizes, check_values
from adaverify_sm100_varlen.deep_gemm.versions import KNOWN_VERSIONS, KnownVersion, known_version
from adaverify_sm100_varlen.pages import UNIT_SCALE
from adaverify_sm100_varlen.schedule import reference_schedule

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
            remedy="install adaverify-sm100-varlen[deepgemm], and no second distribution of deep_gemm",
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
        max_rows: most rows of a call; sizes the constant query scale that some builds want.
        checked: validate lengths, runs and page ids of every call on the host; waits, and cannot be captured.
        backend: ``triton`` or ``torch``, of the mask.

    Raises:
        CapabilityError: functions are missing, or the version is not listed: its contract is not known.
        LayoutError: heads, head_dim or page size that the build does not take.
    """

    def __init__(
        self,
        module: Any,
        *,
        heads: int,
        head_dim: int,
        page_size: int,
        device: str | torch.device,
        max_rows: int = 16384,
        checked: bool = False,
        backend: str = "triton",
    ) -> None:
        missing = [name for name in (_LOGITS, _METADATA, "get_num_sms") if not hasattr(module, name)]
        version = str(getattr(module, "__version__", ""))
        known = known_version(version)
        if missing or known is None:
            raise CapabilityError(
                "this build of the library lacks functions" if missing else "this build is not listed",
                arrived=missing or version,
                allowed=f"{_LOGITS}, {_METADATA}, get_num_sms; versions {', '.join(KNOWN_VERSIONS)}",
                remedy="install a listed build; what another one wants is not guessed",
            )
        self._known, self._contract = known, known.contract
        check_sizes(self._contract, heads, head_dim, page_size)
        self._module, self._sizes, self._backend = module, (heads, head_dim, page_size), backend
        self._checked = checked
        self._device, self._max_rows = torch.device(device), min(max_rows, self._contract.max_rows)
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._scale: torch.Tensor | None = None
        if self._contract.micro_scales:
            shape = (self._max_rows, 1, heads)
            self._scale = torch.full(shape, UNIT_SCALE, dtype=torch.int32, device=self._device)
        with self._on_device():
            self._slots = int(module.get_num_sms())
        self._warm = False

    @property
    def known(self) -> KnownVersion:
        """What the table says about the loaded version."""
        return self._known

    @property
    def slots(self) -> int:
        """Slots that a schedule must have, asked of the library once."""
        return self._slots

    def schedule(self, schedule_lens: torch.Tensor, request_indices: torch.Tensor) -> torch.Tensor:
        """Return the library's own schedule int32 [slots + 1, 2] of lengths int32 [M, 1], each at least 1."""
        return self._ask(_METADATA, request_indices, schedule_lens, self._sizes[2], self._slots)

    def warm_up(self) -> None:
        """Compile what calls need, the mask included. A call captured without it is refused."""
        heads, dim, page = self._sizes
        lens = torch.ones(1, 1, dtype=torch.int32, device=self._device)
        indices = torch.zeros(1, dtype=torch.int32, device=self._device)
        dtype = getattr(torch, self._contract.value_dtype)
        call = LogitsCall(
            q=torch.zeros(1, 1, heads, dim, device=self._device).to(torch.float8_e4m3fn),
            kv=torch.zeros(1, page, 1, dim + 4, dtype=torch.uint8, device=self._device),
            weights=torch.zeros(1, heads, dtype=dtype, device=self._device),
            row_lens=lens,
            block_table=torch.zeros(1, 1, dtype=torch.int32, device=self._device),
            request_indices=indices,
            schedule=reference_schedule(self._contract, lens, self._slots, indices),
            max_context_len=page,
        )
        self._launch(call)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._warm = True

    def rows(
        self, q: torch.Tensor, kv: torch.Tensor, weights: torch.Tensor, rows: DecodeRows, max_context_len: int
    ) -> torch.Tensor:
        """Return masked logits [M, max_context_len] of rows of ``varlen``; row t is query token t.

        Raises:
            LayoutError: the rows carry no schedule or no request indices, or see ``__call__``.
            GraphError: see ``__call__``.
        """
        indices, schedule = rows.request_indices, rows.schedule
        if indices is None or schedule is None:
            raise LayoutError(
                f"rows of strategy {rows.strategy!r} carry no schedule or no request indices",
                arrived=None,
                allowed="rows of varlen or uniform-varlen",
                remedy="allocate the strategy through its descriptor",
            )
        table = rows.block_table
        return self(LogitsCall(q, kv, weights, rows.row_lens, table, indices, schedule, max_context_len))

    def __call__(self, call: LogitsCall) -> torch.Tensor:
        """Return masked logits [M, max_context_len] of the contract's dtype, -inf past each length.

        Without rows or without width the result is empty and the library is not called: what it does then is
        undefined.

        Raises:
            LayoutError: dtype, shape, stride, device or size that the build does not take; in checked mode
                also lengths, runs and page ids.
            GraphError: called under capture before ``warm_up``, so that it would compile there.
        """
        if call.q.device != self._device or call.q.shape[0] > self._max_rows:
            raise LayoutError(
                "paged MQA logits: q does not fit this adapter",
                arrived=(str(call.q.device), call.q.shape[0]),
                allowed=f"{self._device}, at most {self._max_rows} rows",
                remedy="make one adapter for each device, large enough for its batches",
            )
        check_layout(call, self._contract, *self._sizes, self._slots)
        if not call.q.shape[0] or not call.max_context_len:
            shape = (call.q.shape[0], call.max_context_len)
            return torch.empty(shape, dtype=getattr(torch, self._contract.value_dtype), device=self._device)
        if not self._warm and self._capturing():
            raise GraphError(
                "paged MQA logits would compile inside a capture",
                arrived="a first call under capture",
                allowed="a warmed adapter",
                remedy="call warm_up before the capture",
            )
        if self._checked:
            check_values(call)
        return self._launch(call)

    def _ask(self, function: str, request_indices: torch.Tensor, *arguments: object) -> torch.Tensor:
        # The one place that makes both calls: indices in one of them alone hang the kernel (vllm #55270). By
        # keyword, since the eighth position means another thing in each version.
        with self._on_device():
            found: torch.Tensor = getattr(self._module, function)(*arguments, indices=request_indices)
        return found

    def _launch(self, call: LogitsCall) -> torch.Tensor:
        # A bare q would make the binding format tensor values into its TypeError and break a capture.
        query = (call.q, None if self._scale is None else self._scale[: call.q.shape[0]])
        lens, table = call.row_lens, call.block_table
        tensors = (query, call.kv, call.weights, lens, table, call.schedule, call.max_context_len)
        logits = self._ask(_LOGITS, call.request_indices, *tensors)
        with self._on_device():
            return mask_logits(logits, lens, backend=self._backend)

    def _capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _on_device(self) -> AbstractContextManager[object]:
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return torch.cuda.device(self._device)
