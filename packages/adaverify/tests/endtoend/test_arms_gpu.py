"""The whole step over recorded truth in graphs on a card, with a cheap model: values before any figure."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify.bench.endtoend import sources
from adaverify.bench.endtoend.arms_stage import make_arms, measure_arms
from adaverify.bench.endtoend.baseline import BaselineSteps, BodyGraphs
from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.gaps import measure_gaps
from adaverify.bench.endtoend.ground import open_ground
from adaverify.bench.endtoend.ladders import graph_segments, measure_capture
from adaverify.bench.endtoend.proof import prove_steps
from adaverify.bench.endtoend.rounds import check_arm
from adaverify.bench.endtoend.shares import measure_shares
from adaverify.bench.endtoend.text import Text
from adaverify.bench.timing import DeviceTimer
from adaverify_contracts import BenchmarkOptions
from adaverify_runtime import doctor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
K = 7


def cheap_body(sizes, limits, device, plugins, capability):
    """Some products a token, so that a step takes a while and its time grows with its tokens."""
    weight = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16) / 45.0

    def decode(staged, kv_lens, block_table):
        state = weight[: len(staged.assignment.token_request)].repeat(1, 1)
        for _ in range(20):
            state = torch.tanh(state @ weight)
        return state.argmax(1).int()

    count, width = limits.max_requests, limits.table_width
    table = 1 + np.arange(count * width, dtype=np.int32).reshape(count, width)
    return sources.MadeBody(SimpleNamespace(decode=decode), table, {})


@pytest.fixture(scope="module")
def ground():
    rng = np.random.default_rng(0)
    accepted = rng.integers(0, K + 1, 4000)
    scores = 3.0 * np.sign(accepted[:, None] - np.arange(K) - 0.5) + rng.normal(0.0, 1.5, (4000, K))
    text = Text(scores.astype(np.float32), accepted.astype(np.int64), {"model": "toy", "drafter": "toy"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load_text", lambda: text)
        patch.setattr(sources, "make_body", cheap_body)
        yield open_ground(
            BenchmarkOptions(
                device="cuda",
                capability=doctor(device="cuda").capability,
                timer=DeviceTimer("cuda", 2),
                repeat=2,
                requests=(1, 64),
                steps=8,
            )
        )


@pytest.mark.parametrize("requests", [1, 64])
def test_every_arm_is_what_the_records_say_and_a_step_is_one_launch(ground, requests):
    deck = Deck(ground, requests)
    try:
        measured = measure_curve(deck)
        curve = deck.price(table_of(deck, measured))
        graphs = BodyGraphs(deck)
        graphs.capture()
        starts = ground.text.starts(requests, 1)
        for name, steps in make_arms(deck, graphs, curve).items():
            check_arm(name, steps, ground.text, starts)
        arms = measure_arms(deck, graphs, measured, lambda words: None)["arms"]
        assert all(arm["tokens_per_s"] > 0 for arm in arms.values())
        assert arms["oracle"]["waste"] == 0.0
        # What a step sends at its begin is read while it runs.
        assert arms["adaptive"]["lags"].get("1", 0.0) > 0.9
        for one in measure_shares(deck, measured)["budgets"].values():
            for name in ("ours", "published", "published-ahead"):
                assert one[name]["model_us"] > 0
                assert one[name]["beside_model_us"] > 0
        gaps = measure_gaps(deck, table_of(deck, measured))
        assert gaps is not None
        assert 0 <= gaps["gap_us"] <= gaps["longest_gap_us"]
        assert gaps["inside_us"] > gaps["before_model_us"] + gaps["behind_model_us"] > 0
        proof = prove_steps(deck)
        assert proof is not None
        assert not proof["calls_a_step"] or proof["calls_a_step"]["cudaGraphLaunch"] == 1.0
    finally:
        deck.close()


def test_what_captures_hold_is_split_between_torch_and_the_driver(ground):
    """Segments for graphs are there while these live, and gone with them."""
    found = measure_capture(ground, 2)
    for name in ("fixed", "adaptive"):
        one = found[name]
        assert one["graphs"] == 2
        assert one["small_segments"] + one["large_segments"] > 0
        assert one["reserved_bytes"] >= 2 * 2**20 * one["small_segments"]
        assert 0 <= one["kept_bytes"] < one["reserved_bytes"]
        assert one["step_bytes"] > 0
        assert one["held_bytes_low"] <= one["held_bytes"] <= one["held_bytes_high"]
    assert graph_segments(ground) == []


def test_the_published_arrangement_leaves_nothing_under_way(ground):
    """Its copy blocks: behind a step that was read, the device has nothing left to do."""
    deck = Deck(ground, 64)
    try:
        curve = deck.price(table_of(deck, measure_curve(deck)))
        graphs = BodyGraphs(deck)
        graphs.capture()
        steps = BaselineSteps(deck, graphs, curve, waits=True)
        steps.open(ground.text.starts(64, 0))
        for _ in range(4):
            steps.launch()
            steps.land()
            assert len(steps) == 0
            assert torch.cuda.current_stream().query()
    finally:
        deck.close()
