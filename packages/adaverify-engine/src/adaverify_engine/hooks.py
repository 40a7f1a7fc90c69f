"""What this distribution registers: the prompt-lookup drafter."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from adaverify_contracts import Drafter, DrafterDescriptor, Limits, Seen, hookimpl

if TYPE_CHECKING:
    import torch


def _ngram(limits: Limits, device: torch.device) -> Drafter:
    """Return the drafter that a captured step can hold where Triton serves, else the host's."""
    from adaverify_engine.drafters import LookupDrafter, NgramDrafter
    from adaverify_engine.ops.lookup.launch import MAX_DRAFT_TOKENS

    served = device.type == "cuda" and find_spec("triton") is not None
    if served and limits.draft_tokens <= MAX_DRAFT_TOKENS:
        return LookupDrafter(limits, device)
    return NgramDrafter(limits, device)


@hookimpl
def adaverify_register_drafters() -> Sequence[DrafterDescriptor]:
    """Register ``n-gram``: deterministic given the emitted tokens, scores from history."""
    return (DrafterDescriptor("n-gram", Seen.HISTORY, deterministic=True, factory=_ngram),)
