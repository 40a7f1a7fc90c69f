"""The whole step over recorded truth, at toy sizes on a CPU: arms, oracles, the published arrangement."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify.bench.endtoend import paired, sources
from adaverify.bench.endtoend import run as endtoend
from adaverify.bench.endtoend.arms import Adaptive, Fixed, Oracle, OurSteps, plain_manager
from adaverify.bench.endtoend.arms_stage import make_arms
from adaverify.bench.endtoend.baseline import BaselineSteps, BodyGraphs, _admit
from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.deck import Curve, Deck, wanted_tiers
from adaverify.bench.endtoend.gaps import measure_gaps
from adaverify.bench.endtoend.ground import Ground, open_ground
from adaverify.bench.endtoend.ladders import captured_sizes, mean_padding, measure_capture
from adaverify.bench.endtoend.oracle import best_budget
from adaverify.bench.endtoend.proof import gaps
from adaverify.bench.endtoend.rounds import check_arm, run_round
from adaverify.bench.endtoend.row_costs import row_cost_facts
from adaverify.bench.endtoend.shares import measure_shares
from adaverify.bench.endtoend.stamps import CAPACITY, MODEL_BEGINS, MODEL_ENDS, Stamps, model_and_beside
from adaverify.bench.endtoend.store import Store
from adaverify.bench.endtoend.text import Cursors, Text
from adaverify.bench.timing import DeviceTimer
from adaverify.commands.bench import _chosen
from adaverify.hooks import adaverify_register_benchmarks
from adaverify.session import discover
from adaverify_contracts import (
    AdaverifyError,
    BenchmarkOptions,
    CapabilityError,
    DecodeBatch,
    EngineError,
    LimitsError,
    WrongValueError,
    hookimpl,
)
from adaverify_metadata import FlattenRowBuilder
from adaverify_replay.simulate import best_admitted
from adaverify_runtime import doctor
from adaverify_runtime.row_choice import RowChoice, RowCostTable
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
        "published-fixed", "published", "published-ahead",
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
    assert verified["published-fixed"] == 21
    for name in ("adaptive", "oracle", "oracle-budget", "published", "published-ahead"):
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
    path.write_text(path.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(AdaverifyError, match="version 1"):
        Store(path, {"device": "a"})
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
    assert len(arms) == 14
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


def test_pairs_of_other_requests_are_cases_of_their_own(tiny, text, invoke, tmp_path, monkeypatch):
    """What one number of requests took is not kept for another, and each stays beside the others."""
    tiny(Ours())
    asked = []

    def measured(ground, requests, context):
        asked.append((requests, context))
        times = {"step_us": 2.0, "step_us_low": 1.0, "step_us_high": 3.0}
        return {"requests": requests, "context": context, "tiers": {"8": {"default": times}}}

    monkeypatch.setattr(paired, "measure_paired", measured)
    for requests in (1, 1, 2):
        found = invoke(
            *("bench", "endtoend", "--device", "cpu", "--requests", requests, "--repeat", 1),
            *("--stage", "paired", "--out", tmp_path / "out"),
        )
        assert found.exit_code == 0, found.stderr
    assert asked == [(1, 32), (1, 64), (2, 32), (2, 64)]
    kept = json.loads((tmp_path / "out" / "endtoend.json").read_text())["stages"]["paired"]
    assert list(kept) == ["1 x 32", "1 x 64", "2 x 32", "2 x 64"]


def test_whole_steps_choose_the_rows_of_the_runtime(ground, tmp_path):
    """Pairs win at the long context, and of two batches of one size the one where they lost counts."""

    def case(count, context, flat, pair):
        times = {
            name: {"step_us": step, "step_us_low": step - 1.0, "step_us_high": step + 1.0}
            for name, step in (("flatten", flat), ("paired", pair))
        }
        return {
            "requests": count,
            "context": context,
            "tiers": {"8": {**times, "ratio": {"median": flat / pair}}},
        }

    store = Store(tmp_path / "endtoend.json", {})
    for count, context, flat, pair in ((1, 64, 100.0, 90.0), (2, 64, 100.0, 120.0), (1, 4096, 100.0, 80.0)):
        store.keep("paired", f"{count} x {context}", case(count, context, flat, pair))
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"benchmarks": [{"facts": row_cost_facts(store, ground)}]}))
    device = ground.options.capability.device_name
    table = RowCostTable.load(report, {"device": device, "page_size": 4})
    choice = RowChoice(table, "flatten", ["paired"])
    assert choice.choose(8, 4096).strategy == "paired"
    assert choice.choose(8, 64).strategy == "flatten"
    assert choice.choose(8, 1000).strategy == "flatten"


def test_without_pairs_there_are_no_row_costs(ground, tmp_path):
    store = Store(tmp_path / "endtoend.json", {})
    assert row_cost_facts(store, ground) == {}
    store.keep("paired", "1 x 64", {"context": 64, "tiers": {"8": {"default": {"step_us": 1.0}}}})
    assert row_cost_facts(store, ground) == {}


def test_a_batch_that_the_device_cannot_hold_is_refused_before_anything_is_made(ground, monkeypatch):
    """With the number of requests that it could hold; a device that can hold it says how much is needed."""
    needed = paired.require_room(ground, 4, 64)
    options = ground.options
    for memory, allowed in ((int(needed / 0.9) + 1, True), (int(needed / 0.9) - 1000, False)):
        capability = replace(options.capability, memory_bytes=memory)
        sized = replace(ground, options=replace(options, capability=capability))
        if allowed:
            assert paired.require_room(sized, 4, 64) == needed
            continue
        monkeypatch.setattr(Ground, "body", lambda *_: pytest.fail("something was made"))
        with pytest.raises(LimitsError, match="at most 3 requests"):
            paired.measure_paired(sized, 4, 64)


@pytest.mark.parametrize(("requests", "sizes"), [(2, (8, 16)), (64, tuple(range(16, 513, 16)))])
def test_a_ladder_to_capture_is_evenly_spaced(requests, sizes):
    assert captured_sizes(requests, K) == sizes


def test_capturing_names_what_it_took(ground):
    """Both levels over the same sizes; on a CPU nothing is held."""
    found = measure_capture(ground, 2)
    assert found["sizes"] == [8, 16]
    for name in ("fixed", "adaptive"):
        assert found[name]["graphs"] == 2
        assert 0 < found[name]["seconds_low"] <= found[name]["seconds"] <= found[name]["seconds_high"]
        assert found[name]["held_bytes"] == found[name]["reserved_bytes"] == 0
    assert found["held_ratio"] is None


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


def test_shares_time_each_arrangement_around_its_own_model(deck):
    """Model and rest make a step, in every arrangement, at both budgets."""
    points = [{"tokens": tier, "seconds": 1e-3 * (1 + 0.2 * tier)} for tier in deck.tiers]
    found = measure_shares(deck, {"points": points})["budgets"]
    assert found.keys() == {"12", "21"}
    for one in found.values():
        for name in ("ours", "published", "published-ahead"):
            own = one[name]
            assert own["model_us"] > 0
            assert own["beside_model_us"] > 0
            assert own["share"] == own["beside_model_us"] / own["step_us"]
        for name in ("published", "published-ahead"):
            assert one[name]["step_ratio"]["low"] <= one[name]["step_ratio"]["median"]


def test_the_model_ends_before_what_is_beside_it_begins():
    """Three steps by hand, the first of which does not count."""
    stamps = Stamps(torch.device("cpu"))
    for place, times in ((MODEL_BEGINS, (0, 20, 50)), (MODEL_ENDS, (10, 35, 70))):
        stamps._times[place, :3] = 1000 * torch.tensor(times)
        stamps._counts[place] = 3
    model, beside = model_and_beside(stamps, 1)
    assert model.tolist() == [15.0]
    assert beside.tolist() == [15.0]


def test_more_marks_than_are_kept_are_refused():
    stamps = Stamps(torch.device("cpu"))
    stamps._counts[0] = CAPACITY + 1
    with pytest.raises(WrongValueError, match="more steps were marked"):
        stamps.read(0)


def test_a_clock_that_nothing_reads_is_refused():
    with pytest.raises(CapabilityError, match="clock cannot be read"):
        Stamps(torch.device("meta"))


def test_the_stretch_between_steps_is_measured_without_a_profiler(deck):
    """Marks at both ends of whole steps, and around the model within."""
    points = [{"tokens": tier, "seconds": 1e-3 * (1 + 0.2 * tier)} for tier in deck.tiers]
    found = measure_gaps(deck, table_of(deck, {"points": points}))
    assert found["steps"] == 8
    assert 0 < found["gap_us"] <= found["gap_us_p95"] <= found["longest_gap_us"]
    assert found["before_model_us"] + found["behind_model_us"] < found["inside_us"]
    assert found["launch_us"] > 0


def test_the_published_arrangement_waits_for_the_drafts_it_verifies(deck, priced):
    """One step at a time, each budget from the confidences of the drafts that it is for."""
    graphs = BodyGraphs(deck)
    graphs.capture()
    steps = BaselineSteps(deck, graphs, priced, waits=True)
    text = deck.ground.text
    cursors = Cursors(text, text.starts(3, 0))
    steps.open(text.starts(3, 0))
    for _ in range(6):
        steps.launch()
        assert len(steps) == steps.ahead == 1
        cursors.advance(steps.land().admitted)
        for row, scores in enumerate(cursors.scores):
            expected = torch.sigmoid(torch.from_numpy(scores)).numpy()
            assert np.array_equal(steps._known[f"request-{row}"], expected)


def test_a_step_that_no_graph_serves_is_refused(deck):
    """A prefill token beside the requests: no captured decode step holds one."""
    state = deck.next_state(K)
    plan = plain_manager(deck, "fixed").plan(state)
    beside = replace(plan, certain_tokens=4, tokens=plan.tokens + 1, tier=plan.tier + 1)
    with pytest.raises(EngineError, match="no captured size"):
        deck.launch(state, beside, None, 0.0)
    assert len(deck.flight) == 0
