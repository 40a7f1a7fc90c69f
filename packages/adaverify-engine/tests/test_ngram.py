"""Prompt lookup: what it proposes, what it scores, what it remembers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import DrafterDescriptor, Limits, Seen
from adaverify_engine.drafters import NgramDrafter
from adaverify_engine.hooks import adaverify_register_drafters


def drafter(width=4, requests=4):
    return NgramDrafter(Limits(requests, width, 256, 16), torch.device("cpu"))


def propose(source, slot=0, room=99):
    batch = source.propose([slot], np.array([room]))
    return batch.tokens[0, : batch.scheduled[0]].tolist()


def test_registered_as_deterministic_history():
    """The hook returns one descriptor and does no work; any trimming rule is lossless with it."""
    (descriptor,) = adaverify_register_drafters()
    assert isinstance(descriptor, DrafterDescriptor)
    assert (descriptor.name, descriptor.seen, descriptor.deterministic) == ("n-gram", Seen.HISTORY, True)


def test_longest_match_wins():
    """The continuation of the longest match is proposed, not of the newest short one."""
    source = drafter()
    source.start(0, [1, 2, 3, 10, 11, 12, 13, 9, 3, 20, 21, 22, 8, 1, 2, 3])
    assert propose(source) == [10, 11, 12, 13]


def test_majority_wins_among_equal_matches_and_the_newest_breaks_ties():
    """Two occurrences outvote a newer one; one against one takes the newer."""
    source = drafter(width=1)
    source.start(0, [5, 7, 0, 5, 7, 1, 5, 8, 2, 5])
    assert propose(source) == [7]
    source.start(0, [5, 7, 0, 5, 8, 2, 5])
    assert propose(source) == [8]


def test_short_periods_are_copied_past_the_end():
    """A match that overlaps the end continues through the proposal itself."""
    source = drafter(width=7)
    source.start(0, [9, 1, 2, 1, 2])
    assert propose(source) == [1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize("prompt", [[], [1], [1, 2, 3]])
def test_nothing_seen_before_proposes_nothing(prompt):
    """Without a match there is no draft: tokens -1, scheduled 0, scores 0."""
    source = drafter()
    source.start(0, prompt)
    batch = source.propose([0], np.array([4]))
    assert batch.scheduled.tolist() == [0]
    assert (batch.tokens == -1).all()
    assert (batch.scores == 0).all()


def test_room_is_honoured():
    """Room 0 and room below K cut the proposal."""
    source = drafter()
    source.start(0, [1, 2, 1, 2, 1])
    assert propose(source, room=0) == []
    assert len(propose(source, room=3)) == 3


def test_slots_are_apart_and_restart_forgets():
    """Two slots do not see each other, and a new request does not see the slot's last one."""
    source = drafter()
    source.start(0, [1, 2, 3, 1, 2])
    source.start(1, [1, 2, 9, 1, 2])
    assert propose(source, 0)[0] == 3
    assert propose(source, 1)[0] == 9
    source.stop(0)
    source.start(0, [1, 2])
    assert propose(source, 0) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_drafts_depend_on_emitted_tokens_alone(tokens, cut):
    """Prompt or output, in one piece or many, with proposals between or not: the same drafts."""
    whole, pieces = drafter(), drafter()
    whole.start(0, tokens)
    pieces.start(0, tokens[:cut])
    for token in tokens[cut:]:
        pieces.propose([0], np.array([4]))
        pieces.extend(0, [token])
    assert propose(whole) == propose(pieces)


def accepted_by_score(tokens, width=4):
    """Return (scores, hits) of reached positions while a text is replayed one token at a time."""
    source = drafter(width)
    source.start(0, tokens[:8])
    pairs = []
    for at in range(8, len(tokens) - width):
        batch = source.propose([0], np.array([width]))
        for k in range(int(batch.scheduled[0])):
            hit = int(batch.tokens[0, k]) == tokens[at + k]
            pairs.append((float(batch.scores[0, k]), hit))
            if not hit:
                break
        source.extend(0, [tokens[at]])
    return pairs


def test_score_predicts_acceptance():
    """Acceptance rises with the score, bin by bin, on text that repeats in part."""
    random = np.random.default_rng(0)
    phrases = [random.integers(0, 30, size=12).tolist() for _ in range(6)]
    text = []
    while len(text) < 3000:
        text += (
            phrases[random.integers(6)][: random.integers(3, 13)] + random.integers(0, 30, size=2).tolist()
        )
    pairs = sorted(accepted_by_score(text))
    size = len(pairs) // 4
    bins = [float(np.mean([hit for _, hit in pairs[at * size : (at + 1) * size]])) for at in range(4)]
    assert all(low < high + 0.03 for low, high in pairwise(bins)), bins
    assert bins[-1] > bins[0] + 0.3, bins
    assert all(np.isfinite(score) for score, _ in pairs)
