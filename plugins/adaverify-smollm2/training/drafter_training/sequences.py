"""What the target wrote, and where a draft may begin in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rectangles of ids with the span the target wrote.

    Attributes:
        tokens: uint16 [N, T].
        first: int64 [N], position of the first token written, that is, the prompt's length.
        last: int64 [N], position of the last one: the stop token, or the end of the rectangle.
        greedy: bool [N], False for rows drawn at a temperature.
        prompt: int64 [N], index of the prompt in its ``PromptSet``.
    """

    tokens: np.ndarray
    first: np.ndarray
    last: np.ndarray
    greedy: np.ndarray
    prompt: np.ndarray

    @classmethod
    def cut(
        cls, tokens: np.ndarray, first: np.ndarray, greedy: np.ndarray, prompt: np.ndarray, stops: np.ndarray
    ) -> Sequences:
        """Find where each row of int [N, T] stopped."""
        width = tokens.shape[1]
        stopped = np.isin(tokens, stops) & (np.arange(width) >= first[:, None])
        last = np.where(stopped.any(1), stopped.argmax(1), width - 1)
        return cls(tokens.astype(np.uint16), first, last.astype(np.int64), greedy, prompt)

    def long_enough(self, written: int = 4) -> Sequences:
        """Return the rows in which at least ``written`` tokens were written."""
        return self.take(np.flatnonzero(self.last - self.first + 1 >= written))

    def take(self, rows: np.ndarray) -> Sequences:
        """Return some rows."""
        return Sequences(*(getattr(self, name)[rows] for name in self.__slots__))

    @classmethod
    def join(cls, parts: list[Sequences]) -> Sequences:
        """Return all rows of ``parts``."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def save(self, path: Path) -> None:
        """Write uncompressed: ids of a language model hardly shrink, and the disk is fast."""
        np.savez(path, **{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def load(cls, path: Path) -> Sequences:
        """Read what ``save`` wrote."""
        with np.load(path) as stored:
            return cls(**{name: stored[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Anchors:
    """A batch of sequences with the positions drafts begin at.

    Attributes:
        tokens: int64 [B, T].
        at: int64 [B, A], position of the newest token; the cache holds the ``at`` positions before it.
        valid: bool [B, A, K], whether the target wrote a token there.
        greedy: bool [B].
    """

    tokens: torch.Tensor
    at: torch.Tensor
    valid: torch.Tensor
    greedy: torch.Tensor

    def index(self) -> torch.Tensor:
        """Return int64 [B, A, K], the position of each drafted token, held inside the rectangle."""
        block = self.valid.shape[-1]
        ahead = self.at.unsqueeze(-1) + torch.arange(1, block + 1, device=self.at.device)
        return ahead.clamp(max=self.tokens.shape[1] - 1)


class Feed:
    """Batches in a seeded order, one permutation of the rows after another, on one device.

    Batch ``step`` is a function of seed and step alone, so a run that resumes reads what an uninterrupted one
    would have read.
    """

    def __init__(self, sequences: Sequences, batch: int, anchors: int, block: int, seed: int) -> None:
        self._sequences = sequences
        self._batch, self._anchors, self._block, self._seed = batch, anchors, block, seed
        self._rows = len(sequences.first)
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def batch(self, step: int, device: torch.device) -> Anchors:
        """Return batch number ``step``."""
        rows = self._pick(step)
        part = self._sequences.take(rows)
        chance = np.random.default_rng((self._seed, 1, step))
        # The newest token has been written, and at least one more follows it.
        span = part.last - part.first
        at = part.first[:, None] + np.floor(chance.random((len(rows), self._anchors)) * span[:, None])
        at = at.astype(np.int64)
        valid = at[..., None] + np.arange(1, self._block + 1) <= part.last[:, None, None]
        tensors = (part.tokens.astype(np.int64), at, valid, part.greedy)
        return Anchors(*(torch.from_numpy(array).to(device, non_blocking=True) for array in tensors))

    def epochs(self, step: int) -> float:
        """Return how often every row has been read after ``step`` batches."""
        return step * self._batch / self._rows

    def _pick(self, step: int) -> np.ndarray:
        places = np.arange(step * self._batch, (step + 1) * self._batch)
        return np.array([self._permutation(place // self._rows)[place % self._rows] for place in places])

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            order = np.random.default_rng((self._seed, 0, epoch)).permutation(self._rows)
            self._order = (int(epoch), order)
        return self._order[1]
