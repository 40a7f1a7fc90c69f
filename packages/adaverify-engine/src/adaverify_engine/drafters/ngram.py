"""Prompt lookup: propose what followed the longest earlier match of the last tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from adaverify_contracts import DraftBatch, Limits

LONGEST_KEY = 4
"""Longest indexed match; longer ones are found by walking back from its occurrences."""
_OCCURRENCES = 8
"""Occurrences kept for a key, newest last: more add time and hardly any agreement."""
_LONGEST_MATCH = 16
"""Matches are not walked back further; beyond it acceptance no longer rises."""
_MEMORY = 0.85
"""Weight that a request's acceptance statistic keeps from one step to the next."""


class _History:
    """Tokens of one request and an index from every n-gram to what followed it."""

    __slots__ = ("hits", "index", "proposed", "tokens", "trials")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.index: dict[tuple[int, ...], list[int]] = {}
        self.proposed: list[int] = []
        self.hits = 0.0
        self.trials = 0.0

    def append(self, new: Sequence[int]) -> None:
        """Add tokens; an n-gram is indexed once a token follows it, so a suffix never finds itself."""
        tokens, index = self.tokens, self.index
        for token in new:
            at = len(tokens)
            for size in range(1, min(LONGEST_KEY, at) + 1):
                places = index.setdefault(tuple(tokens[at - size : at]), [])
                places.append(at)
                if len(places) > _OCCURRENCES:
                    del places[0]
            tokens.append(token)

    def matches(self) -> list[tuple[int, int]]:
        """Return (continuation position, match length) of the longest indexed suffix, newest last."""
        tokens = self.tokens
        for size in range(min(LONGEST_KEY, len(tokens)), 0, -1):
            places = self.index.get(tuple(tokens[-size:]))
            if places:
                if size < LONGEST_KEY:
                    return [(place, size) for place in places]
                return [(place, self._walk(place)) for place in places]
        return []

    def _walk(self, place: int) -> int:
        tokens, length = self.tokens, LONGEST_KEY
        while (
            length < _LONGEST_MATCH and length < place and tokens[place - 1 - length] == tokens[-1 - length]
        ):
            length += 1
        return length

    def settle(self, emitted: Sequence[int]) -> None:
        """Compare the last proposal with what was emitted: a trial for each position up to a miss."""
        self.hits *= _MEMORY
        self.trials *= _MEMORY
        for guess, token in zip(self.proposed, emitted, strict=False):
            self.trials += 1.0
            if guess != token:
                break
            self.hits += 1.0
        self.proposed = []


class NgramDrafter:
    """Prompt lookup over prompt and output, with a score for every proposed token.

    Proposes the continuation that most of the best earlier occurrences share, copying through its own
    proposal
    where an occurrence overlaps the end (a period shorter than K repeats as often as needed). Drafts and
    scores are
    functions of the emitted tokens alone: deterministic, ``HISTORY``.

    Args:
        limits: ``draft_tokens`` is K, ``max_requests`` the number of slots.
        device: where tokens and scores are put.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._width = limits.draft_tokens
        self._device = device
        self._slots: dict[int, _History] = {}

    def start(self, slot: int, prompt: Sequence[int]) -> None:
        """Begin a request in ``slot``; whatever the slot held before is gone."""
        history = _History()
        history.append(prompt)
        self._slots[slot] = history

    def propose(self, slots: Sequence[int], room: np.ndarray) -> DraftBatch:
        """Return up to ``room[i]`` tokens for slot i; nothing is remembered but the proposal to compare."""
        tokens = np.full((len(slots), self._width), -1, dtype=np.int64)
        scores = np.zeros((len(slots), self._width), dtype=np.float32)
        scheduled = np.zeros(len(slots), dtype=np.int64)
        for row, slot in enumerate(slots):
            history = self._slots[slot]
            limit = min(self._width, int(room[row]))
            drafts, values = _continue(history, limit) if limit > 0 else ([], [])
            history.proposed = drafts
            count = len(drafts)
            if count:
                tokens[row, :count] = drafts
                scores[row, :count] = values
                scheduled[row] = count
        return DraftBatch(
            torch.from_numpy(tokens).to(self._device), scheduled, torch.from_numpy(scores).to(self._device)
        )

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append emitted tokens."""
        history = self._slots[slot]
        history.settle(tokens)
        history.append(tokens)

    def stop(self, slot: int) -> None:
        """Forget the request in ``slot``."""
        self._slots.pop(slot, None)


def _continue(history: _History, limit: int) -> tuple[list[int], list[float]]:
    """Return up to ``limit`` drafts and their scores."""
    alive = history.matches()
    if not alive:
        return [], []
    tokens, end = history.tokens, len(history.tokens)
    base = _request_term(history)
    drafts: list[int] = []
    scores: list[float] = []
    for k in range(limit):
        votes: dict[int, float] = {}
        nexts = []
        for place, length in alive:
            at = place + k
            token = tokens[at] if at < end else drafts[at - end]
            nexts.append(token)
            # The newest of equal votes wins: it is counted last and a little more.
            votes[token] = votes.get(token, 0.0) + length * length + 1e-3 * (at / end)
        chosen = max(votes, key=votes.__getitem__)
        share = votes[chosen] / sum(votes.values())
        kept = [match for match, token in zip(alive, nexts, strict=True) if token == chosen]
        longest = max(length for _, length in kept)
        scores.append(base + _evidence(longest + k, share, len(kept)))
        drafts.append(chosen)
        alive = kept
    return drafts, scores


def _request_term(history: _History) -> float:
    """Return the log-odds of this request's recent acceptance, shrunk to one half by two trials."""
    return 0.5 * math.log((history.hits + 1.0) / (history.trials - history.hits + 1.0))


def _evidence(length: int, share: float, support: int) -> float:
    """Return log-odds from match length, the vote share of the chosen token and its occurrences."""
    return 0.9 * math.log(length) + math.log((share * support + 0.5) / ((1.0 - share) * support + 0.5))
