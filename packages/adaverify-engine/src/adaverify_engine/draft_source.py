"""A drafter whose failures cost drafts and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from adaverify_contracts import DeviceDrafter, DraftBatch, Drafter, EngineError
from adaverify_contracts.describing import describe, kind_of
from adaverify_engine.drafters.slots import SlotDrafter
from adaverify_engine.options import EngineOptions

FAILURES = 3
"""After this many failures a drafter is not asked again: what it knows is not to be trusted."""

_IDS = (torch.int64, torch.int32)

_log = logging.getLogger(__name__)


class DraftSource:
    """Asks a drafter and contains what it does wrong.

    A drafter that raises, or proposes what no step can verify, leaves its step without drafts: plain
    decoding, whose tokens are the same. A request whose start or tokens it did not take goes on without
    drafts. Each failure is counted by name; after ``FAILURES`` the drafter is disabled for the rest of the
    run. An id outside the vocabulary costs its row and is counted, no failure. ``KeyboardInterrupt`` passes.

    Args:
        drafter: proposes.
        options: of the engine.
        vocabulary: number of token ids; a draft outside is masked and never used as an index.
    """

    def __init__(self, drafter: Drafter, options: EngineOptions, vocabulary: int) -> None:
        self.drafter = drafter
        # Asked once: a protocol's isinstance walks its members, 15 us a call, and calls are per request.
        self._on_device = isinstance(drafter, DeviceDrafter)
        # Of a drafter of ours: the calls of which it overrides none, so that one call tells of all rows.
        own = isinstance(drafter, SlotDrafter)
        calls = ("start", "extend"), ("extend",), ("advanced",), ("stop",)
        self._by_rows = {
            used[0]
            for used in calls
            if own and all(getattr(type(drafter), call) is getattr(SlotDrafter, call) for call in used)
        }
        self.failures = 0
        self._width = options.draft_tokens
        self._device = options.device
        self._vocabulary = vocabulary
        self._faults: list[str] = []
        self._proposed: tuple[torch.Tensor, np.ndarray] | None = None
        self._said = False
        self._lost: set[int] = set()

    @property
    def disabled(self) -> bool:
        """Whether the drafter failed too often to be asked again."""
        return self.failures >= FAILURES

    def take_faults(self) -> list[str]:
        """Return and forget the names of what went wrong since the last call.

        Reads the last step's drafts, on an accelerator too: for the end of a step, off the decode path.
        """
        if self._proposed is not None:
            self._judge(*self._proposed)
            self._proposed = None
        faults, self._faults = self._faults, []
        return faults

    def start_rows(self, slots: np.ndarray, prompts: Sequence[Sequence[int]]) -> None:
        """Begin a request in each of ``slots`` int64 [R]."""
        self._lost.difference_update(slots.tolist())
        if self._of_rows("start") and self._tell_rows("start_rows", slots, prompts):
            return
        for slot, prompt in zip(slots.tolist(), prompts, strict=True):
            self._tell(self.drafter.start, slot, prompt)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append emitted tokens."""
        self._tell(self.drafter.extend, slot, tokens)

    def stop_rows(self, slots: np.ndarray) -> None:
        """End the requests in ``slots`` int64 [R]."""
        if not (self._of_rows("stop") and self._tell_rows("stop_rows", slots)):
            for slot in slots.tolist():
                self._tell(self.drafter.stop, slot)
        self._lost.difference_update(slots.tolist())

    def extend_rows(self, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> None:
        """Append the first ``counts[r]`` of ``tokens`` [R, K + 1] to each of ``slots`` int64 [R]."""
        if self._of_rows("extend") and self._tell_rows("extend_rows", slots, tokens, counts):
            return
        for slot, row, count in zip(slots.tolist(), tokens.tolist(), counts.tolist(), strict=True):
            self.extend(slot, row[:count])

    def serves(self, slots: np.ndarray) -> bool:
        """Return whether the drafter may be asked for all of ``slots``: it has failed in none of them."""
        return not self.disabled and (not self._lost or self._lost.isdisjoint(slots.tolist()))

    def advanced_rows(self, slots: np.ndarray, counts: np.ndarray) -> None:
        """Tell a device drafter that the device appended ``counts[r]`` tokens to each of ``slots``."""
        if not self._on_device:
            return
        if self._of_rows("advanced") and self._tell_rows("advanced_rows", slots, counts):
            return
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            self._tell(self.drafter.advanced, slot, count)  # type: ignore[attr-defined]

    def nothing(self, rows: int) -> DraftBatch:
        """Return the drafts of a step that has none."""
        return DraftBatch(
            torch.full((rows, self._width), -1, dtype=torch.int64, device=self._device),
            np.zeros(rows, dtype=np.int64),
            torch.zeros((rows, self._width), device=self._device),
        )

    def propose(self, slots: Sequence[int], room: np.ndarray) -> DraftBatch:
        """Return drafts for ``slots``, at most ``room[i]`` for request i; none when the drafter failed."""
        if self.disabled:
            self._faults.append("drafter-disabled")
            return self.nothing(len(slots))
        rows = list(range(len(slots)))
        if self._lost:
            rows = [row for row, slot in enumerate(slots) if slot not in self._lost]
        try:
            batch = self.drafter.propose([slots[row] for row in rows], room[rows])
            self._check(batch, room[rows])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a drafter's failure costs drafts, never a request
            self._failed(error, "propose")
            return self.nothing(len(slots))
        self._proposed = batch.tokens, batch.scheduled
        known = (batch.tokens >= 0) & (batch.tokens < self._vocabulary)
        tokens = torch.where(known, batch.tokens, -1)
        batch = DraftBatch(tokens, batch.scheduled, batch.scores, batch.probabilities)
        return batch if len(rows) == len(slots) else self._spread(batch, rows, len(slots))

    def _judge(self, tokens: torch.Tensor, scheduled: np.ndarray) -> None:
        """Count a step with scheduled ids that are none: masked already, they cost rows and no token."""
        ids = tokens.cpu().numpy()
        real = np.arange(self._width) < scheduled[:, None]
        strange = ids[real & ((ids < 0) | (ids >= self._vocabulary))]
        if not strange.size:
            return
        self._faults.append("drafter-nonsense")
        if not self._said:
            self._said = True
            _log.warning(
                "the drafter scheduled ids outside 0 .. %d, such as %d: they are verified as no token",
                self._vocabulary - 1,
                strange[0],
            )

    def _spread(self, batch: DraftBatch, rows: list[int], requests: int) -> DraftBatch:
        """Return ``batch`` of the requests in ``rows`` as one of all requests."""
        whole, at, law = self.nothing(requests), torch.tensor(rows, dtype=torch.int64), batch.probabilities
        at = at.to(self._device)
        whole.scheduled[rows] = batch.scheduled
        laws = None if law is None else law.new_zeros((requests, *law.shape[1:])).index_copy_(0, at, law)
        tokens, scores = (
            into.index_copy_(0, at, part.to(into.dtype))
            for into, part in ((whole.tokens, batch.tokens), (whole.scores, batch.scores))
        )
        return DraftBatch(tokens, whole.scheduled, scores, laws)

    def _of_rows(self, name: str) -> bool:
        """Return whether the drafter takes all rows at once: one of ours, which overrides no call of it."""
        return name in self._by_rows and name not in vars(self.drafter)

    def _tell_rows(self, name: str, slots: np.ndarray, *news: object) -> bool:
        """Tell the drafter of all rows at once; False where rows that it has lost must be left out."""
        if self.disabled:
            return True
        if self._lost and not self._lost.isdisjoint(slots.tolist()):
            return False
        try:
            getattr(self.drafter, name)(slots, *news)
        except KeyboardInterrupt:
            self._lost.update(slots.tolist())
            raise
        except BaseException as error:  # noqa: BLE001 - as in propose
            self._lost.update(slots.tolist())
            self._failed(error, name)
        return True

    def _tell(self, call: Callable[..., None], slot: int, *news: Sequence[int] | int) -> None:
        if self.disabled or slot in self._lost:
            return
        self._lost.add(slot)
        try:
            call(slot, *news)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - as in propose
            self._failed(error, getattr(call, "__name__", "a call"))
        else:
            self._lost.discard(slot)

    def _failed(self, error: BaseException, where: str) -> None:
        self.failures += 1
        self._faults.append("drafter-nonsense" if isinstance(error, EngineError) else "drafter-raised")
        then = "it is disabled" if self.disabled else "the step has no drafts of it"
        _log.warning("the drafter failed in %s, %s: %s", where, then, describe(error))

    def _check(self, batch: DraftBatch, room: np.ndarray) -> None:
        if not isinstance(batch, DraftBatch):
            raise EngineError(
                "the drafter returned no DraftBatch",
                arrived=kind_of(batch),
                allowed="DraftBatch",
                remedy="return one from Drafter.propose",
            )
        shape = (len(room), self._width)
        if tuple(batch.tokens.shape) != shape:
            raise EngineError(
                "the drafter returned drafts of another shape",
                arrived=tuple(batch.tokens.shape),
                allowed=str(shape),
                remedy="draft one width K for all requests and mask with -1",
            )
        scheduled, scores = batch.scheduled, batch.scores
        # What ``publish`` and ``plan`` would refuse: there it would cost the step and not its drafts.
        whole = isinstance(scheduled, np.ndarray) and scheduled.dtype.kind == "i" and scheduled.ndim == 1
        if not whole or scores.dtype != torch.float32 or batch.tokens.dtype not in _IDS:
            raise EngineError(
                "the drafter returned ids, counts or scores of another type",
                arrived={
                    "tokens": str(batch.tokens.dtype),
                    "scheduled": str(getattr(scheduled, "dtype", None)),
                    "scores": str(scores.dtype),
                },
                allowed="tokens torch.int64, scheduled int64 in NumPy, scores torch.float32",
                remedy="build the DraftBatch as its docstring says",
            )
        law = batch.probabilities
        if law is not None and (tuple(law.shape) != (*shape, self._vocabulary) or law.dtype != torch.float32):
            raise EngineError(
                "the drafter returned a law of another shape or type",
                arrived=(tuple(law.shape), str(law.dtype)),
                allowed=f"{(*shape, self._vocabulary)}, torch.float32",
                remedy="return the law that each token was drawn from, or None",
            )
        if (batch.scheduled > room).any() or (batch.scheduled < 0).any():
            raise EngineError(
                "the drafter returned more tokens than there was room for, or less than none",
                arrived=batch.scheduled.tolist(),
                allowed=f"0 .. {room.tolist()}",
                remedy="honour `room` in Drafter.propose",
            )
