"""The device drafter behind the host's protocol: what it proposes and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import DeviceDrafter, Limits
from adaverify_engine.drafters import LookupDrafter

LIMITS = Limits(max_requests=3, draft_tokens=4, max_model_len=32, page_size=4)


@pytest.fixture
def drafter():
    return LookupDrafter(LIMITS, torch.device("cpu"))


def test_it_is_a_device_drafter(drafter):
    assert isinstance(drafter, DeviceDrafter)


def test_the_continuation_of_the_newest_longest_match(drafter):
    """5 6 was followed by 7 8 9; the copy goes on into its own proposal."""
    drafter.start(1, [5, 6, 7, 8, 9, 1])
    drafter.extend(1, [5, 6])
    batch = drafter.propose([1], np.array([4]))
    assert batch.tokens.tolist() == [[7, 8, 9, 1]]
    assert batch.scheduled.tolist() == [4]


def test_room_cuts_the_proposal_and_masks_it(drafter):
    """Room 2 of 4: the rest is -1 and scores 0."""
    drafter.start(0, [5, 6, 7, 8, 5, 6])
    batch = drafter.propose([0], np.array([2]))
    assert batch.tokens[0, 2:].tolist() == [-1, -1]
    assert batch.scores[0, 2:].tolist() == [0.0, 0.0]
    assert batch.scheduled.tolist() == [2]


def test_a_recycled_slot_knows_nothing_of_its_former_request(drafter):
    """History, length and acceptance statistics begin anew."""
    drafter.start(2, [1, 2, 3, 1, 2])
    drafter.state.hits[2], drafter.state.trials[2] = 5.0, 6.0
    drafter.stop(2)
    drafter.start(2, [9])
    assert drafter.state.length[2] == 1
    assert drafter.state.hits[2] == drafter.state.trials[2] == 0
    assert drafter.propose([2], np.array([4])).tokens.tolist() == [[9, 9, 9, 9]]


def test_tokens_the_device_appended_are_not_overwritten(drafter):
    """After ``advanced`` the host appends behind them."""
    drafter.start(0, [1, 2])
    drafter.state.history[0, 2:4] = torch.tensor([3, 4], dtype=torch.int32)
    drafter.state.length[0] = 4
    drafter.advanced(0, 2)
    drafter.extend(0, [5])
    assert drafter.state.history[0, :5].tolist() == [1, 2, 3, 4, 5]


def test_no_requests_and_no_drafts():
    """R = 0 and K = 0 are ordinary."""
    drafter = LookupDrafter(LIMITS, torch.device("cpu"))
    assert drafter.propose([], np.zeros(0, dtype=np.int64)).tokens.shape == (0, 4)
    none = LookupDrafter(Limits(2, 0, 32, 4), torch.device("cpu"))
    none.start(0, [1, 2])
    assert none.propose([0], np.array([0])).tokens.shape == (1, 0)
