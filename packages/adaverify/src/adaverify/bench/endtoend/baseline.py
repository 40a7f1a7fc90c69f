"""The published arrangement, written in plain torch from its description: what ours is held against.

Metadata is computed by chains of torch calls outside the graph, which holds the model alone and is captured
at padded token counts. Confidences go to the host through pinned buffers in turn, and each is waited for. The
host keeps them in a dictionary by request, looks at every budget, and ranks drafts by a sort on the device. A
single request takes the uniform path, whose lengths the host knows. Rows are one query token each. Model,
records and step times are ours.

As it was published, the confidences of the drafts that a step will verify are copied at the end of the step
before, the copy is waited for, and only then is the step sized, ranked, laid out and launched. A stronger
variant launches one step ahead and sizes by those of the last step that ended: nothing on the device waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from adaverify.bench.endtoend.deck import Curve, Deck, tier_of
from adaverify.bench.endtoend.rounds import Seen
from adaverify_contracts import CapturedGraph, DecodeRows, GraphBackend
from adaverify_engine.flight import AHEAD
from adaverify_graphs import CudaGraphBackend, EagerBackend, capture_query_lens
from adaverify_metadata import TailHeavySchedule
from adaverify_runtime import Staged
from adaverify_verification import Assignment

PUBLISHED = "published"
"""As published: waits for the confidences of the drafts that it is to verify before it launches anything."""
PUBLISHED_AHEAD = "published-ahead"
"""The same, launched one step ahead, by the confidences of the last step that ended."""
PUBLISHED_FIXED = "published-fixed"
"""Verifies everything, one step ahead: no confidence is needed, so none is copied or waited for."""

BUFFERS = 3
"""Two steps under way and one that is read: the confidences of a step are never overwritten before that."""


class BodyGraphs:
    """The model alone at padded token counts, over static inputs that the chains write.

    Args:
        deck: limits, model and tiers.
    """

    def __init__(self, deck: Deck) -> None:
        limits, device = deck.limits, deck.ground.device
        self._deck = deck
        tokens, requests, width = limits.max_tokens, limits.max_requests, limits.table_width

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.admitted, self.seq_lens, self.kv_lens = ints(requests), ints(requests), ints(requests)
        self.query_start_loc = ints(requests + 1)
        self.token_request, self.token_offset = ints(tokens), ints(tokens)
        self.row_lens, self.schedule_lens, self.row_token = ints(tokens, 1), ints(tokens, 1), ints(tokens, 1)
        self.row_request, self.token_slot = ints(tokens), ints(tokens)
        self.token_slot.copy_(torch.arange(tokens))
        # Rows of the table start 16 bytes apart, as the attention kernels ask.
        self.row_table = ints(tokens, -(-width // 4) * 4)[:, :width]
        self.block_table = ints(requests, width)
        self.schedule: TailHeavySchedule | None = None
        if device.type == "cuda":
            slots = deck.ground.options.capability.processors
            self.schedule = TailHeavySchedule(limits, device, slots, backend="triton")
        self._backend: GraphBackend = (
            CudaGraphBackend(device) if device.type == "cuda" else EagerBackend(device)
        )
        self._graphs: dict[int, CapturedGraph] = {}

    def capture(self) -> None:
        """Capture the model at every tier of the deck, largest first, each over lengths that are valid."""
        requests, drafts = self._deck.requests, self._deck.limits.draft_tokens
        kv = self._deck.state.slots.kv_len[:requests]
        kv.fill_(self._deck.context)
        for tier in reversed(self._deck.tiers):
            lens = torch.tensor(capture_query_lens(tier, requests, drafts), device=kv.device)
            self.metadata(lens, tier, tier, kv)
            self._graphs[tier] = self._backend.capture(self._run(tier))

    def replay(self, tier: int) -> torch.Tensor:
        """Run the model over ``tier`` query tokens, a captured size."""
        result: torch.Tensor = self._graphs[tier].replay()
        return result

    def _run(self, tier: int) -> Callable[[], Any]:
        requests = self._deck.requests
        staged = Staged(
            Assignment(
                admitted=self.admitted[:requests],
                query_start_loc=self.query_start_loc[: requests + 1],
                seq_lens=self.seq_lens[:requests],
                token_request=self.token_request[:tier],
                token_offset=self.token_offset[:tier],
            ),
            DecodeRows(
                strategy="flatten",
                tokens_per_row=1,
                row_lens=self.row_lens[:tier],
                schedule_lens=self.schedule_lens[:tier],
                block_table=self.row_table[:tier],
                row_request=self.row_request[:tier],
                row_token=self.row_token[:tier],
                token_slot=self.token_slot[:tier],
                schedule=None if self.schedule is None else self.schedule.schedule,
            ),
            "flatten",
            "the published arrangement",
        )

        def run() -> torch.Tensor:
            return self._deck.body.decode(staged, self.kv_lens[:requests], self.block_table[:requests])

        return run

    def metadata(self, query_lens: torch.Tensor, tokens: int, tier: int, kv: torch.Tensor) -> None:
        """Write every boundary and row by torch calls; no call waits.

        Args:
            query_lens: int64 [R] on the device.
            tokens: their sum, which the host knows.
            tier: query tokens with padding.
            kv: int32 [R], KV lengths before the step.
        """
        requests = len(query_lens)
        index = torch.arange(requests, device=kv.device)
        ends = query_lens.cumsum(0)
        self.query_start_loc[1:].copy_(ends)
        self.seq_lens.copy_(kv + query_lens)
        self.kv_lens.copy_(kv)
        owner = torch.repeat_interleave(index, query_lens, output_size=tokens)
        offset = torch.arange(tokens, device=kv.device) - (ends - query_lens)[owner]
        lens = (kv[owner] + offset + 1) // self._deck.limits.compress_ratio
        self.token_request[:tokens].copy_(owner)
        self.token_offset[:tokens].copy_(offset)
        self.row_request[:tokens].copy_(owner)
        self.row_token[:tokens, 0].copy_(torch.arange(tokens, device=kv.device))
        self.row_lens[:tokens, 0].copy_(lens)
        self.row_table[:tokens].copy_(self._deck.state.slots.block_table[owner])
        if tier > tokens:
            self.token_request[tokens:tier].fill_(-1)
            self.token_offset[tokens:tier].fill_(-1)
            self.row_token[tokens:tier].fill_(-1)
            self.row_request[tokens:tier].copy_(requests + torch.arange(tokens, tier, device=kv.device))
            self.row_lens[tokens:tier].fill_(0)
        torch.clamp(self.row_lens[:tier], min=1, out=self.schedule_lens[:tier])
        self.block_table.copy_(self._deck.state.slots.block_table)
        if self.schedule is not None:
            self.schedule.build(self.schedule_lens[:tier])


@dataclass(frozen=True, slots=True)
class _Launched:
    entry: int
    budget: int
    tier: int
    fresh: torch.Tensor | None


class BaselineSteps:
    """Runs the published arrangement.

    Args:
        deck: records, cursors and tiers; its own graphs are not used.
        graphs: the model alone.
        curve: step times; None verifies everything, as a fixed K does.
        budget: runs this budget whatever was decided, for comparing equal steps.
        waits: copy the next drafts' confidences at the end of each step and launch nothing before they have
            arrived; needs ``curve``.

    Attributes:
        ahead: steps under way at once.
    """

    def __init__(
        self,
        deck: Deck,
        graphs: BodyGraphs,
        curve: Curve | None,
        *,
        budget: int | None = None,
        waits: bool = False,
    ) -> None:
        self.ahead = 1 if waits else AHEAD
        self._waits = waits
        self._deck, self._graphs, self._curve = deck, graphs, curve
        self._given = budget
        self._drafts, self._requests = deck.limits.draft_tokens, deck.requests
        pinned = deck.ground.device.type == "cuda"
        self._confidences = [
            torch.zeros((self._requests, self._drafts), pin_memory=pinned) for _ in range(BUFFERS)
        ]
        self._decided = [
            torch.zeros((2, self._requests), dtype=torch.int64, pin_memory=pinned) for _ in range(BUFFERS)
        ]
        self._events: list[Any] = [
            torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
            for _ in range(BUFFERS)
        ]
        self._names = [f"request-{slot}" for slot in range(self._requests)]
        self._known: dict[str, np.ndarray] = {}
        self._flying: deque[_Launched] = deque()
        self._next = 0
        self._everything = self._requests * self._drafts
        self._budget = self._everything

    def open(self, starts: np.ndarray) -> None:
        """Begin a round; nothing is known of its requests."""
        self._deck.open_round(starts)
        self._known.clear()
        self._budget = self._everything

    def __len__(self) -> int:
        """Return the steps under way."""
        return len(self._flying)

    def launch(self) -> None:
        """Enqueue the chains, the model and the acceptance of one step."""
        budget = self._budget if self._given is None else self._given
        requests, tokens = self._requests, self._requests + budget
        tier = tier_of(self._deck.tiers, tokens)
        slots, tables = self._deck.state.slots, self._deck.state.tables
        kv, cursor = slots.kv_len[:requests], slots.cursor[:requests].long()
        entry, self._next = self._next, (self._next + 1) % BUFFERS
        adaptive = self._curve is not None
        confidences = torch.sigmoid(tables.scores[cursor]) if adaptive else None
        # One query length for all that the host knows: everything, nothing, or a single request.
        length = budget // requests + 1 if budget in (0, self._everything) or requests == 1 else None
        if length is not None:
            admitted = torch.full((requests,), length - 1, dtype=torch.int64, device=kv.device)
        else:
            assert confidences is not None  # noqa: S101 - a fixed step has one length
            admitted = _admit(confidences, budget)
        self._graphs.admitted.copy_(admitted)
        self._graphs.metadata(admitted + 1, tokens, tier, kv)
        self._graphs.replay(tier)
        accepted = torch.minimum(admitted, tables.accepted[cursor])
        self._advance(cursor, accepted, kv)
        self._decided[entry].copy_(torch.stack([admitted, accepted]), non_blocking=True)
        fresh = torch.sigmoid(tables.scores[slots.cursor[:requests].long()]) if self._waits else None
        if confidences is not None and fresh is None:
            self._confidences[entry].copy_(confidences, non_blocking=True)
        if self._events[entry] is not None:
            self._events[entry].record()
        self._flying.append(_Launched(entry, budget, tier, fresh))

    def land(self) -> Seen:
        """Wait for the oldest step, file its confidences by request and decide the next budget."""
        step = self._flying.popleft()
        asked = perf_counter()
        if step.fresh is not None:
            # The copy that blocks: it waits for the whole step, and what was decided has arrived before it.
            self._confidences[step.entry].copy_(step.fresh)
        elif self._events[step.entry] is not None:
            self._events[step.entry].synchronize()
        now = perf_counter()
        admitted, accepted = self._decided[step.entry].numpy().copy()
        if self._curve is not None:
            rows = self._confidences[step.entry].numpy()
            for index, name in enumerate(self._names):
                self._known[name] = rows[index].copy()
            self._budget = self._decide(self._curve)
        return Seen(admitted, accepted, step.budget, step.tier, now, now - asked)

    def positions(self) -> np.ndarray:
        """Return int64 [R], where the device says that each request stands; waits."""
        return self._deck.state.slots.cursor[: self._requests].cpu().numpy().astype(np.int64)

    def _decide(self, curve: Curve) -> int:
        """Return the budget of the best estimated tokens a second, over every budget."""
        rows = np.stack([self._known[name] for name in self._names])
        ranked = -np.sort(-np.cumprod(rows, axis=1).ravel())
        tokens = self._requests + np.concatenate([[0.0], np.cumsum(ranked)])
        return int(np.argmax(tokens / curve.price(self._requests + np.arange(len(tokens)))))

    def _advance(self, cursor: torch.Tensor, accepted: torch.Tensor, kv: torch.Tensor) -> None:
        state = self._deck.state
        slots, count = state.slots, self._requests
        moved = cursor + accepted + 1
        begin, end = slots.begin[:count], slots.end[:count]
        slots.cursor[:count].copy_(torch.where(moved >= end, moved - end + begin, moved))
        length = kv + accepted + 1
        slots.kv_len[:count].copy_(torch.where(length > state.bound, state.context, length))


def _admit(confidences: torch.Tensor, budget: int) -> torch.Tensor:
    """Return int64 [R], how many drafts of each request are among the ``budget`` largest survivals."""
    requests, width = confidences.shape
    survival = confidences.cumprod(dim=1).flatten()
    best = survival.topk(budget, sorted=False).indices // width
    counts = torch.zeros(requests, dtype=torch.int64, device=confidences.device)
    return counts.scatter_add_(0, best, torch.ones_like(best))
