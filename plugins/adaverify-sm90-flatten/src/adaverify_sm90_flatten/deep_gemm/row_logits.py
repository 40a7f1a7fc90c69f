"""Scores of query tokens through the adapter: what this plugin's strategies offer beside their rows."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeRows, PagedLogits
from adaverify_sm90_flatten.decision import NATIVE_QUERY_ROWS
from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits, import_library
from adaverify_sm90_flatten.ops.gather_slots.launch import gather_slots


class RowLogits:
    """Paged MQA logits by query token; see ``adaverify_contracts.PagedLogits``.

    Args:
        adapter: of one model's sizes, warmed for one and two tokens a row.
        backend: ``triton`` or ``torch``, of the gather.
    """

    def __init__(self, adapter: PagedMqaLogits, *, backend: str = "triton") -> None:
        self._adapter, self._backend = adapter, backend

    def __call__(
        self,
        query: torch.Tensor,
        weights: torch.Tensor,
        pool: torch.Tensor,
        rows: DecodeRows,
        width: int,
    ) -> torch.Tensor:
        """Lay queries and weights out by slot and return the adapter's masked logits by slot.

        Raises:
            LayoutError: see ``gather_slots`` and ``PagedMqaLogits.rows``.
            GraphError: see ``PagedMqaLogits.rows``.
        """
        by_slot, slot_weights = gather_slots(query, weights, rows, backend=self._backend)
        return self._adapter.rows(by_slot, pool, slot_weights, rows, width)


def make_row_logits(heads: int, head_dim: int, page_size: int, device: torch.device) -> PagedLogits:
    """Return warmed scores of a model's sizes on ``device``.

    Raises:
        CapabilityError: DeepGEMM cannot be imported, or is too old.
        LayoutError: sizes that were not executed.
    """
    adapter = PagedMqaLogits(
        import_library(), heads=heads, head_dim=head_dim, page_size=page_size, device=device
    )
    adapter.warm_up(NATIVE_QUERY_ROWS)
    return RowLogits(adapter)
