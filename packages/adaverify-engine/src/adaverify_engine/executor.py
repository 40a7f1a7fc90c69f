"""One model pass over [decode tokens in row order, then prefill chunks], and the verdict on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaverify_contracts import DraftBatch, Plan, TappedModel, TargetModel
from adaverify_engine.acceptance import Sequences, Verdict, judge
from adaverify_engine.attention import DecodeAttentionChoice, PromptAttentionChoice, StepAttention
from adaverify_engine.cache import PagedCache
from adaverify_engine.inputs import StepBuffers, TokenInputs, prefill_tokens
from adaverify_engine.options import EngineOptions
from adaverify_engine.penalties import penalised
from adaverify_engine.prompt_graphs import PromptGraphs
from adaverify_engine.request import Request
from adaverify_engine.returned import Returned
from adaverify_engine.row_tiers import whole_rows
from adaverify_engine.running import Running
from adaverify_engine.scheduler import Work

if TYPE_CHECKING:
    from adaverify_graphs import CaptureReport
    from adaverify_runtime import GraphedSteps, Staged


@dataclass(frozen=True, slots=True)
class Passed:
    """What one model pass gave, row by row.

    Attributes:
        logits: float32 [N, vocabulary].
        features: [N, F] of the same positions, in the model's dtype; None where nobody reads them.
    """

    logits: torch.Tensor
    features: torch.Tensor | None = None


class Executor:
    """Owns the cache and the static step buffers; turns staged work into logits and a verdict.

    The decode half reads nothing but the step buffers, the assignment and the decode rows, all over the shape
    (padded requests, padded tokens): the same function is what a graph would capture.

    Args:
        model: the target.
        options: sizes of the engine.
    """

    def __init__(self, model: TargetModel, options: EngineOptions) -> None:
        geometry = model.geometry
        self._model, self._options = model, options
        self._device = torch.device(options.device)
        self.group = geometry.heads // geometry.kv_heads
        self._taps: tuple[int, ...] = ()
        self._graphs: PromptGraphs | None = None
        self.cache = PagedCache(
            geometry, options.pool_pages, options.page_size, getattr(torch, options.dtype), self._device
        )
        self.attention = DecodeAttentionChoice(geometry, options.limits, self.cache)
        self.prompts = PromptAttentionChoice(geometry, self.cache)
        self.buffers = StepBuffers(options.limits, self._device)
        self._returned = Returned(geometry, self._device, getattr(torch, options.dtype))

    def capture_prompts(self, graphs: GraphedSteps) -> CaptureReport | None:
        """Capture the pass over prompts, which is a replay from then on.

        None where the paged kernel does not serve them, or the settings turn it off.
        """
        if self.prompts.name != "paged" or not graphs.captures_prompts:
            return None
        self._graphs = PromptGraphs(self, graphs)
        return self._graphs.capture()

    def read(self, taps: tuple[int, ...]) -> None:
        """From now on return the features of the layers ``taps`` with every pass (``TappedModel``)."""
        self._taps = taps

    def forward(
        self, work: Work, staged: Staged | None, plan: Plan, table: np.ndarray, longest: int
    ) -> Passed:
        """Run the model once; return logits and features of [decode tokens + finishing prefills].

        No rows when no token of this step decides anything (prompts that go on).

        Args:
            work: the step's requests.
            staged: assignment and rows of the decode requests, None when there are none.
            plan: its budget bounds the longest query.
            table: int32 [max_requests, W], host block table by slot.
            longest: upper bound of any decode request's KV length in this step.
        """
        if staged is None and work.chunks and self._graphs is not None:
            states = self._graphs.run(work.chunks, table)
            if states is not None:
                return self._deciding_rows(work, 0, *states)
        inputs, decode, width = None, None, 0
        if staged is not None:
            buffers = self.buffers
            inputs = buffers.decode_tokens(staged.assignment, buffers.kv_lens, buffers.block_table)
            width = len(inputs.ids)
            decode = self.attention.plan(
                staged.rows,
                staged.assignment.query_start_loc,
                queries=self._longest_query(staged, plan),
                max_kv_len=longest,
            )
        if inputs is None or work.chunks:
            inputs = self._with_prefill(inputs, work, table)
        pieces = [(table[chunk.request.slot], chunk.start, chunk.length) for chunk in work.chunks]
        chunks = self.prompts.plan(pieces)
        padding = self._padding(len(inputs.ids))
        inputs = inputs.padded(padding)
        attend = StepAttention(self.cache, inputs.slots, decode, width, chunks, self.group, padding)
        hidden, features = self.states(inputs, attend)
        if not work.chunks:
            return Passed(self._logits(hidden)[:width], None if features is None else features[:width])
        return self._deciding_rows(work, width, hidden, features)

    def _deciding_rows(
        self, work: Work, width: int, hidden: torch.Tensor, features: torch.Tensor | None
    ) -> Passed:
        """Return logits and features of the tokens that decide, behind ``width`` decode tokens."""
        deciding = self._deciding(work, width)
        count = len(deciding)
        if not count:
            return Passed(torch.zeros((0, self._model.geometry.vocabulary), device=self._device))
        deciding = np.pad(deciding, (0, self._padding(count)), mode="edge")
        at = self._column(deciding)
        return Passed(self._logits(hidden[at])[:count], None if features is None else features[at[:count]])

    def take_fallbacks(self) -> tuple[str, ...]:
        """Return and forget the fallbacks of decode rows and prompts since the last call, by name."""
        return self.attention.take_fallbacks() + self.prompts.take_fallbacks()

    @property
    def model(self) -> TargetModel:
        """The target."""
        return self._model

    @property
    def options(self) -> EngineOptions:
        """Sizes of the engine."""
        return self._options

    @property
    def vocabulary(self) -> int:
        """Token ids of the model."""
        return self._model.geometry.vocabulary

    def decode(
        self, staged: Staged, kv_lens: torch.Tensor, block_table: torch.Tensor, *, queries: int
    ) -> Passed:
        """Run the model once over a step's decode tokens; return logits and features of all padded tokens.

        Reads device tensors only, on an accelerator, and may be captured there.

        Args:
            staged: assignment and rows.
            kv_lens: int32 [max_requests], KV length of each row before the step.
            block_table: int32 [max_requests, W], by row.
            queries: upper bound of any query length.
        """
        inputs = self.buffers.decode_tokens(staged.assignment, kv_lens, block_table)
        decode = self.attention.plan(
            staged.rows,
            staged.assignment.query_start_loc,
            queries=queries,
            max_kv_len=self._options.limits.max_kv_len,
        )
        attend = StepAttention(self.cache, inputs.slots, decode, len(inputs.ids), (), self.group)
        hidden, features = self.states(inputs, attend)
        return Passed(self._logits(hidden), features)

    def judge(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        batch: DraftBatch,
        staged: Staged | None,
        running: Running,
    ) -> tuple[Verdict, np.ndarray]:
        """Return the verdict and the admitted drafts int64 [S] of ``requests``, decode requests first.

        Args:
            logits: float32 [N, V].
            requests: running ones.
            batch: drafts of the decode requests; staged: their assignment, None where there are none.
            running: their state by slot.
        """
        slots = np.array([request.slot for request in requests], dtype=np.int64)
        decode = len(batch.scheduled)
        finals = len(requests) - decode
        width = self._options.draft_tokens
        admitted = torch.zeros(len(requests), dtype=torch.int64, device=self._device)
        tail = len(logits) - finals
        start = torch.arange(tail - decode, len(logits), device=self._device)
        if staged is not None:
            admitted[:decode] = staged.assignment.admitted[:decode]
            start[:decode] = staged.assignment.query_start_loc[:decode]
        drafts = torch.full((len(requests), width), -1, dtype=torch.int64, device=self._device)
        drafts[:decode] = batch.tokens
        sampled, by_equality = running.sampled[slots], ~running.sensitive[slots]
        drawn = batch.probabilities is not None and not by_equality.all()
        if running.penalised[slots].any():
            logits = penalised(logits, requests, start, admitted, drafts)
        sequences = Sequences(
            start=start,
            admitted=admitted,
            drafts=drafts,
            draft_law=_extended(batch.probabilities, finals) if drawn else None,
            temperature=self._column(running.temperature[slots]),
            top_p=self._column(running.top_p[slots]),
            noise=self._column(_noise(requests, np.flatnonzero(sampled), width)),
            by_equality=self._column(by_equality) if drawn else None,
        )
        verdict = judge(logits, sequences, sampled=bool(sampled.any()))
        return verdict, np.zeros(finals, dtype=np.int64) if staged is None else admitted.cpu().numpy()

    def states(self, inputs: TokenInputs, attend: StepAttention) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the model once; return hidden states [T, hidden], and features [T, F] where they are read."""
        count = len(inputs.ids)
        if not self._taps:
            hidden = self._model.forward(inputs.ids, inputs.positions, attend)
            return self._returned.states(hidden, count), None
        assert isinstance(self._model, TappedModel)  # noqa: S101 - whoever set the taps has checked
        found = self._model.forward_tapped(inputs.ids, inputs.positions, attend, self._taps)
        return self._returned.tapped(found, count, len(self._taps))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._returned.logits(self._model.logits(hidden), len(hidden))

    def _padding(self, rows: int) -> int:
        """Return how many rows more a product of ``rows`` computes where few numbers of rows are cheap."""
        return whole_rows(rows) - rows if self._device.type == "cpu" else 0

    def _longest_query(self, staged: Staged, plan: Plan) -> int:
        if self._device.type == "cpu":
            # Cells of the grid that no token fills cost attention time; on the host the true maximum is free.
            return int(staged.assignment.admitted.max()) + 1
        return min(self._options.draft_tokens, plan.budget) + 1

    def _with_prefill(self, inputs: TokenInputs | None, work: Work, table: np.ndarray) -> TokenInputs:
        prompt = prefill_tokens(work.chunks, table, self._options.page_size, self._device)
        return prompt if inputs is None else inputs.joined(prompt)

    def _deciding(self, work: Work, width: int) -> np.ndarray:
        """Return int64 [N], the tokens that may emit: all decode tokens, the last of each ending prompt."""
        ends = width - 1 + np.cumsum([chunk.length for chunk in work.chunks], dtype=np.int64)
        final = np.array([chunk.final for chunk in work.chunks], dtype=bool)
        return np.concatenate((np.arange(width), ends[final]))

    def _column(self, values: np.ndarray) -> torch.Tensor:
        # Not waited for: a wait here would be one for the model's whole pass.
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def _extended(law: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    if law is None or not rows:
        return law
    return torch.cat((law, law.new_zeros((rows, *law.shape[1:]))))


def _noise(requests: Sequence[Request], drawn: np.ndarray, width: int) -> np.ndarray:
    """Return float64 [S, K + 1, 2] by output position, 0 for greedy requests and past the last position.

    Args:
        requests: S requests.
        drawn: int64 [N], those of them whose tokens are drawn.
        width: K.
    """
    noise = np.zeros((len(requests), width + 1, 2))
    for row in drawn.tolist():
        all_of_it, begin = requests[row].noise, requests[row].output_len
        assert all_of_it is not None  # noqa: S101 - made with the request
        part = all_of_it[begin : begin + width + 1]
        noise[row, : len(part)] = part
    return noise
