"""Isotonic regression: the nearest never-falling curve to noisy measurements."""

from __future__ import annotations

import numpy as np


def isotonic(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the never-falling float64 [n] nearest to ``values`` in weighted squares (maths section 6, M10).

    Pool adjacent violators. If every value lies between two never-falling bounds, so does the result, which
    is what keeps the online refresh within its bounds.
    """
    curve = np.asarray(values, dtype=np.float64)
    if curve.size < 2 or np.count_nonzero(curve[1:] >= curve[:-1]) == curve.size - 1:
        return curve.copy()
    shares = np.ones(curve.size) if weights is None else np.asarray(weights, dtype=np.float64)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(curve.tolist(), shares.tolist(), strict=True):
        mean, mass, length = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, before_mass, before_length = blocks.pop()
            mean = (before * before_mass + mean * mass) / (before_mass + mass)
            mass += before_mass
            length += before_length
        blocks.append((mean, mass, length))
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])
