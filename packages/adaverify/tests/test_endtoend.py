"""The whole step over recorded truth, at toy sizes on a CPU: arms, oracles, the published arrangement."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify.bench.endtoend import run as endtoend
from adaverify.bench.endtoend import sources
from adaverify.bench.endtoend.arms import Adaptive, Fixed, Oracle, OurSteps, plain_manager
from adaverify.bench.endtoend.arms_stage import make_arms
from adaverify.bench.endtoend.baseline import BaselineSteps, BodyGraphs, _admit
from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.deck import Curve, Deck, wanted_tiers
from adaverify.bench.endtoend.ground import open_ground
from adaverify.bench.endtoend.ladders import mean_padding
from adaverify.bench.endtoend.oracle import best_budget
from adaverify.bench.endtoend.proof import gaps
from adaverify.bench.endtoend.rounds import check_arm, run_round
from adaverify.bench.endtoend.shares import measure_shares
from adaverify.bench.endtoend.store import Store
from adaverify.bench.endtoend.text import Cursors, Text
from adaverify.bench.timing import DeviceTimer
from adaverify.commands.bench import _chosen
from adaverify.hooks import adaverify_register_benchmarks
from adaverify.session import discover
from adaverify_contracts import (
    AdaverifyError,
    BenchmarkOptions,
    DecodeBatch,
    EngineError,
    WrongValueError,
    hookimpl,
)
from adaverify_metadata import FlattenRowBuilder
from adaverify_replay.simulate import best_admitted
from adaverify_runtime import doctor
from adaverify_verification import admit
from adaverify_verification.quantise import scores as survivals

K = 7
FEW = ("--device", "cpu", "--repeat", 2, "--requests", 2, "--steps", 3)


def records(positions=400, seed=0):
    """Drafts whose scores say, with noise, how many will be accepted."""
    rng = np.random.default_rng(seed)
    accepted = rng.integers(0, K + 1, positions)
    scores = 3.0 * np.sign(accepted[:, None] - np.arange(K) - 0.5) + rng.normal(0.0, 1.5, (positions, K))
    return Text(scores.astype(np.float32), accepted.astype(np.int64), {"model": "toy", "drafter": "toy"})


def cheap_body(sizes, limits, device, plugins, capability):
    """A body of three products, for tests of what surrounds it."""
    weight = torch.randn(64, 64) / 8.0

    def decode(staged, kv_lens, block_table):
        state = torch.ones(len(staged.assignment.token_request), 64)
        for _ in range(3):
            state = torch.tanh(state @ weight)
        return state.argmax(1).int()

    count, width = limits.max_requests, limits.table_width
    table = 1 + np.arange(count * width, dtype=np.int32).reshape(count, width)
    return sources.MadeBody(SimpleNamespace(decode=decode), table, {})


def replace_sources(monkeypatch):
    """Toy records in place of the real ones."""
    made = records()
    monkeypatch.setattr(sources, "load_text", lambda: made)
    return made


@pytest.fixture
def text(monkeypatch):
    return replace_sources(monkeypatch)


@pytest.fixture(scope="module")
def ground():
    """Made once: it changes with nothing that a test does."""
    with pytest.MonkeyPatch.context() as patch:
        replace_sources(patch)
        patch.setattr(sources, "make_body", cheap_body)
        options = BenchmarkOptions(
            device="cpu",
            capability=doctor(device="cpu").capability,
            timer=DeviceTimer("cpu", 2),
            repeat=2,
            requests=(3,),
            steps=3,
        )
        made = open_ground(options)
        # Prices are made up, so real step times must not correct them; the toy scores need no calibration.
        planner = made.settings.planner.model_copy(update={"online": False, "signal": "drafter"})
        made.settings = replace(made.settings, planner=planner)
        made.body()
        yield made


@pytest.fixture(scope="module")
def deck(ground):
    made = Deck(ground, 3)
    yield made
    made.close()


@pytest.fixture
def own_deck(ground):
    """One that a test may break."""
    made = Deck(ground, 3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def priced(deck):
    """A deck with a curve on which trimming pays: a step's time grows with its tokens."""
    points = [{"tokens": tier, "seconds": 1e-3 * (1 + 0.2 * tier)} for tier in deck.tiers]
    return deck.price(table_of(deck, {"points": points}))


@pytest.mark.parametrize("requests", [1, 4, 64])
def test_every_fixed_k_has_a_tier_of_its_own(requests):
    tiers = wanted_tiers(requests, K)
    assert {requests * (k + 1) for k in range(K + 1)} <= set(tiers)
    assert tiers[0] == requests
    assert tiers[-1] == requests * (K + 1)


def test_the_oracle_is_the_best_of_all_prefixes():
    """Against every budget and every split of three requests."""
    rng = np.random.default_rng(1)
    tiers = np.array([3, 5, 8, 12])
    for _ in range(20):
        truth, seconds = rng.integers(0, 4, 3), np.sort(rng.uniform(1.0, 2.0, 4))

        def rate(prefix, truth=truth, seconds=seconds):
            used = 3 + sum(prefix)
            kept = 3 + sum(min(a, b) for a, b in zip(prefix, truth, strict=True))
            return kept / seconds[np.searchsorted(tiers, used)]

        best = max(rate(prefix) for prefix in itertools.product(range(4), repeat=3))
        prefix = best_admitted(truth, Curve(tiers, seconds).price)
        assert (prefix <= truth).all()
        assert rate(prefix) == pytest.approx(best)


def test_the_budget_oracle_ranks_as_the_planner_does():
    """Its prefixes are those of the total order, for the budget with the best realised rate."""
    rng = np.random.default_rng(2)
    tiers, seconds = np.array([4, 8, 16, 32]), np.array([1.0, 1.2, 1.7, 3.0])
    for _ in range(10):
        scores, truth = rng.normal(0, 2, (4, K)).astype(np.float32), rng.integers(0, K + 1, 4)
        ranked = survivals(1.0 / (1.0 + np.exp(-scores)))
        splits = [admit(ranked, np.full(4, K), int(tier) - 4) for tier in tiers]
        rates = [(4 + np.minimum(one, truth).sum()) / cost for one, cost in zip(splits, seconds, strict=True)]
        budget, prefix = best_budget(scores, truth, tiers, seconds)
        assert budget == int(tiers[int(np.argmax(rates))]) - 4
        assert prefix.tolist() == splits[int(np.argmax(rates))].tolist()


def test_requests_start_apart_and_walk_through_all_of_the_text(text):
    starts = [text.starts(4, block) for block in range(3)]
    assert all(len(set(one.tolist())) == 4 and one.max() < 400 for one in starts)
    assert len({one[0] for one in starts}) == 3
    cursors = Cursors(text, np.array([399, 5]))
    text.accepted[[399, 5]] = 3, 2
    assert cursors.advance(np.array([7, 1])).tolist() == [3, 1]
    assert cursors.at.tolist() == [3, 7]


def test_every_arm_accepts_what_the_records_say(deck, priced):
    graphs = BodyGraphs(deck)
    graphs.capture()
    arms = make_arms(deck, graphs, priced)
    assert set(arms) == {
        "none", *(f"fixed-{k}" for k in range(1, 8)), "adaptive", "oracle", "oracle-budget",
        "baseline-fixed", "baseline-adaptive",
    }  # fmt: skip
    text = deck.ground.text
    verified = {}
    for name, steps in arms.items():
        check_arm(name, steps, text, text.starts(3, 0))
        found = run_round(steps, text.starts(3, 1), tokens=60, least=4)
        verified[name] = found.verified / found.steps
        assert found.tokens >= 60
        assert found.seconds == pytest.approx(sum(found.step_seconds))
    assert verified["none"] == 0
    assert [verified[f"fixed-{k}"] for k in range(1, 8)] == [3 * k for k in range(1, 8)]
    assert verified["baseline-fixed"] == 21
    for name in ("adaptive", "oracle", "oracle-budget", "baseline-adaptive"):
        assert 0 < verified[name] < 21, f"{name} trimmed nothing"


def test_the_oracle_verifies_no_draft_that_fails(deck, priced):
    found = run_round(
        OurSteps(deck, Oracle(deck, priced, ranked=False)), deck.ground.text.starts(3, 0), least=20
    )
    assert found.verified == found.accepted > 0


def test_a_wrong_acceptance_is_caught_before_anything_is_timed(own_deck):
    """The device accepts everything; the host's records do not."""
    text = own_deck.ground.text
    own_deck.state.tables.accepted.fill_(K)
    with pytest.raises(WrongValueError, match="fixed-3 is not what the records say"):
        check_arm("fixed-3", OurSteps(own_deck, Fixed(own_deck, 3)), text, text.starts(3, 0))


def test_a_cursor_that_strays_is_caught(deck, monkeypatch):
    text = deck.ground.text
    steps = OurSteps(deck, Fixed(deck, 3))
    monkeypatch.setattr(steps, "positions", lambda: np.zeros(3, dtype=np.int64))
    with pytest.raises(WrongValueError, match="stands elsewhere"):
        check_arm("fixed-3", steps, text, text.starts(3, 0))


def test_a_forced_step_that_admits_something_else_is_caught(deck, priced, monkeypatch):
    """Prefixes that never reach the device."""
    steps = OurSteps(deck, Oracle(deck, priced, ranked=False))
    monkeypatch.setattr(deck.state, "force", lambda prefix: None)
    deck.state.slots.prefix.zero_()
    with pytest.raises(WrongValueError, match="other drafts than it was told"):
        run_round(steps, deck.ground.text.starts(3, 0), least=10)
    while len(steps):
        deck.flight.land()


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


def test_a_curve_has_a_point_for_every_tier(deck):
    found = measure_curve(deck)
    assert [point["tokens"] for point in found["points"]] == list(deck.tiers)
    assert all(0 < point["low"] <= point["seconds"] <= point["high"] for point in found["points"])


def test_results_of_something_else_are_refused(tmp_path):
    path = tmp_path / "endtoend.json"
    Store(path, {"device": "a"}).keep("curve", "1", {"x": 1})
    assert Store(path, {"device": "a"}).get("curve", "1") == {"x": 1}
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "b"})
    path.write_text("{")
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "a"})


def test_gaps_are_stretches_that_nothing_covers():
    spans = [(0.0, 4.0), (1.0, 2.0), (5.0, 6.0), (9.0, 10.0)]
    assert gaps(spans, 2) == {"longest_gap_us": 3.0, "gaps_us_a_step": 2.0, "device_us_a_step": 5.0}
    assert gaps([], 2) == {}


def test_padding_by_hand():
    """Sizes 1 .. 4 into 2 and 4: one of padding at 1 and at 3, weighing 1 and 1/3 of 25/12."""
    assert mean_padding((2, 4), 4) == pytest.approx((1 + 1 / 3) / (25 / 12))


class Ours:
    """Registers our benchmarks as the entry point does."""

    @hookimpl
    def adaverify_register_benchmarks(self):
        return adaverify_register_benchmarks()


@pytest.fixture
def bench(tiny, text, invoke, tmp_path):
    tiny(Ours())
    return lambda *more: invoke("bench", "endtoend", *FEW, "--out", tmp_path / "out", *more)


@pytest.mark.slow
def test_all_stages_run_and_a_second_run_measures_nothing(bench, tmp_path, monkeypatch):
    found = bench("--json", "-")
    assert found.exit_code == 0, found.stderr
    value = json.loads(found.stdout)["benchmarks"][0]
    stages = value["facts"]["stages"]
    assert set(stages) == {"curve", "arms", "shares", "paired", "capture"}
    assert {row["stage"] for row in value["rows"]} == set(stages)
    arms = stages["arms"]["2"]["arms"]
    assert len(arms) == 13
    assert all(len(one["tokens_per_s_rounds"]) == 2 for one in arms.values())
    assert stages["shares"]["2"]["budgets"].keys() == {"8", "14"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "endtoend.json", "throughput.png", "planning.png", "curve.png", "capture.png",
    }  # fmt: skip
    monkeypatch.setattr(endtoend._Bench, "measure", lambda *_: pytest.fail("measured again"))
    again = bench("--json", "-")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["benchmarks"][0]["facts"]["stages"] == stages


@pytest.mark.slow
def test_one_stage_runs_alone_and_brings_the_curve_it_needs(bench, tmp_path):
    assert bench("--stage", "arms").exit_code == 0
    kept = json.loads((tmp_path / "out" / "endtoend.json").read_text())
    assert set(kept["stages"]) == {"arms", "curve"}


def test_pairs_of_other_requests_are_measured_again(tiny, text, invoke, tmp_path, monkeypatch):
    """Their case is named by its context: what one number of requests took is not kept for another."""
    tiny(Ours())
    asked = []

    def measured(bench, stage, case):
        asked.append((stage, case))
        times = {"step_us": 2.0, "step_us_low": 1.0, "step_us_high": 3.0}
        requests = bench._ground.options.requests[-1]
        return {"requests": requests, "context": int(case), "tiers": {"8": {"default": times}}}

    monkeypatch.setattr(endtoend._Bench, "measure", measured)
    for requests in (1, 1, 2):
        found = invoke(
            *("bench", "endtoend", "--device", "cpu", "--requests", requests, "--repeat", 1),
            *("--stage", "paired", "--out", tmp_path / "out"),
        )
        assert found.exit_code == 0, found.stderr
    assert asked == 2 * [("paired", "32"), ("paired", "64")]


def test_one_stage_of_the_real_decoder(tiny, text, invoke, tmp_path):
    """The cheapest case of the command line: tiny sizes, one request, its curve."""
    tiny(Ours())
    found = invoke(
        *("bench", "endtoend", "--device", "cpu", "--requests", 1, "--repeat", 1),
        *("--stage", "curve", "--out", tmp_path / "out"),
    )
    assert found.exit_code == 0, found.stderr
    kept = json.loads((tmp_path / "out" / "endtoend.json").read_text())
    assert [point["tokens"] for point in kept["stages"]["curve"]["1"]["points"]] == list(range(1, 9))
    assert kept["identity"]["model"]["layers"] == 2


def test_a_case_that_fails_leaves_the_others(tiny, text, invoke, tmp_path, monkeypatch):
    """One size cannot be measured: the other one is kept, and the command ends with the failure."""

    def measure(bench, stage, case):
        if case == "1":
            raise WrongValueError("seven differs from eight", arrived=7, allowed="8", remedy="count")
        return {"points": []}

    monkeypatch.setattr(endtoend._Bench, "measure", measure)
    tiny(Ours())
    found = invoke("bench", "endtoend", "--device", "cpu", "--stage", "curve", "--out", tmp_path / "out")
    assert found.exit_code == 1
    assert "seven differs" in found.stderr
    assert set(json.loads((tmp_path / "out" / "endtoend.json").read_text())["stages"]["curve"]) == {"4"}


def test_an_unknown_stage_is_refused(bench):
    found = bench("--stage", "arm")
    assert found.exit_code == 3
    assert "arms" in found.stderr


def test_all_leaves_it_out(tiny, invoke):
    """It would take minutes; it is listed, and runs when it is named."""
    tiny(Ours())
    assert "endtoend" in invoke("bench").stdout
    chosen = _chosen("all", discover()[1], doctor(device="cpu").capability)
    assert "endtoend" not in {entry.descriptor.name for entry in chosen}


def test_shares_leave_what_is_beside_the_model(deck, priced):
    """A step less the model, round by round, at both budgets."""
    graphs = BodyGraphs(deck)
    graphs.capture()
    found = measure_shares(deck, graphs, priced)["budgets"]
    assert found.keys() == {"12", "21"}
    for one in found.values():
        assert one["model_us"] > 0
        for name in ("ours", "baseline"):
            beside = one[name]["step_us"] - one["model_us"]
            assert one[name]["beside_model_us"] == pytest.approx(beside, rel=1e-3, abs=one["model_us"])
            assert one[name]["share"] == one[name]["beside_model_us"] / one[name]["step_us"]


def test_a_step_that_no_graph_serves_is_refused(deck):
    """A prefill token beside the requests: no captured decode step holds one."""
    state = deck.next_state(K)
    plan = plain_manager(deck, "fixed").plan(state)
    beside = replace(plan, certain_tokens=4, tokens=plan.tokens + 1, tier=plan.tier + 1)
    with pytest.raises(EngineError, match="no captured size"):
        deck.launch(state, beside, None, 0.0)
    assert len(deck.flight) == 0
