"""Prompt lookup whose state lives on the device with the requests'."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits
from adaverify_engine.ops.launchable import require_backend
from adaverify_engine.ops.lookup.launch import launch_for, lookup


class DeviceLookup:
    """Drafts from each request's own history on the device; holds nothing but launch parameters.

    Drafts and scores are functions of the emitted tokens alone: deterministic, ``HISTORY``.

    Args:
        limits: ``draft_tokens`` is K, ``max_model_len`` bounds the histories.
        device: of the request state; Triton on an accelerator, torch on a CPU.
        backend: ``torch`` or ``triton`` instead of that choice.

    Raises:
        LimitsError: K is above 15.
        LayoutError: an unknown backend.
    """

    def __init__(self, limits: Limits, device: torch.device | str, *, backend: str | None = None) -> None:
        self.backend = backend or ("torch" if torch.device(device).type == "cpu" else "triton")
        require_backend(self.backend)
        self.launch = launch_for(limits)

    def propose(
        self,
        history: torch.Tensor,
        length: torch.Tensor,
        limit: torch.Tensor,
        row_slot: torch.Tensor,
        hits: torch.Tensor,
        trials: torch.Tensor,
        drafts: torch.Tensor,
        scores: torch.Tensor,
        scheduled: torch.Tensor,
    ) -> None:
        """Write drafts, scores and scheduled of the slots in ``row_slot``; arguments as ``ops.lookup``."""
        lookup(
            history,
            length,
            limit,
            row_slot,
            hits,
            trials,
            drafts,
            scores,
            scheduled,
            launch=self.launch,
            backend=self.backend,
        )
