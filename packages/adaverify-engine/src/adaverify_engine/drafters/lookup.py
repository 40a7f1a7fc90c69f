"""Prompt lookup on the device: the same idea as ``n-gram``, inside the graph of a decode step."""

from __future__ import annotations

import torch

from adaverify_contracts import Limits
from adaverify_engine.drafters.slots import SlotDrafter
from adaverify_engine.ops.launchable import require_backend
from adaverify_engine.ops.lookup.launch import launch_for, lookup


class LookupDrafter(SlotDrafter):
    """Propose the continuation of the newest longest earlier match, for every request and always K tokens.

    Drafts and scores are functions of the emitted tokens alone: deterministic, ``HISTORY``. A request without
    any match repeats its last token, with a score that says so. Contract ``DeviceDrafter``.

    Args:
        limits: sizes; slots are numbered 0 .. max_requests - 1.
        device: run device.
        backend: ``torch`` or ``triton``; None takes Triton on an accelerator, torch on a CPU.

    Raises:
        LimitsError: K is above 15.
        LayoutError: an unknown backend.
    """

    def __init__(self, limits: Limits, device: torch.device | str, *, backend: str | None = None) -> None:
        device = torch.device(device)
        self.backend = backend or ("torch" if device.type == "cpu" else "triton")
        require_backend(self.backend)
        self._launch = launch_for(limits)
        super().__init__(limits, device)
        # A limit that no live request reaches: everyone gets K drafts, what runs past the output is cut.
        self._ends = torch.full(
            (limits.max_requests,), limits.max_kv_len + 1, dtype=torch.int32, device=device
        )

    def draft(self, row_slot: torch.Tensor) -> None:
        """Write drafts, scores and scheduled of the slots in int32 [R], -1 for padding; launches only."""
        state = self._state
        lookup(
            state.history,
            state.length,
            self._ends,
            row_slot,
            state.hits,
            state.trials,
            state.drafts,
            state.scores,
            state.scheduled,
            launch=self._launch,
            backend=self.backend,
        )
