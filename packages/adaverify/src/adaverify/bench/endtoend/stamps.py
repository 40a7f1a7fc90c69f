"""Clock times that the device takes itself inside captured steps, around the model and around the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adaverify_contracts import GraphKey, WrongValueError
from adaverify_engine.ops.stamp.launch import require_clock, stamp
from adaverify_engine.recorded import Body, RecordedStep

if TYPE_CHECKING:
    from adaverify_runtime import Staged

LEAST = 1024
"""Times a place that are kept at least; more go by powers of two, as the kernel is compiled for each size."""
MODEL_BEGINS, MODEL_ENDS, STEP_BEGINS, STEP_ENDS = range(4)


class Stamps:
    """Times by place, one after the other, written by a kernel of one warp; on a CPU the host's clock.

    Args:
        device: run device.
        steps: how often a place is marked at most between ``clear`` and ``read``; as many times are kept.
        whole: also mark begin and end of whole steps; else of the model alone.

    Attributes:
        capacity: times a place that are kept, ``steps`` or more.

    Raises:
        CapabilityError: a device whose clock no kernel here reads.
    """

    def __init__(self, device: torch.device, steps: int, *, whole: bool = False) -> None:
        require_clock(device)
        self._whole = whole
        self.capacity = max(LEAST, 1 << (steps - 1).bit_length())
        self._times = torch.zeros((4, self.capacity), dtype=torch.int64, device=device)
        self._counts = torch.zeros(4, dtype=torch.int64, device=device)

    def mark(self, place: int) -> None:
        """Write the time at which the device comes here; one launch, capturable after one call outside."""
        stamp(self._times, self._counts, place)

    def clear(self) -> None:
        """Forget all times; enqueued."""
        self._counts.zero_()

    def read(self, place: int) -> np.ndarray:
        """Return float64 [n], microseconds, the times of a place since ``clear``; waits.

        Raises:
            WrongValueError: more times than are kept.
        """
        count = int(self._counts[place])
        if count > self.capacity:
            raise WrongValueError(
                "more steps were marked than are kept",
                arrived=count,
                allowed=f"at most {self.capacity}",
                remedy="clear before each round, and make room for all its steps",
            )
        return 1e-3 * self._times[place, :count].cpu().numpy().astype(np.float64)

    def body(self, body: Body) -> Body:
        """Return ``body`` between two marks."""
        return _Marked(body, self)

    def around(
        self, step: RecordedStep
    ) -> tuple[Callable[[Staged, GraphKey], Any], Callable[[GraphKey], None]]:
        """Return ``run`` and ``prologue`` of a step, between two marks where whole steps are marked."""
        if not self._whole:
            return step.run, step.prologue

        def prologue(key: GraphKey) -> None:
            self.mark(STEP_BEGINS)
            step.prologue(key)

        def run(staged: Staged, key: GraphKey) -> None:
            step.run(staged, key)
            self.mark(STEP_ENDS)

        return run, prologue


class _Marked:
    def __init__(self, body: Body, stamps: Stamps) -> None:
        self._body, self._stamps = body, stamps

    def decode(self, staged: Staged, kv_lens: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        """Decode between two marks."""
        self._stamps.mark(MODEL_BEGINS)
        found = self._body.decode(staged, kv_lens, block_table)
        self._stamps.mark(MODEL_ENDS)
        return found


def model_and_beside(stamps: Stamps, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 [n] each, microseconds: the model of each step, and what lay between it and the next.

    Args:
        stamps: of a round that has ended.
        first: steps to leave out at the beginning.
    """
    begins, ends = stamps.read(MODEL_BEGINS), stamps.read(MODEL_ENDS)
    model, beside = ends - begins, begins[1:] - ends[:-1]
    return model[first:-1], beside[first:]
