"""The device's own clock, read inside captured steps."""

from adaverify.bench.endtoend.stamping.stamps import (
    CAPACITY,
    MODEL_BEGINS,
    MODEL_ENDS,
    STEP_BEGINS,
    STEP_ENDS,
    Stamps,
    model_and_beside,
)

__all__ = [
    "CAPACITY",
    "MODEL_BEGINS",
    "MODEL_ENDS",
    "STEP_BEGINS",
    "STEP_ENDS",
    "Stamps",
    "model_and_beside",
]
