"""The same inputs through vLLM's own manager and ours: what the model runner may rely on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]


def dear(tokens):
    """Milliseconds that rise steeply: trimming pays."""
    return 1.0 + 1.0 * tokens


def cheap(tokens):
    """Milliseconds that hardly rise: everything pays."""
    return 100.0 + 1e-9 * tokens


def survivals(rng, requests, drafts=7):
    """Confidences on a grid whose survivals do not tie."""
    return rng.uniform(0.05, 0.95, (requests, drafts)).astype(np.float32)


def names(count):
    return [f"r{i}" for i in range(count)]


def holds(case, found):
    """What every step promises, whatever its budget."""
    count, drafted = len(found.names), found.drafted
    certain = found.scheduled - drafted
    assert found.total == int(certain.sum()) + found.budget
    assert 0 <= found.budget <= int(drafted.sum())
    assert int(found.lengths.sum()) == found.total
    assert (found.lengths >= certain).all()
    admitted = torch.diff(found.logits) - case.bonus
    assert found.logits.dtype == torch.int32 and len(found.logits) == count + 1
    assert int(found.logits[0]) == 0 and int(found.boundaries[0]) == 0
    assert int(admitted.sum()) == found.budget
    assert (admitted >= 0).all() and (admitted <= torch.from_numpy(drafted)).all()
    assert torch.equal(torch.diff(found.boundaries[: count + 1]), admitted + torch.from_numpy(certain))
    assert (found.boundaries[count:] == found.total).all()
    return admitted


@pytest.mark.parametrize("price", [dear, cheap])
@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_totals_bounds_placeholders_and_tails(case, price, count):
    """The total is certain tokens and budget; boundaries and offsets follow; the tail holds the total."""
    made = case()
    for name in names(count):
        made.add(name)
    made.price(price, SIZES)
    made.know(names(count), survivals(np.random.default_rng(count), count))
    found = made.step(*made.schedule(dict.fromkeys(names(count), 7)))
    holds(made, found)
    if price is cheap:
        assert found.budget == 7 * count
        assert found.lengths is found.scheduled
        assert found.host_offsets is found.offsets
    elif count > 1:
        assert found.budget < 7 * count


def test_a_budget_of_zero_is_known_exactly_on_the_host(case):
    """Nobody is worth verifying: offsets are exact, so a sampler may chunk by them."""
    made = case()
    for name in names(4):
        made.add(name)
    made.price(dear, SIZES)
    made.know(names(4), np.zeros((4, 7)))
    found = made.step(*made.schedule(dict.fromkeys(names(4), 7)))
    holds(made, found)
    assert found.budget == 0
    assert found.host_offsets.tolist() == [0, 1, 2, 3, 4]
    assert found.host_offsets.dtype == np.int32
    assert found.lengths.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("limit", "most"), [(16, 12), (4, 0), (3, 0), (5, 1), (10**6, 28)])
def test_the_logits_chunk_limit_bounds_the_budget(case, limit, most):
    """4 requests of 7 drafts and a limit of 16 rows leave 12 drafts (vLLM #47808)."""
    made = case(rows_limit=limit)
    for name in names(4):
        made.add(name)
    made.price(cheap, SIZES)
    made.know(names(4), np.ones((4, 7)))
    found = made.step(*made.schedule(dict.fromkeys(names(4), 7)))
    holds(made, found)
    assert found.budget == most


def test_requests_of_a_prompt_count_as_certain_tokens(case):
    """A chunk of a prompt costs its tokens and gets no drafts; it stands behind the decodes."""
    made = case()
    made.add("decode")
    made.add("chunk", prompt=40, computed=8)
    made.price(dear, SIZES)
    made.know(["decode"], [[0.9] * 7])
    found = made.step(*made.schedule({"decode": 7}, [("chunk", 16)]))
    admitted = holds(made, found)
    assert found.names == ["decode", "chunk"]
    assert int(admitted[1]) == 0
    assert found.total == 17 + found.budget


def test_drafts_beside_a_prompt_that_goes_on_keep_the_totals(case):
    """A request that still reads its prompt may carry placeholder drafts (one token of prompt a step)."""
    made = case()
    made.add("decode")
    made.add("reading", prompt=40, computed=8)
    made.price(dear, SIZES)
    made.know(["decode", "reading"], np.full((2, 7), 0.9))
    made.state.num_computed_tokens_np[made.state.req_id_to_index["reading"]] = 8
    found = made.step(*made.schedule({"decode": 7, "reading": 7}))
    holds(made, found)


@pytest.mark.parametrize("bonus", [1, 2])
def test_offsets_count_the_rows_that_are_no_drafts(case, bonus):
    """Models that sample several tokens a step have as many rows without drafts."""
    made = case(bonus=bonus)
    for name in names(3):
        made.add(name)
    made.price(dear, SIZES)
    made.know(names(3), survivals(np.random.default_rng(1), 3))
    tokens, drafts = made.schedule(dict.fromkeys(names(3), 7))
    tokens = {name: count + bonus - 1 for name, count in tokens.items()}
    found = made.step(tokens, drafts)
    holds(made, found)
    assert int(found.logits[-1]) == 3 * bonus + found.budget


def test_unequal_draft_counts_bound_what_each_gets(case):
    """The device admits no draft that was not scheduled."""
    made = case()
    for name in names(4):
        made.add(name)
    made.price(dear, SIZES)
    made.know(names(4), np.full((4, 7), 0.8) - 0.01 * np.arange(28).reshape(4, 7))
    found = made.step(*made.schedule({"r0": 7, "r1": 1, "r2": 3, "r3": 2}))
    holds(made, found)


def test_a_recycled_slot_does_not_inherit_confidences(case):
    """The slot's former request was hopeless; the new one is optimistic until something is known of it."""
    made = case()
    slot = made.add("old")
    made.add("other")
    made.price(cheap, SIZES)
    made.know(["old", "other"], np.zeros((2, 7)))
    made.state.remove_request("old")
    assert made.add("new") == slot
    found = made.step(*made.schedule({"new": 7, "other": 7}))
    admitted = holds(made, found)
    by_name = dict(zip(found.names, admitted.tolist(), strict=True))
    assert by_name["new"] >= by_name["other"]
    assert found.budget >= 7


def test_profiling_asks_for_every_captured_size_five_times_and_beyond(case):
    """In the form that the model runner's dummy run takes, rising, up to the largest batch."""
    made = case(most_tokens=512)
    runs = made.price(dear, [8, 16, 32])
    sizes = [run["num_tokens"] for run in runs]
    assert sizes == [size for size in (8, 16, 32, 48, 64, 128, 256, 512) for _ in range(5)]
    assert {tuple(run) for run in runs} == {("num_tokens", "context_len")}


def test_no_captured_sizes_ask_for_nothing(case):
    made = case()
    assert list(made.manager.batches_to_profile([])) == []


@pytest.mark.parametrize("seed", range(12))
def test_without_a_margin_both_choose_the_same_budget_and_the_same_drafts(both, seed):
    """The same confidences and prices: budgets, offsets, boundaries and host values are equal to the bit."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 17))
    confidences, slope = survivals(rng, count), float(rng.uniform(0.02, 0.4))
    found = []
    for made in both():
        for name in names(count):
            made.add(name)
        made.price(lambda tokens: 4.0 + slope * tokens, SIZES)
        made.know(names(count), confidences)
        found.append(made.step(*made.schedule(dict.fromkeys(names(count), 7))))
        holds(made, found[-1])
    theirs, ours = found
    assert ours.budget == theirs.budget
    assert ours.names == theirs.names
    assert torch.equal(ours.logits, theirs.logits)
    assert torch.equal(ours.boundaries, theirs.boundaries)
    assert ours.lengths.tolist() == theirs.lengths.tolist()
    assert ours.host_offsets.tolist() == theirs.host_offsets.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_beside_chunks_that_change_both_choose_the_same_in_every_step(both, seed):
    """A prompt read in chunks of all sizes, and steps without one between."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    chunks = rng.choice([0, 3, 20, 33, 60], 8).tolist()
    confidences, slope = survivals(rng, count), float(rng.uniform(0.02, 0.4))
    found = []
    for made in both():
        for name in names(count):
            made.add(name)
        made.add("prompt", prompt=3000, computed=0)
        made.price(lambda tokens: 4.0 + slope * tokens, SIZES)
        made.know(names(count), confidences)
        if hasattr(made.manager, "outcomes"):
            # What these steps take here is no model's time, and vLLM's own does not learn from it.
            made.manager.outcomes._learns = False
        steps = []
        for chunk in chunks:
            extra = [("prompt", chunk)] if chunk else []
            steps.append(made.step(*made.schedule(dict.fromkeys(names(count), 7), extra)))
            holds(made, steps[-1])
            made.record(names(count), confidences)
        found.append(steps)
    for theirs, ours in zip(*found, strict=True):
        assert ours.budget == theirs.budget
        assert torch.equal(ours.boundaries, theirs.boundaries)
        assert torch.equal(ours.logits, theirs.logits)
        assert ours.lengths.tolist() == theirs.lengths.tolist()
