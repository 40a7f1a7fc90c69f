"""A block drafter with a confidence head for SmolLM2-135M-Instruct."""

from adaverify_smollm2.drafter.config import REGIMES, SMOLLM2_BLOCK, DrafterConfig
from adaverify_smollm2.drafter.layer import CrossAttend
from adaverify_smollm2.drafter.model import BlockDrafterModel
from adaverify_smollm2.drafter.weights import load_block_drafter, read_card, weights_present

__all__ = [
    "REGIMES",
    "SMOLLM2_BLOCK",
    "BlockDrafterModel",
    "CrossAttend",
    "DrafterConfig",
    "load_block_drafter",
    "read_card",
    "weights_present",
]
