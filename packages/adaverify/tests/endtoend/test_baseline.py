"""The published arrangement against the builder, the assignment and ours."""

from __future__ import annotations

import numpy as np
import torch

from adaverify.bench.endtoend.arms import Adaptive, OurSteps
from adaverify.bench.endtoend.baseline import BaselineSteps, BodyGraphs, _admit
from adaverify.bench.endtoend.rounds import run_round
from adaverify_contracts import (
    DecodeBatch,
)
from adaverify_metadata import FlattenRowBuilder
from adaverify_verification import admit
from adaverify_verification.quantise import scores as survivals

K = 7


def test_the_baselines_chains_are_the_builders_rows(deck):
    """Boundaries and rows by torch calls equal those of the reference builder, padding included."""
    graphs = BodyGraphs(deck)
    lens, kv = torch.tensor([3, 1, 6]), torch.tensor([50, 48, 61], dtype=torch.int32)
    graphs.metadata(lens, 10, 12, kv)
    assert graphs.query_start_loc.tolist() == [0, 3, 4, 10]
    builder = FlattenRowBuilder("flatten", deck.limits, "cpu", backend="torch")
    table = deck.state.slots.block_table
    expected = builder.build(DecodeBatch(graphs.query_start_loc, graphs.seq_lens, table, 3, 10, 12, 8))
    for name in ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot"):
        got = getattr(graphs, name)[:12]
        assert got.flatten().tolist() == getattr(expected, name).flatten().tolist(), name
    pages = -(-expected.row_lens // deck.limits.page_size)
    for row in range(10):
        read = int(pages[row])
        assert graphs.row_table[row, :read].tolist() == expected.block_table[row, :read].tolist()
    assert graphs.token_offset[:12].tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 5, -1, -1]


def test_the_baseline_admits_the_most_confident_prefixes():
    confidences = torch.rand(5, K, generator=torch.Generator().manual_seed(0))
    ranked = survivals(confidences.numpy())
    for budget in (1, 9, 30):
        expected = admit(ranked, np.full(5, K), budget)
        assert _admit(confidences, budget).tolist() == expected.tolist()


def test_the_baseline_looks_at_every_budget(deck, priced):
    steps = BaselineSteps(deck, BodyGraphs(deck), priced)
    rows = np.random.default_rng(3).uniform(0.1, 0.9, (3, K)).astype(np.float32)
    steps._known = {f"request-{row}": rows[row] for row in range(3)}
    ranked = np.sort(np.cumprod(rows, axis=1).ravel())[::-1]
    rates = []
    for budget in range(22):
        tier = int(np.searchsorted(priced.tiers, 3 + budget))
        rates.append((3 + ranked[:budget].sum()) / priced.seconds[tier])
    assert steps._decide(priced) == int(np.argmax(rates))


def test_one_budget_makes_equal_steps(deck, priced):
    """The given budget runs in both arrangements, whatever each of them planned."""
    graphs = BodyGraphs(deck)
    graphs.capture()
    starts = deck.ground.text.starts(3, 0)
    ours = run_round(OurSteps(deck, Adaptive(deck, 12)), starts, least=5)
    theirs = run_round(BaselineSteps(deck, graphs, priced, budget=12), starts, least=5)
    assert ours.verified == theirs.verified == 60
    assert ours.executed == theirs.executed
