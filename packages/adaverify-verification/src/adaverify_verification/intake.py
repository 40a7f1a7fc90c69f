"""What ``publish`` takes: checked on attributes and host values, before anything of the step is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_verification.parts import is_step


class Intake:
    """Checks one publication, cheaply: a batch whose slots have not changed is compared as bytes.

    Args:
        limits: largest shapes; slots are numbered 0 .. max_requests - 1.
        device: where scores must be.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._limits = limits
        self._device = device
        # Slots of the last batch that passed: decode batches repeat, and comparing takes 0.2 us where looking
        # for duplicates among 256 takes 4.
        self._passed = b""

    def check(self, step: object, slots: np.ndarray, generations: np.ndarray, scores: torch.Tensor) -> None:
        """Require a step number, one distinct slot and one generation a request, and scores [R, K].

        Raises:
            LayoutError: names what arrived and what is allowed; no device value is read.
        """
        require_step(step)
        _require_integers("slots", slots)
        _require_integers("generations", generations)
        self._check_scores(scores, len(slots), len(generations))
        listed = slots.tobytes()
        if listed != self._passed:
            self._check_slots(slots)
            self._passed = listed

    def _check_scores(self, scores: Any, rows: int, generations: int) -> None:
        shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        width, most = self._limits.draft_tokens, self._limits.max_requests
        if shape != (rows, width) or generations != rows or rows > most:
            raise LayoutError(
                "published scores do not fit the limits",
                arrived={"scores": shape, "slots": rows, "generations": generations},
                allowed=f"a tensor [R, {width}] with R <= {most}, one slot and generation a row",
                remedy="draft one width K for all requests and mask what was not drafted",
            )
        if scores.dtype != torch.float32 or scores.device != self._device:
            raise LayoutError(
                "published scores have the wrong dtype or device",
                arrived=f"{scores.dtype} on {scores.device}",
                allowed=f"torch.float32 on {self._device}",
                remedy="keep scores in float32 on the run device; a copy here would be on the decode path",
            )

    def _check_slots(self, slots: np.ndarray) -> None:
        if not len(slots):
            return
        lowest, highest, most = int(slots.min()), int(slots.max()), self._limits.max_requests
        if lowest < 0 or highest >= most:
            raise LayoutError(
                "a published slot is out of range",
                arrived=lowest if lowest < 0 else highest,
                allowed=f"0 .. {most - 1}, as Limits.max_requests says",
                remedy="number the slots of running requests from 0, and publish no padding",
            )
        if int(np.bincount(slots).max()) > 1:
            listed = slots.tolist()
            raise LayoutError(
                "a slot is published twice",
                arrived=sorted({slot for slot in listed if listed.count(slot) > 1}),
                allowed="each slot once",
                remedy="publish one row a request",
            )


def require_step(step: object) -> None:
    """Require a step number.

    Raises:
        LayoutError: it is none.
    """
    if not is_step(step):
        raise LayoutError(
            "the published step is no step number",
            arrived=step,
            allowed="an int in 0 .. 2**63 - 1",
            remedy="pass the step that verifies these drafts",
        )


def _require_integers(name: str, values: Any) -> None:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "i" or values.ndim != 1:
        found = (str(values.dtype), values.shape) if isinstance(values, np.ndarray) else type(values).__name__
        raise LayoutError(
            f"published {name} are not the array they should be",
            arrived=found,
            allowed="a one-dimensional NumPy array of signed integers",
            remedy=f"keep {name} in a NumPy array of int64",
        )
