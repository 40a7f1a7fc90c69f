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
    proposal where an occurrence overlaps the end (a period shorter than K repeats as often as needed).
    Drafts and scores are functions of the emitted tokens alone: deterministic, ``HISTORY``.

    A score is the log-odds of acceptance from the match length, the share and number of agreeing occurrences,
    and the request's recent acceptance. The coefficients are a logistic regression on 4268 reached positions
    of a 135M model's greedy text (16 prompts of code and chat, 384 tokens each): cross-validated AUC 0.906,
    against 0.735 from the position alone.

    Args:
        limits: ``draft_tokens`` is K, ``max_requests`` the number of slots.
        device: where tokens and scores are put.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._width = limits.draft_tokens
        self._device = device
        self._slots: dict[int, _History] = {}
        self._length_terms = [0.0, *(0.8 * math.log(n) for n in range(1, _LONGEST_MATCH + self._width + 1))]

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
            drafts, values = _continue(history, limit, self._length_terms) if limit > 0 else ([], [])
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


def _continue(history: _History, limit: int, length_terms: list[float]) -> tuple[list[int], list[float]]:
    """Return up to ``limit`` drafts and their scores; ``length_terms[n]`` scores a match of n tokens."""
    matches = history.matches()
    if not matches:
        return [], []
    paths = [_path(history.tokens, place, limit) for place, _ in matches]
    weights = [length * length for _, length in matches]
    base = _request_term(history)
    drafts: list[int] = []
    scores: list[float] = []
    alive = list(range(len(matches)))
    while len(drafts) < limit:
        longest = max(matches[index][1] for index in alive)
        path = paths[alive[-1]]
        if all(paths[index] == path for index in alive):
            support = base + _support_term(1.0, len(alive))
            terms = length_terms[longest + len(drafts) : longest + limit]
            return path, scores + [support + term for term in terms]
        k = len(drafts)
        votes: dict[int, int] = {}
        for index in reversed(alive):
            token = paths[index][k]
            votes[token] = votes.get(token, 0) + weights[index]
        # Newest first, so that the first of equal votes is the newest occurrence.
        chosen = max(votes, key=votes.__getitem__)
        share = votes[chosen] / sum(votes.values())
        alive = [index for index in alive if paths[index][k] == chosen]
        longest = max(matches[index][1] for index in alive)
        drafts.append(chosen)
        scores.append(base + _support_term(share, len(alive)) + length_terms[longest + k])
    return drafts, scores


def _path(tokens: list[int], place: int, limit: int) -> list[int]:
    """Return ``limit`` tokens from ``place`` on; past the end the copy repeats what it has written."""
    path = tokens[place : place + limit]
    period = len(path)
    if period < limit:
        path = (path * (limit // period + 1))[:limit]
    return path


def _request_term(history: _History) -> float:
    """Return the log-odds of this request's recent acceptance, shrunk to one half by two trials."""
    return 0.45 * math.log((history.hits + 1.0) / (history.trials - history.hits + 1.0))


def _support_term(share: float, support: int) -> float:
    """Return log-odds from the chosen token's share of the votes and the occurrences that gave them."""
    agree, against = share * support + 0.5, (1.0 - share) * support + 0.5
    return 1.1 * math.log(agree / against) + 0.5 * math.log(support)
