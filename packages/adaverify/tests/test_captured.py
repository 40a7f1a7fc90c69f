"""Sizes that adaptive engines will capture, told beforehand: what a cost table is filed under."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaverify.affordable import affordable
from adaverify.captured import captured_sizes
from adaverify_engine import EngineOptions
from adaverify_graphs import choose_ladder
from adaverify_runtime import GraphSettings

OPTIONS = EngineOptions(max_requests=16, draft_tokens=7, max_model_len=512, device="cuda")


def test_both_kinds_of_steps_have_sizes_on_a_card():
    ladder, bare = captured_sizes(GraphSettings(), OPTIONS)
    assert ladder == choose_ladder(OPTIONS.limits).tiers
    assert len(bare) == 2
    assert bare[-1] == 16


@pytest.mark.parametrize("most", [1, 2, 9, 32])
def test_the_limit_in_graphs_holds_both(most):
    ladder, bare = captured_sizes(GraphSettings(max_graphs=most), OPTIONS)
    assert len(ladder) + len(bare) == most


def test_nothing_is_captured_eagerly_and_full_batches_alone_always_draft():
    assert captured_sizes(GraphSettings(), replace(OPTIONS, device="cpu")) == ((), ())
    assert captured_sizes(GraphSettings(mode="never"), OPTIONS) == ((), ())
    assert captured_sizes(GraphSettings(backend="eager"), OPTIONS) == ((), ())
    assert captured_sizes(GraphSettings(mode="uniform"), OPTIONS) == (choose_ladder(OPTIONS.limits).tiers, ())


def test_a_small_job_times_fewer_steps_that_draft_nothing_too():
    ladder, bare = captured_sizes(GraphSettings(), OPTIONS)
    whole = affordable(OPTIONS, ladder, 10**6, bare)
    assert whole.whole
    assert whole.grid.bare == bare
    timings = [affordable(OPTIONS, ladder, steps, bare).grid for steps in (2000, 120)]
    assert timings[-1].bare == (16,)
    assert all(grid.most_timings <= 0.5 * steps for grid, steps in zip(timings, (2000, 120), strict=True))
