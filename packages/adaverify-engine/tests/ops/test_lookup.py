"""What the device lookup proposes, and how surely."""

from __future__ import annotations

import math

import pytest
import torch

from adaverify_contracts import DescriptorError, LayoutError, Limits, LimitsError
from adaverify_engine.drafters import LookupDrafter
from adaverify_engine.drafters.ngram import _LONGEST_MATCH, _OCCURRENCES
from adaverify_engine.ops.lookup.launch import LookupLaunch, launch_for, lookup
from adaverify_engine.ops.lookup.reference import LONGEST_MATCH, OCCURRENCES

BACKENDS = ["torch", "triton"]


def propose(kit, tokens, *, backend, width=4, room=99, hits=0.0, trials=0.0):
    """Return (drafts, scores, scheduled) for one history; the block is smaller than most of them."""
    state = kit.make(0, slots=2, rows=1, drafts=width, longest=max(40, len(tokens)))
    state.row_slot.fill_(1)
    state.length.fill_(len(tokens))
    state.limit.fill_(len(tokens) + room + 1)
    state.history.fill_(3)
    state.history[1, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    state.hits.fill_(hits)
    state.trials.fill_(trials)
    state.drafts.fill_(kit.poison)
    state.scores.fill_(kit.poison)
    state.scheduled.fill_(kit.poison)
    state.lookup(lookup, backend=backend, launch=LookupLaunch(16, 1))
    assert (state.drafts[0] == kit.poison).all()
    assert int(state.scheduled[0]) == kit.poison
    return state.drafts[1].tolist(), state.scores[1].tolist(), int(state.scheduled[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 10, 11, 12, 13, 9, 3, 20, 21, 22, 8, 1, 2, 3], [10, 11, 12, 13]),  # longest, not newest
        ([5, 7, 0, 5, 8, 2, 5], [8, 2, 5, 8]),  # newest of equal ones, copying its own proposal
        ([9, 1, 2, 1, 2], [1, 2, 1, 2]),  # a period of two
        ([6] * 40, [6] * 4),  # all equal
        ([6, 6], [6] * 4),
        ([1, 2, 3], [3] * 4),  # no match: the last token again
        ([8], [8] * 4),
    ],
)
def test_drafts_by_hand(step_kit, backend, tokens, drafts):
    """The continuation of the longest match, the newest among equals."""
    assert propose(step_kit, tokens, backend=backend)[0] == drafts


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_by_hand(step_kit, backend):
    """One match of 2; two of 1 that part; one that overlaps the end; none at all."""
    request = 0.45 * math.log(3.0 / 2.0)
    _, scores, _ = propose(step_kit, [1, 2, 3, 4, 5, 9, 1, 2], backend=backend, hits=2.0, trials=3.0)
    expected = [request + 1.1 * math.log(3.0) + 0.8 * math.log(2 + k) for k in range(4)]
    assert scores == pytest.approx(expected, abs=1e-5)
    _, scores, _ = propose(step_kit, [5, 7, 1, 5, 7, 2, 5], backend=backend, width=3)
    both = 1.1 * math.log(2.5 / 0.5) + 0.5 * math.log(2)
    half = 1.1 * math.log(1.0) + 0.8 * math.log(2)
    assert scores == pytest.approx([both, half, 1.1 * math.log(3.0) + 0.8 * math.log(3)], abs=1e-5)
    _, scores, _ = propose(step_kit, [9, 1, 2, 1, 2], backend=backend)
    assert scores == pytest.approx([1.1 * math.log(3.0) + 0.8 * math.log(2 + k) for k in range(4)], abs=1e-5)
    _, scores, _ = propose(step_kit, [1, 2, 3], backend=backend, hits=5.0, trials=5.0)
    assert scores == [-4.0, -4.25, -4.5, -4.75]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("room", "count"), [(-1, 0), (0, 0), (1, 1), (3, 3), (9, 4)])
def test_room_is_honoured(step_kit, backend, room, count):
    """Exactly min(K, limit - length - 1) drafts, never below 0; -1 and score 0 behind them."""
    drafts, scores, scheduled = propose(step_kit, [1, 2, 1, 2, 1], backend=backend, room=room)
    assert scheduled == count
    assert drafts == [2, 1, 2, 1][:count] + [-1] * (4 - count)
    assert scores[count:] == [0.0] * (4 - count)
    assert all(scores[:count])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_history_and_no_drafts(step_kit, backend):
    """Length 0 drafts a valid id; K = 0 schedules 0."""
    drafts, scores, scheduled = propose(step_kit, [], backend=backend)
    assert (drafts, scores, scheduled) == ([0] * 4, [-4.0, -4.25, -4.5, -4.75], 4)
    assert propose(step_kit, [1, 1, 1], backend=backend, width=0) == ([], [], 0)


@pytest.mark.parametrize("drafts", [0, 1, 7])
def test_rows_equal_the_reference(step_kit, drafts):
    """Random histories of one to four words, padding rows among them; slots not named stay as they were."""
    for seed in (4, 8, 9):
        kernel = step_kit.make(seed, drafts=drafts, rows=4, slots=5, longest=50, alphabet=1 + seed % 3)
        # Room for every proposal but those of slot 0, which is cut.
        kernel.limit[1:] = kernel.length[1:] + drafts + 1
        kernel.drafts.fill_(step_kit.poison)
        kernel.scores.fill_(step_kit.poison)
        kernel.scheduled.fill_(step_kit.poison)
        reference = kernel.clone()
        kernel.lookup(lookup, launch=LookupLaunch(32, 1))
        reference.lookup(lookup, backend="torch")
        step_kit.same_state(kernel, reference)


def test_a_history_of_8192_tokens_and_15_drafts(step_kit):
    """The only long match lies in the first block, and many short ones everywhere."""
    tokens = torch.randint(0, 50, (8192,), generator=torch.Generator().manual_seed(3)).tolist()
    tokens[-20:] = tokens[100:120]
    answers = [propose(step_kit, tokens, backend="torch", width=15)]
    state = step_kit.make(0, slots=1, rows=1, drafts=15, longest=8300)
    state.row_slot.fill_(0)
    state.length.fill_(8192)
    state.limit.fill_(8300)
    state.hits.fill_(0.0)
    state.trials.fill_(0.0)
    state.history[0, :8192] = torch.tensor(tokens, dtype=torch.int32)
    state.lookup(lookup, launch=launch_for(Limits(1, 15, 8300, 16)))
    assert state.drafts[0].tolist() == answers[0][0] == tokens[120:135]
    assert state.scores[0].tolist() == pytest.approx(answers[0][1], abs=3e-5)


def test_matches_longer_than_16_count_as_16(step_kit):
    """Of a match of 30 and a newer one of 17 the newer is continued: beyond 16 length says nothing."""
    words = list(range(100, 130))
    tokens = [*words, 1, 99, *words[13:], 2, 98, *words]
    for backend in BACKENDS:
        assert propose(step_kit, tokens, backend=backend)[0][:2] == [2, 98]


def test_both_drafters_bound_matches_alike():
    """The scores were fitted with the host drafter's bounds."""
    assert (LONGEST_MATCH, OCCURRENCES) == (_LONGEST_MATCH, _OCCURRENCES)


def test_the_drafter_chooses_its_backend_and_refuses_what_it_cannot_serve():
    """Torch on a CPU, Triton elsewhere; K above 15 is refused with the number."""
    limits = Limits(4, 3, 64, 16)
    assert LookupDrafter(limits, "cpu").backend == "torch"
    assert LookupDrafter(limits, "meta").backend == "triton"
    with pytest.raises(LimitsError, match="draft_tokens"):
        LookupDrafter(Limits(4, 16, 64, 16), "cpu")
    with pytest.raises(LayoutError):
        LookupDrafter(limits, "cpu", backend="numpy")
    with pytest.raises(DescriptorError):
        LookupLaunch(block=1000)


def test_misfits_are_typed_errors(step_kit):
    """Scores of another K, and no rows at all."""
    state = step_kit.make(1, rows=0, tokens=0)
    state.lookup(lookup)
    state.scores = state.scores[:, 1:].contiguous()
    with pytest.raises(LayoutError, match="lookup"):
        state.lookup(lookup)
