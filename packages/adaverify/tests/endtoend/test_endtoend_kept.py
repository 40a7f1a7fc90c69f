"""What is kept: by what it was measured, what cannot have been measured, and what belongs together."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from adaverify.bench.endtoend import origins
from adaverify.bench.endtoend import run as endtoend
from adaverify.bench.endtoend.kept_check import fault_in
from adaverify.bench.endtoend.origins import Origin, origin_notes
from adaverify.bench.endtoend.said import checks_of, data_of
from adaverify.bench.endtoend.store import FORMAT, VERSION, Store
from adaverify.bench.endtoend.tables import result_of
from adaverify_contracts import AdaverifyError

TIERS = list(range(2, 17))
ORIGIN = Origin("abc", 1, None, 5)


def curve():
    points = [{"tokens": tier, "seconds": 1.0, "low": 0.5, "high": 2.0} for tier in TIERS]
    return {"requests": 2, "rounds": 3, "tiers": [1, *TIERS], "points": points}


def arm():
    times = {"step_us": 9.0, "step_us_low": 8.0, "step_us_high": 10.0}
    rates = {"tokens_per_s": 3.0, "tokens_per_s_low": 2.0, "tokens_per_s_high": 4.0}
    counts = {"verified_a_step": 0.0, "waste": 0.0, "host_us": 1.0, "accepted_length": 1.0}
    return {**times, **rates, **counts, "token_latency_us": 1.0, "tokens_per_s_rounds": [2.0, 3.0, 4.0]}


def arms():
    spread = {"low": 0.9, "median": 1.0, "high": 1.1, "total": 1.0, "total_low": 0.9, "total_high": 1.1}
    ratios = {"adaptive/fixed-7": spread, "adaptive/best": dict(spread), "best": {"drafts": 7.0}}
    arms = {"none": arm(), "fixed-7": arm(), "adaptive": arm()}
    return {"rounds": 5, "arms": arms, "ratios": ratios}


def capture():
    one = {"graphs": 2, "seconds": 0.5, "pool_bytes": None}
    ladders = [{"limit": 8, "even_padding": 0.5, "chosen_padding": 0.0}]
    return {"rounds": 3, "fixed": one, "adaptive": dict(one), "seconds_ratio": 1.0, "ladders": ladders}


def paired():
    step = {"step_us": 9.0, "step_us_low": 8.0, "step_us_high": 10.0}
    tiers = {"8": {"flatten": step, "paired": dict(step), "ratio": {"median": 1.0}}}
    return {"rounds": 5, "context": 64, "tiers": tiers}


def whole():
    return {
        "curve": {"2": curve()},
        "arms": {"2": arms()},
        "capture": {"2": capture()},
        "paired": {"1 x 64": paired()},
    }


def changed(value, place, new):
    """Return ``value`` with something else at a place, names and numbers with slashes between."""
    *path, last = [int(part) if part.isdecimal() and part not in ("2", "8") else part for part in place]
    at = value
    for part in path:
        at = at[part]
    if new is None:
        del at[last]
    else:
        at[last] = new
    return value


def test_what_was_measured_is_right():
    assert fault_in(whole()) is None


@pytest.mark.parametrize(
    ("place", "new"),
    [
        ("arms/2/arms/fixed-7", None),
        ("arms/2/arms/fixed-7", {}),
        ("arms/2/arms/adaptive/tokens_per_s", 0.0),
        ("arms/2/arms/adaptive/tokens_per_s", 10**400),
        ("arms/2/arms/adaptive/tokens_per_s_rounds", [2.0]),
        ("arms/2/arms/none/tokens_per_s_rounds/1", 0),
        ("arms/2/arms/none/waste", float("inf")),
        ("arms/2/arms/none/waste", None),
        ("arms/2/arms/none/waste", -3.0),
        ("arms/2/arms/adaptive/tokens_per_s", 3.5),
        ("arms/2/arms/adaptive/tokens_per_s_low", 3.5),
        ("arms/2/arms/adaptive/step_us_high", 8.5),
        ("arms/2/ratios/adaptive_fixed-7/median", 1.05),
        ("arms/2/ratios/adaptive_best/median", 9.9),
        ("arms/2/ratios/adaptive_best/total_low", 2.0),
        ("arms/2/ratios/adaptive_best/low", None),
        ("arms/2/ratios", []),
        ("arms/2/rounds", "five"),
        ("arms/2/measured", {"threads": 1}),
        ("arms/2/counters", {"steps": [1, float("inf")]}),
        ("curve/2/points/0/tokens", 1),
        ("curve/2/points/0/seconds", float("inf")),
        ("curve/2/points/3/low", None),
        ("curve/2/points/3", None),
        ("curve/2/tiers", None),
        ("capture/2/fixed/graphs", 0),
        ("capture/2/seconds_ratio", True),
        ("capture/2/ladders/0/limit", 1.5),
        ("paired/1 x 64/tiers/8/flatten", None),
        ("paired/1 x 64/tiers/8/ratio", None),
        ("paired/1 x 64/context", 0),
        ("curve", []),
    ],
)
def test_an_edited_figure_is_named_by_its_place(tmp_path, place, new):
    """Several of these ended in a traceback, others were drawn."""
    parts = [part.replace("adaptive_", "adaptive/") for part in place.split("/")]
    stages = changed(whole(), parts, new)
    said = fault_in(stages)
    assert said is not None
    assert all(part in said for part in parts[:2])
    path = tmp_path / "endtoend.json"
    text = json.dumps({"format": FORMAT, "version": VERSION, "identity": {}, "stages": stages})
    path.write_text(text.replace("Infinity", "1e999"))
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {})


@pytest.mark.parametrize("case", ["0", "-1", "two", "02", "2 x 64", "9" * 5000, "\u0663"], ids=ascii)
def test_a_case_of_no_requests_is_refused(case):
    assert "no case is named so" in fault_in({"curve": {case: curve()}})


def test_values_without_end_are_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert fault_in({"toys": {"1": {"x": deep}}}) == "values nested too deeply"


def test_a_file_of_no_format_is_no_results_file(tmp_path):
    (tmp_path / "endtoend.json").write_text('{"x": 1}')
    with pytest.raises(AdaverifyError, match="no results file: it names no format"):
        Store(tmp_path / "endtoend.json", {})


def test_a_curve_of_other_sizes_is_not_planned_by(bench, tmp_path):
    """It says so of itself, too: only the captured steps know better."""
    assert bench("--stage", "curve").exit_code == 0
    path = tmp_path / "out" / "endtoend.json"
    value = json.loads(path.read_text())
    one = value["stages"]["curve"]["2"]
    del one["points"][1], one["tiers"][one["tiers"].index(3)]
    path.write_text(json.dumps(value))
    found = bench("--stage", "arms")
    assert found.exit_code == 3
    assert "at other sizes than are captured" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.fixture
def fake(monkeypatch):
    """Curves and arms that are there at once, of a commit that can be changed."""
    made = {"curve": curve, "arms": arms}
    monkeypatch.setattr(endtoend._Bench, "measure", lambda bench, stage, case: made[stage]())
    monkeypatch.setattr(origins, "commit", lambda: "1" * 40)


def test_kept_figures_say_by_what_they_were_measured(bench, fake, monkeypatch):
    """Another commit shows them: theirs is kept, and said to differ."""
    assert bench("--stage", "arms", "--stage", "plot").exit_code == 0
    monkeypatch.setattr(origins, "commit", lambda: "2" * 40)
    value = json.loads(bench("--stage", "arms", "--json", "-").stdout)["benchmarks"][0]
    row = value["rows"][0]
    assert (row["commit"], row["rounds"], row["threads"]) == ("1" * 40, 5, torch.get_num_threads())
    assert [note for note in value["notes"] if "kept from another run, arms 2: commit 111111111111," in note]
    assert [note for note in value["notes"] if note.startswith("this run: commit 222222222222,")]
    assert value["checks"] == [check for check in value["checks"] if "2 when it was kept" in check]


def test_the_same_run_again_notes_nothing(bench, fake):
    for _ in range(2):
        found = bench("--stage", "arms", "--repeat", 5, "--json", "-")
        notes = json.loads(found.stdout)["benchmarks"][0]["notes"]
        assert not [note for note in notes if "kept from" in note]


def test_a_case_without_its_origin_is_not_recorded(tmp_path):
    store = Store(tmp_path / "endtoend.json", {})
    store.keep("curve", "2", {name: value for name, value in curve().items() if name != "rounds"})
    first, second = origin_notes(store, ORIGIN, set())
    assert first == ("kept from another run, curve 2: not recorded rounds, commit and threads not recorded")
    assert second == "this run: commit abc, 1 thread, 5 rounds"


@pytest.mark.parametrize(("repeat", "said"), [(3, ""), (5, ""), (2, "--again measures 2")])
def test_a_curve_has_three_rounds_at_most(repeat, said):
    words = origins.kept_words(replace(ORIGIN, repeat=repeat), "curve", curve())
    assert words.endswith(said) and bool(words) == bool(said)


def test_captures_may_have_ended_early():
    assert ORIGIN.measures("capture", {**capture(), "measured": ORIGIN.as_dict()})
    assert not replace(ORIGIN, repeat=2).measures("capture", {**capture(), "measured": ORIGIN.as_dict()})


def test_only_what_was_checked_is_said_to_be(ground, tmp_path):
    store = Store(tmp_path / "endtoend.json", {})
    store.keep("curve", "2", curve())
    (only,) = checks_of(store, {("curve", "2")})
    assert only.startswith("curve (2 in this run): steps of three sizes")
    assert "of paired" not in data_of(store, ground)
    store.keep("paired", "1 x 64", paired())
    assert "of paired, as each case names it" in data_of(store, ground)
    assert result_of(store, ground, ORIGIN, set()).checks[0].startswith("curve (2 when it was kept)")


def test_arms_of_other_steps_are_kept_apart(bench, fake):
    """FEW asks for rounds of three steps; a run that asks for none shows what is there."""
    assert bench("--stage", "arms").exit_code == 0
    found = bench("--stage", "arms", "--steps", 4)
    assert found.exit_code == 3
    assert "rounds of 3 steps kept, 4 asked for" in found.stderr
    assert bench("--stage", "arms", "--steps", 4, "--again").exit_code == 0
    assert bench("--stage", "plot", "--steps", 9).exit_code == 0


def test_settings_that_decide_figures_belong_to_them(bench, fake, monkeypatch, tmp_path):
    assert bench("--stage", "curve").exit_code == 0
    for name, value, word in (
        ("ADAVERIFY_DEVICE_STRATEGY", "reference", "strategy"),
        ("ADAVERIFY_GRAPHS_BACKEND", "bench-rerun", "graph backend"),
        ("ADAVERIFY_PLANNER_SIGNAL", "optimistic", "planner"),
        ("ADAVERIFY_PLANNER_POLICY", "other", "planner"),
        ("ADAVERIFY_PATHS_CALIBRATION", str(tmp_path / "temperatures.json"), "calibration"),
    ):
        (tmp_path / "temperatures.json").write_text('{"temperatures": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]}')
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            found = bench("--stage", "curve")
        assert found.exit_code == 3, name
        assert f"{word} " in found.stderr
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        found = bench("--stage", "curve")
    assert found.exit_code == 3
    assert "now 7" in found.stderr


def test_results_that_do_not_say_their_threads_are_shown_and_not_continued(bench, fake, tmp_path):
    assert bench("--stage", "curve").exit_code == 0
    path = tmp_path / "out" / "endtoend.json"
    value = json.loads(path.read_text())
    del value["identity"]["threads"], value["stages"]["curve"]["2"]["measured"]
    path.write_text(json.dumps(value))
    found = bench("--stage", "plot")
    assert found.exit_code == 0, found.stderr
    assert "not recorded with the results: threads" in found.stdout
    found = bench("--stage", "curve")
    assert found.exit_code == 3
    assert "threads not recorded, now" in found.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ADAVERIFY_PLANNER_SIGNAL", "nosuch"),
        ("ADAVERIFY_PLANNER_POLICY", "nosuch"),
        ("ADAVERIFY_DEVICE_STRATEGY", "nosuch"),
        ("ADAVERIFY_GRAPHS_BACKEND", "nosuch"),
        ("ADAVERIFY_PATHS_CALIBRATION", "broken.json"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_the_first_case(bench, monkeypatch, tmp_path, name, value):
    """Each case failed by itself, with a traceback."""
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setattr(endtoend._Bench, "measure", lambda *_: pytest.fail("measured"))
    monkeypatch.setenv(name, value)
    found = bench("--stage", "curve")
    assert found.exit_code == 3
    assert value in found.stderr
    assert "Traceback" not in found.stderr
