"""What this plugin registers; the function only returns descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import Limits, Seen, Signal, SignalDescriptor, hookimpl

if TYPE_CHECKING:
    import torch


def make_signal(limits: Limits, device: torch.device) -> Signal:
    """Make the signal once; this may allocate, ``confidences`` may not."""
    from adaverify_sample_signal.signal import SampleSignal

    return SampleSignal(limits, device)


@hookimpl
def adaverify_register_signals() -> Sequence[SignalDescriptor]:
    """Return the signal with what it has seen beside the drafter's score."""
    return (
        SignalDescriptor(
            name="sample-signal",
            seen=Seen.HISTORY,
            reads_scores=True,
            factory=make_signal,
        ),
    )
