"""Survivals as 16-bit integers, so that one total order holds on every rank and on both host and device.

Each function takes a NumPy array or a torch tensor and returns the same kind; the two agree bit for bit, and
the assignment kernel repeats the same arithmetic. All work is float32: a double or a tree-shaped product
would round differently and two ranks could disagree about the last admitted draft token.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

SCORE_BITS = 16
SCORE_MAX = (1 << SCORE_BITS) - 1
# Arrays without a dimension: NumPy makes one of a number in every call, which takes a third of it.
_SCALE, _HALF = np.array(SCORE_MAX, dtype=np.float32), np.array(0.5, dtype=np.float32)

# So many requests are multiplied position by position.
MANY = 128

Array = TypeVar("Array", np.ndarray, torch.Tensor)


def sanitise(confidences: Array) -> Array:
    """Clamp confidences to [0, 1] and turn NaN into 0.

    Args:
        confidences: float32 of any shape and device; infinities clamp, -0.0 becomes 0.0.

    Returns:
        float32 of the same shape, a new array.
    """
    if isinstance(confidences, np.ndarray):
        # The comparison is false for NaN, so one branch serves NaN, negatives and -0.0.
        return np.where(confidences > 0, np.minimum(confidences, np.float32(1)), np.float32(0))
    one, zero = confidences.new_ones(()), confidences.new_zeros(())
    return torch.where(confidences > 0, torch.minimum(confidences, one), zero)


def survival(confidences: Array) -> Array:
    """Multiply sanitised confidences left to right in float32 (maths section 2).

    Args:
        confidences: float32 [R, K], any values; they are sanitised first.

    Returns:
        float32 [R, K]; never rises along K, because every factor is at most 1 and rounding is monotone.
    """
    clean = sanitise(confidences)
    if isinstance(clean, np.ndarray):
        return products(clean)
    # Not torch.cumprod: on a CPU it accumulates in double, on a GPU as a tree.
    for k in range(1, clean.shape[1]):
        clean[:, k] *= clean[:, k - 1]
    return clean


def products(clean: np.ndarray) -> np.ndarray:
    """Return what ``survival`` returns for confidences float32 [R, K] in 0 .. 1, a new array."""
    # One call; like the loop it multiplies left to right and rounds each product to float32.
    return np.multiply.accumulate(clean, axis=1) if clean.size else clean.copy()


def quantise(survivals: Array) -> Array:
    """Round survivals to ``floor(s x 65535 + 0.5)``, product and sum each rounded to float32.

    Args:
        survivals: float32 in [0, 1], any shape.

    Returns:
        int32 of the same shape in 0 .. 65535; monotone, so equal integers fall to the tie rule (maths M1).
    """
    if isinstance(survivals, np.ndarray):
        scaled: np.ndarray = survivals * _SCALE
        scaled += _HALF
        # Nothing is negative, so the cast is the floor.
        return scaled.astype(np.int32)
    return torch.floor(survivals * SCORE_MAX + 0.5).to(torch.int32)


def clean_scores(confidences: np.ndarray) -> np.ndarray:
    """Return ``scores`` of confidences float32 [R, K] that all lie in 0 .. 1, uint16 in any memory order."""
    if not confidences.size:
        return np.zeros(confidences.shape, dtype=np.uint16)
    if len(confidences) < MANY:
        return _rounded(np.multiply.accumulate(confidences, 1))
    # NumPy accumulates one request after the other; of many, one position after the other takes less time.
    by_position = confidences.T.copy()
    before = by_position[0]
    for position in by_position[1:]:
        np.multiply(before, position, position)
        before = position
    return _rounded(by_position).T


def _rounded(survivals: np.ndarray) -> np.ndarray:
    """Return what ``quantise`` returns, as uint16; ``survivals`` are overwritten."""
    survivals *= _SCALE
    survivals += _HALF
    return survivals.astype(np.uint16)


def scores(confidences: Array) -> Array:
    """Return the quantised survivals int32 [R, K] of confidences float32 [R, K]."""
    return quantise(survival(confidences))
