"""Accepted prefixes, appended tokens and acceptance statistics equal the host path's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_engine.acceptance import Sequences, judge
from adaverify_engine.drafters import NgramDrafter
from adaverify_engine.drafters.ngram import _MEMORY
from adaverify_engine.ops.advance.launch import advance
from adaverify_engine.ops.advance.reference import MEMORY
from adaverify_engine.ops.pick.launch import Pick

BACKENDS = ["torch", "triton"]


def one_row(kit, *, picked, drafts, scheduled, admitted, length=2, limit=10, slot=1, width=3):
    """Return the state after advancing one row of slot 1 of 3."""
    state = kit.make(0, slots=3, rows=1, drafts=width, longest=10, tokens=len(picked))
    for name, value in (("scheduled", scheduled), ("length", length), ("limit", limit)):
        getattr(state, name).fill_(value)
    state.hits.fill_(2.0)
    state.trials.fill_(4.0)
    state.history.fill_(-5)
    state.row_slot.fill_(slot)
    state.admitted.fill_(admitted)
    state.query_start_loc.copy_(torch.tensor([0, admitted + 1]))
    state.drafts.fill_(-1)
    state.drafts[1, : len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
    state.out_token.copy_(torch.tensor(picked))
    state.out_gap.copy_(torch.arange(len(picked)) + 0.5)
    return state


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("picked", "admitted", "emitted", "hits", "trials"),
    [
        ([4, 5, 6, 7], 3, [4, 5, 6, 7], 3, 3),  # all accepted, and the token after them
        ([4, 9, 6, 7], 3, [4, 9], 1, 2),  # a miss ends it
        ([8, 5, 6, 7], 3, [8], 0, 1),
        ([4, 5], 1, [4, 5], 2, 2),  # trimmed: the draft behind the admitted one is right, and compared
        ([4, 8], 1, [4, 8], 1, 2),  # trimmed: it is wrong
        ([4], 0, [4], 1, 1),  # nothing admitted, the first draft right
    ],
)
def test_a_row_by_hand(step_kit, backend, picked, admitted, emitted, hits, trials):
    """Drafts 4 5 6 against picked tokens; 2 of 4 earlier trials were hits."""
    state = one_row(step_kit, picked=picked, drafts=[4, 5, 6], scheduled=3, admitted=admitted)
    state.advance(advance, backend)
    count = len(emitted)
    assert int(state.out_accepted) == count - 1
    assert state.out_tokens[0].tolist() == emitted + [-1] * (4 - count)
    assert state.out_gaps[0].tolist() == [i + 0.5 for i in range(count)] + [0.0] * (4 - count)
    assert state.history[1].tolist() == [-5, -5, *emitted] + [-5] * (12 - count)
    assert state.length.tolist() == [2, 2 + count, 2]
    assert float(state.hits[1]) == pytest.approx(0.85 * 2 + hits)
    assert float(state.trials[1]) == pytest.approx(0.85 * 4 + trials)
    assert state.hits[[0, 2]].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("length", "emitted"), [(10, []), (11, []), (9, [4]), (8, [4, 5]), (7, [4, 5, 6])])
def test_no_row_runs_past_its_limit(step_kit, backend, length, emitted):
    """Limit 10: what does not fit is not emitted; at the limit the request keeps its state."""
    state = one_row(
        step_kit, picked=[4, 5, 6, 7], drafts=[4, 5, 6], scheduled=3, admitted=3, length=length, limit=10
    )
    state.advance(advance, backend)
    count = len(emitted)
    assert int(state.out_accepted) == max(count - 1, 0)
    assert state.out_tokens[0].tolist() == emitted + [-1] * (4 - count)
    assert int(state.length[1]) == length + count
    assert (state.history[1] == -5).sum() == 14 - count
    assert float(state.hits[1]) == pytest.approx(0.85 * 2 + count if count else 2.0)
    assert float(state.trials[1]) == pytest.approx(0.85 * 4 + count if count else 4.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_padding_row_writes_nothing_but_its_outputs(step_kit, backend):
    """Slot -1: accepted 0, tokens -1, gaps 0, and no slot changes (an index of -1 would hit the last one)."""
    state = one_row(step_kit, picked=[4, 5], drafts=[4], scheduled=1, admitted=1, slot=-1)
    before = state.clone()
    state.advance(advance, backend)
    assert int(state.out_accepted) == 0
    assert state.out_tokens.tolist() == [[-1] * 4]
    assert state.out_gaps.tolist() == [[0.0] * 4]
    for name in ("history", "length", "hits", "trials", "drafts", "scheduled"):
        assert torch.equal(getattr(state, name), getattr(before, name)), name


@pytest.mark.parametrize("drafts", [0, 3, 7, 15])
def test_rows_equal_the_reference(step_kit, drafts):
    """Random states, budgets and limits; outputs poisoned."""
    for seed in range(4):
        kernel = step_kit.make(seed, drafts=drafts, rows=6, slots=6, sampled=0.0)
        kernel.pick(Pick(200, 100, step_kit.device, backend="torch"))
        reference = kernel.clone()
        kernel.advance(advance, "triton")
        reference.advance(advance, "torch")
        step_kit.same_state(kernel, reference)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pick_and_advance_give_what_the_host_path_gives(step_kit, backend):
    """Acceptance.judge on the same logits, noise and drafts; the drafter's own settle on what it emits."""
    for seed in (0, 8):
        state = step_kit.make(seed, rows=5, slots=5, sampled=0.5)
        state.limit.fill_(1000)
        before = state.clone()
        state.pick(Pick(64, 100, step_kit.device, backend=backend))
        state.advance(advance, backend)
        slots = before.row_slot.long()
        place = before.length.long()[slots][:, None] + torch.arange(4, device=slots.device)
        last = before.noise.shape[1] - 1
        verdict = judge(
            before.logits[: int(before.query_start_loc[-1])],
            Sequences(
                start=before.query_start_loc[:-1].long(),
                admitted=before.admitted.long(),
                drafts=before.drafts[slots].long(),
                draft_law=None,
                temperature=before.temperature[slots],
                top_p=before.top_p[slots],
                noise=before.noise[slots[:, None], place.clamp(max=last)],
            ),
            sampled=True,
        )
        assert torch.equal(state.out_accepted.long(), verdict.accepted)
        emitted = torch.arange(4, device=slots.device) <= verdict.accepted[:, None]
        assert torch.equal(state.out_tokens.long(), torch.where(emitted, verdict.tokens, -1))
        assert torch.equal(state.out_gaps, torch.where(emitted, verdict.gaps, 0.0))
        for row, slot in enumerate(slots.tolist()):
            drafter = NgramDrafter(Limits(1, 3, 256, 16), torch.device("cpu"))
            drafter.start(0, [1])
            record = drafter._slots[0]
            record.hits, record.trials = float(before.hits[slot]), float(before.trials[slot])
            record.proposed = before.drafts[slot, : int(before.scheduled[slot])].tolist()
            drafter.extend(0, verdict.tokens[row, : int(verdict.accepted[row]) + 1].tolist())
            found = np.array([float(state.hits[slot]), float(state.trials[slot])])
            np.testing.assert_allclose(found, [record.hits, record.trials], atol=1e-5)


def test_both_drafters_forget_at_one_rate():
    """The device statistic decays as the host drafter's does."""
    assert MEMORY == _MEMORY


def test_no_rows_and_misfits(step_kit):
    """R = 0 is an ordinary step; outputs of another K are refused."""
    state = step_kit.make(1, rows=0, tokens=0)
    state.advance(advance, "triton")
    state = step_kit.make(1)
    state.out_tokens = state.out_tokens[:, 1:].contiguous()
    with pytest.raises(LayoutError, match="advance"):
        state.advance(advance, "torch")
    with pytest.raises(LayoutError, match="backend"):
        state.advance(advance, "numpy")
