"""Token counts that a CPU's steps are planned for: where the rows that are computed change."""

from __future__ import annotations

import pytest

from adaverify_engine import Sampling
from adaverify_engine.row_tiers import row_tiers, whole_rows


@pytest.mark.parametrize(
    ("requests", "drafts", "tiers"),
    [
        (1, 0, (1,)),
        (1, 7, (1, 2, 4, 8)),
        (1, 4, (1, 2, 4, 5)),
        (4, 7, (1, 2, 4, 8, 16, 32)),
        (3, 7, (1, 2, 4, 8, 16, 24)),
        (8, 4, (1, 2, 4, 5, 8, 10, 16, 20, 32, 40)),
    ],
)
def test_tiers_are_the_ends_of_whole_rows_and_full_batches(requests, drafts, tiers):
    assert row_tiers(requests, drafts) == tiers


@pytest.mark.parametrize("drafts", [0, 1, 4, 7, 12])
@pytest.mark.parametrize("requests", [1, 2, 5, 16, 100])
def test_every_step_is_planned_for_no_more_than_is_computed(requests, drafts):
    tiers = row_tiers(requests, drafts)
    assert list(tiers) == sorted(set(tiers)) and tiers[-1] == requests * (drafts + 1)
    for tokens in range(1, tiers[-1] + 1):
        tier = next(end for end in tiers if end >= tokens)
        assert tokens <= tier <= whole_rows(tokens)


def test_no_budget_ends_within_whole_rows(make_engine, tiny):
    """A budget that leaves rows empty would pay for drafts that it does not verify."""
    engine, records = make_engine("adaptive", max_requests=4), []
    engine.verifier.add_observer("test", records.append)
    for prompt in tiny.prompts(8):
        engine.add(prompt, Sampling(max_tokens=40))
    engine.run()
    engine.verifier.drain()
    tiers = row_tiers(engine.options.max_requests, engine.options.draft_tokens)
    trimmed = [one for one in records if one.planned < one.scheduled and one.certain_tokens == one.requests]
    assert trimmed, "nothing was trimmed"
    assert all(one.tokens == one.tier and one.tier in tiers for one in trimmed)
