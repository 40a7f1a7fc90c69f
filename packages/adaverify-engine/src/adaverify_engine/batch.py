"""The decode requests of a step, with what is asked of each in every step gathered once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaverify_engine.request import Request
from adaverify_engine.running import Running


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Decode requests by rising slot; the same object for as long as they are the same.

    Their facts are kept beside them: a step is learnt from when some of them may have left their slots.

    Attributes:
        requests: R.
        slots: int64 [R]; generations: int64 [R].
        teaches: bool [R]; sampled: bool [R]; sensitive: bool [R]; keys: int64 [R].
        misses: why no captured step serves them, as it is counted; empty where nothing stands against it.
        any_sensitive: whether any request is trim-sensitive.
    """

    requests: tuple[Request, ...]
    slots: np.ndarray
    generations: np.ndarray
    teaches: np.ndarray
    sampled: np.ndarray
    sensitive: np.ndarray
    keys: np.ndarray
    misses: str
    any_sensitive: bool

    @classmethod
    def of(cls, running: Running, slots: np.ndarray, requests: tuple[Request, ...]) -> Batch:
        """Return the batch of the running ``requests`` in ``slots`` int64 [R]."""
        misses = ""
        if running.penalised[slots].any():
            misses = "replay-missed-penalties"
        if running.logprobs[slots].any():
            misses = "replay-missed-logprobs"
        sensitive = running.sensitive[slots]
        return cls(
            requests,
            slots,
            running.generations[slots],
            running.teaches[slots],
            running.sampled[slots],
            sensitive,
            running.keys[slots],
            misses,
            bool(sensitive.any()),
        )

    def __len__(self) -> int:
        """Return R."""
        return len(self.requests)
