"""What this distribution registers: the prompt-lookup drafter."""

from collections.abc import Sequence

from adaverify_contracts import DrafterDescriptor, Seen, hookimpl
from adaverify_engine.drafters import NgramDrafter


@hookimpl
def adaverify_register_drafters() -> Sequence[DrafterDescriptor]:
    """Register ``n-gram``: deterministic given the emitted tokens, scores from history."""
    return (DrafterDescriptor("n-gram", Seen.HISTORY, deterministic=True, factory=NgramDrafter),)
