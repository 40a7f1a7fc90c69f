"""The body of a decode step over recorded truth, captured whole: gather, model, acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from adaverify_contracts import GraphKey
from adaverify_engine.ops.recorded.launch import accept_recorded, gather_recorded
from adaverify_engine.ops.recorded.layout import RecordRows
from adaverify_engine.recorded.state import RecordedState
from adaverify_engine.results import StepResults

if TYPE_CHECKING:
    from adaverify_runtime import Staged, Verifier


class Body(Protocol):
    """A model that decodes staged tokens; only launches."""

    def decode(self, staged: Staged, kv_lens: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        """Return int32 [tokens], the token that each query token decides.

        Args:
            staged: assignment and rows of the step.
            kv_lens: int32 [R], KV length of each request before the step.
            block_table: int32 [R, W], page ids.
        """
        ...


class RecordedStep:
    """``prologue`` and ``run`` for ``Verifier.capture``; both only launch.

    What is accepted follows from the record alone: the model's tokens are handed out and decide nothing.

    Args:
        body: the model.
        verifier: owner of the static inputs.
        state: records and cursors.
        results: where the outcome goes.
    """

    def __init__(self, body: Body, verifier: Verifier, state: RecordedState, results: StepResults) -> None:
        self._body, self._state, self._results = body, state, results
        inputs = verifier.inputs
        self._backend = "torch" if verifier.device.type == "cpu" else "triton"
        self._row_slot = inputs.row_slot
        self._rows = RecordRows(
            scheduled=inputs.scheduled,
            kv_lens=inputs.kv_lens,
            scores=inputs.scores,
            slots=inputs.slots,
            block_table=inputs.block_table,
        )

    def prologue(self, key: GraphKey) -> None:
        """Gather scores, lengths and pages of this step's requests, in row order."""
        gather_recorded(
            self._row_slot[: key.requests],
            self._state.tables,
            self._state.slots,
            self._rows,
            backend=self._backend,
        )

    def run(self, staged: Staged, key: GraphKey) -> None:
        """Run the model over the staged tokens and accept what the record accepts."""
        count, rows = key.requests, self._rows
        picked = self._body.decode(staged, rows.kv_lens[:count], rows.block_table[:count])
        accept_recorded(
            self._row_slot[:count],
            staged.assignment.admitted,
            staged.assignment.query_start_loc,
            picked,
            rows.scores,
            self._state.tables,
            self._state.slots,
            self._results,
            start=self._state.context,
            bound=self._state.bound,
            backend=self._backend,
        )
