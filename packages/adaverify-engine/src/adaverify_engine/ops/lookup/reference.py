"""Reference of the lookup: every earlier end of the history's suffix, by plain search."""

from __future__ import annotations

import math

import torch

LONGEST_MATCH = 16
"""Matches are not followed further back; beyond it acceptance no longer rises (drafters.ngram)."""
OCCURRENCES = 8
"""Support that more occurrences do not raise (drafters.ngram)."""


def match_length(tokens: list[int], place: int) -> int:
    """Return how many tokens before ``place`` equal the last tokens, at most 16."""
    length, longest = 0, min(LONGEST_MATCH, place)
    while length < longest and tokens[place - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def continuation(tokens: list[int], place: int, count: int) -> list[int]:
    """Return ``count`` tokens from ``place`` on; past the end the copy repeats what it has written."""
    return [tokens[place + k % (len(tokens) - place)] for k in range(count)]


def propose_reference(
    tokens: list[int], count: int, hits: float, trials: float
) -> tuple[list[int], list[float]]:
    """Return ``count`` drafts and scores for one history.

    The score of position k is the sum of 0.8 log(n + k) for a match of n tokens, 0.45 log((hits + 1) /
    (misses + 1)) of the request, and 1.1 log((share s + 1/2) / ((1 - share) s + 1/2)) + 0.5 log(s), where
    s <= 8 places with a match of n tokens agree with the drafts up to k, a share of those that agree up to
    k - 1 (the regression of drafters.ngram).
    """
    matches = [match_length(tokens, place) for place in range(len(tokens))]
    longest = max(matches, default=0)
    if not longest:
        last = tokens[-1] if tokens else 0
        return [last] * count, [-4.0 - k / 4 for k in range(count)]
    places = [place for place, length in enumerate(matches) if length == longest]
    drafts = continuation(tokens, places[-1], count)
    base = 0.45 * math.log((hits + 1.0) / (trials - hits + 1.0))
    scores, alive = [], len(places)
    for k in range(count):
        before, alive = alive, sum(continuation(tokens, p, k + 1) == drafts[: k + 1] for p in places)
        support, share = min(alive, OCCURRENCES), alive / before
        odds = (share * support + 0.5) / ((1.0 - share) * support + 0.5)
        scores.append(base + 1.1 * math.log(odds) + 0.5 * math.log(support) + 0.8 * math.log(longest + k))
    return drafts, scores


def lookup_reference(
    history: torch.Tensor,
    length: torch.Tensor,
    limit: torch.Tensor,
    row_slot: torch.Tensor,
    hits: torch.Tensor,
    trials: torch.Tensor,
    drafts: torch.Tensor,
    scores: torch.Tensor,
    scheduled: torch.Tensor,
) -> None:
    """Write drafts, scores and scheduled of the slots named; arguments as ``lookup`` documents them."""
    width = drafts.shape[1]
    for slot in row_slot.tolist():
        if slot < 0:
            continue
        size = int(length[slot])
        count = min(width, max(int(limit[slot]) - size - 1, 0))
        tokens, values = propose_reference(
            history[slot, :size].tolist(), count, float(hits[slot]), float(trials[slot])
        )
        drafts[slot] = -1
        scores[slot] = 0.0
        drafts[slot, :count] = torch.tensor(tokens, dtype=torch.int32, device=drafts.device)
        scores[slot, :count] = torch.tensor(values, dtype=torch.float32, device=scores.device)
        scheduled[slot] = count
