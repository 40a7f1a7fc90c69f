"""Static buffers of the assignment, and the choice between NumPy, torch and Triton."""

from __future__ import annotations

import numpy as np
import torch

from adaverify_contracts import LimitsError
from adaverify_vllm.assignment.host import admit_host
from adaverify_vllm.assignment.reference import HOPELESS, assign_boundaries
from adaverify_vllm.jit import decorated, require_device

# One program holds every key in registers; larger batches take the torch form.
MAX_REQUESTS, MAX_DRAFTS = 1024, 15
BLOCK_TAIL = 256
BACKENDS = ("torch", "triton")
UNSPECIALIZED = ("table_stride", "staged_stride", "requests", "budget", "total", "ends", "bonus")


def assign_kernel() -> object:
    """Return the kernel."""
    from adaverify_vllm.assignment.kernel import assign_kernel as function

    return decorated(function, UNSPECIALIZED)


class BatchAssigner:
    """Spends a budget on the live confidences and writes vLLM's boundaries.

    Args:
        table: float32 [slots, K + 2], the confidences by slot in front; the last column receives what each
            request was admitted.
        query_start_loc: int32 [slots + 1], vLLM's own buffer, written in place.
        drafts: K.
        bonus: logits rows of each request that are not drafts.
        backend: ``torch`` (NumPy where the memory is the host's) or ``triton``, one launch.

    Raises:
        LimitsError: unknown backend, or sizes that the kernel does not serve.
    """

    def __init__(
        self, table: torch.Tensor, query_start_loc: torch.Tensor, *, drafts: int, bonus: int, backend: str
    ) -> None:
        slots, device = table.shape[0], table.device
        if backend not in BACKENDS or (backend == "triton" and not serves(slots, drafts)):
            raise LimitsError(
                "the assignment cannot be made like this",
                arrived={"backend": backend, "requests": slots, "draft tokens": drafts},
                allowed=f"{' or '.join(BACKENDS)}; triton for {MAX_REQUESTS} requests of {MAX_DRAFTS} drafts",
                remedy="take the torch backend",
            )
        self.backend = backend
        self._table, self._query_start_loc = table, query_start_loc
        self._drafts, self._bonus = drafts, bonus
        self.admitted = torch.zeros(slots, dtype=torch.int32, device=device)
        self.cu_num_logits = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._staged = torch.zeros((2, slots), dtype=torch.int32, device=device)
        self._host = np.zeros((2, slots), dtype=np.int32)
        # Views of one buffer by length: cutting a tensor takes longer than all else that the host does here.
        self._offsets: dict[int, torch.Tensor] = {}
        self._on_host = device.type == "cpu" and backend == "torch"

    def stage(self, scheduled: np.ndarray, certain: np.ndarray) -> None:
        """Bring a batch's counts to the device, in the order of the batch; enqueue only.

        Args:
            scheduled: int [R], drafts of each request, plus ``HOPELESS`` where none can be accepted.
            certain: int [R], query tokens that are not drafts.
        """
        count = len(scheduled)
        if self._on_host:
            self._host[0, :count], self._host[1, :count] = scheduled, certain
            return
        # Pageable memory is staged at once, so that nothing waits and the array may go.
        packed = np.empty((2, self._host.shape[1]), dtype=np.int32)
        packed[0, :count], packed[1, :count] = scheduled, certain
        self._staged.copy_(torch.from_numpy(packed), non_blocking=True)

    def offsets(self, requests: int) -> torch.Tensor:
        """Return the logits offsets int32 [R + 1] of a batch of ``requests``, a view of ``cu_num_logits``."""
        found = self._offsets.get(requests)
        if found is None:
            found = self._offsets[requests] = self.cu_num_logits[: requests + 1]
        return found

    def assign(self, rows: torch.Tensor, budget: int, total: int) -> None:
        """Admit the budget and write the boundaries of the batch staged last; launches only.

        Args:
            rows: int64 [R] on the device, the requests' slots.
            budget: drafts to admit.
            total: query tokens of the whole batch.
        """
        if self._on_host:
            self._assign_host(rows, budget, total)
        elif self.backend == "triton":
            self._launch(rows, budget, total)
        else:
            self._assign_torch(rows, budget, total)

    def _assign_host(self, rows: torch.Tensor, budget: int, total: int) -> None:
        slots, count = rows.numpy(), rows.shape[0]
        scheduled, certain = self._host[0, :count], self._host[1, :count]
        table = self._table.numpy()
        admitted = admit_host(table[slots, : self._drafts], scheduled, budget)
        table[slots, self._drafts + 1] = admitted
        self.admitted.numpy()[:count] = admitted
        logits, queries = self.cu_num_logits.numpy(), self._query_start_loc.numpy()
        logits[0] = queries[0] = 0
        np.cumsum(admitted + self._bonus, out=logits[1 : count + 1])
        np.cumsum(admitted + certain, out=queries[1 : count + 1])
        queries[count + 1 :] = total

    def _assign_torch(self, rows: torch.Tensor, budget: int, total: int) -> None:
        count = rows.shape[0]
        scheduled, certain = self._staged[:, :count]
        live = self._table[:, : self._drafts]
        found = assign_boundaries(live, rows, scheduled, certain, budget, self._bonus)
        self.admitted[:count] = found.admitted
        self._table[rows, self._drafts + 1] = found.admitted.float()
        self.cu_num_logits[: count + 1] = found.cu_num_logits
        self._query_start_loc[: count + 1] = found.query_start_loc
        self._query_start_loc[count + 1 :] = total

    def _launch(self, rows: torch.Tensor, budget: int, total: int) -> None:
        kernel = assign_kernel()
        require_device(kernel, rows.device)
        block = max(16, 1 << max(rows.shape[0] - 1, 0).bit_length())
        kernel[(1,)](  # type: ignore[index]
            self._table,
            rows,
            self._staged,
            self.admitted,
            self.cu_num_logits,
            self._query_start_loc,
            self._table.stride(0),
            self._staged.stride(0),
            rows.shape[0],
            budget,
            total,
            self._query_start_loc.shape[0],
            self._bonus,
            DRAFTS=self._drafts,
            POSITION_BITS=max(1, self._drafts.bit_length()),
            HOPELESS=HOPELESS,
            BLOCK_REQUESTS=block,
            BLOCK_TAIL=BLOCK_TAIL,
            num_warps=max(1, min(16, block // 32)),
            # Fusing s x 65535 + 0.5 would round once where the reference rounds twice.
            enable_fp_fusion=False,
        )

    def warm_up(self) -> None:
        """Compile the kernel for every batch size, so that no request waits for it."""
        if self.backend != "triton":
            return
        slots, size = self._table.shape[0], 16
        kept = self._query_start_loc.clone()
        while True:
            count = min(size, slots)
            rows = torch.arange(count, dtype=torch.int64, device=self._table.device)
            self.stage(np.zeros(count, np.int32), np.ones(count, np.int32))
            self.assign(rows, 0, count)
            if size >= slots:
                break
            size *= 2
        self._query_start_loc.copy_(kept)


def serves(slots: int, drafts: int) -> bool:
    """Return whether the kernel serves batches of these sizes."""
    return slots <= MAX_REQUESTS and drafts <= MAX_DRAFTS
