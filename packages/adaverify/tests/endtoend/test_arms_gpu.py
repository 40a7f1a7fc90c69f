"""The whole step over recorded truth in graphs on a card, with a cheap model: values before any figure."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify.bench.endtoend import sources
from adaverify.bench.endtoend.arms_stage import make_arms, measure_arms
from adaverify.bench.endtoend.baseline import BodyGraphs
from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.ground import open_ground
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
        shares = measure_shares(deck, graphs, curve)
        assert all(one["model_us"] > 0 for one in shares["budgets"].values())
        proof = prove_steps(deck)
        assert proof is not None
        assert not proof["calls_a_step"] or proof["calls_a_step"]["cudaGraphLaunch"] == 1.0
    finally:
        deck.close()
