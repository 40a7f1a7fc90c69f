"""The command: stages, cases that are kept, failures and refusals."""

from __future__ import annotations

import json

import pytest

from adaverify.bench.endtoend import run as endtoend
from adaverify.bench.endtoend.store import FORMAT, VERSION, Store
from adaverify.commands.bench import _chosen
from adaverify.session import discover
from adaverify_contracts import AdaverifyError, WrongValueError
from adaverify_runtime import RowCost, RowCostTable, doctor


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


def test_one_stage_of_the_real_decoder(ours, text, invoke, tmp_path):
    """The cheapest case of the command line: tiny sizes, one request, its curve."""
    found = invoke(
        *("bench", "endtoend", "--device", "cpu", "--requests", 1, "--repeat", 1),
        *("--stage", "curve", "--out", tmp_path / "out"),
    )
    assert found.exit_code == 0, found.stderr
    kept = json.loads((tmp_path / "out" / "endtoend.json").read_text())
    assert [point["tokens"] for point in kept["stages"]["curve"]["1"]["points"]] == list(range(1, 9))
    assert kept["identity"]["model"]["layers"] == 2


def test_a_case_that_fails_leaves_the_others(ours, text, invoke, tmp_path, monkeypatch):
    """One size cannot be measured: the other one is kept, and the command ends with the failure."""

    def measure(bench, stage, case):
        if case == "1":
            raise WrongValueError("seven differs from eight", arrived=7, allowed="8", remedy="count")
        return {"points": [{"tokens": 4, "seconds": 0.1}]}

    monkeypatch.setattr(endtoend._Bench, "measure", measure)
    found = invoke("bench", "endtoend", "--device", "cpu", "--stage", "curve", "--out", tmp_path / "out")
    assert found.exit_code == 1
    assert "seven differs" in found.stderr
    assert set(json.loads((tmp_path / "out" / "endtoend.json").read_text())["stages"]["curve"]) == {"4"}


def test_an_unknown_stage_is_refused(bench):
    found = bench("--stage", "arm")
    assert found.exit_code == 3
    assert "stages of endtoend: curve, arms, shares, paired, capture, plot" in found.stderr


def test_all_leaves_it_out(ours, invoke):
    """It would take minutes; it is listed, and runs when it is named."""
    assert "endtoend" in invoke("bench").stdout
    chosen = _chosen("all", discover()[1], doctor(device="cpu").capability)
    assert "endtoend" not in {entry.descriptor.name for entry in chosen}


def test_results_of_something_else_are_refused(tmp_path):
    path = tmp_path / "endtoend.json"
    Store(path, {"device": "a"}).keep("toys", "1", {"x": 1})
    assert Store(path, {"device": "a"}).get("toys", "1") == {"x": 1}
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "b"})
    path.write_text(path.read_text().replace(f'"version": {VERSION}', '"version": 1'))
    with pytest.raises(AdaverifyError, match="version 1"):
        Store(path, {"device": "a"})
    path.write_text("{")
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "a"})


def test_two_runs_on_one_file_keep_each_others_cases(tmp_path):
    """Both opened it before either had measured anything."""
    path = tmp_path / "endtoend.json"
    left, right = Store(path, {"device": "a"}), Store(path, {"device": "a"})
    left.keep("toys", "2", {"x": 2})
    right.keep("toys", "3", {"x": 3})
    left.keep("games", "2", {"y": 2})
    kept = Store(path, {"device": "a"})
    assert kept.stage("toys") == {"2": {"x": 2}, "3": {"x": 3}}
    assert kept.get("games", "2") == {"y": 2}


POINT = {"tokens": 2, "seconds": 0.5}


@pytest.mark.parametrize(
    "stages",
    [
        [],
        {"curve": []},
        {"curve": {"2": "hello"}},
        {"curve": {"2": {}}},
        {"curve": {"2": {"points": []}}},
        {"curve": {"2": {"points": [POINT | {"seconds": -1.0}]}}},
        {"curve": {"2": {"points": [POINT | {"seconds": "fast"}]}}},
        {"curve": {"2": {"points": [POINT, POINT]}}},
    ],
    ids=str,
)
def test_an_edited_file_is_refused_by_name(tmp_path, stages):
    path = tmp_path / "endtoend.json"
    whole = {"format": FORMAT, "version": VERSION, "identity": {"device": "a"}, "stages": stages}
    path.write_text(json.dumps(whole))
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(path, {"device": "a"})


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": NaN}', "5", '{"format": 1, "version": 2}'], ids=len
)
def test_a_file_of_something_else_is_refused_by_name(tmp_path, text):
    (tmp_path / "endtoend.json").write_text(text)
    with pytest.raises(AdaverifyError, match="cannot be continued"):
        Store(tmp_path / "endtoend.json", {})


def test_a_device_in_place_of_the_file_is_not_read(tmp_path):
    """It would never end."""
    (tmp_path / "endtoend.json").symlink_to("/dev/zero")
    with pytest.raises(AdaverifyError, match="a device, a pipe"):
        Store(tmp_path / "endtoend.json", {})


def test_figures_planned_by_other_settings_are_refused(bench, monkeypatch):
    assert bench("--stage", "curve").exit_code == 0
    monkeypatch.setenv("ADAVERIFY_PLANNER_MARGIN", "0.5")
    found = bench("--stage", "curve")
    assert found.exit_code == 3
    assert "planner" in found.stderr


def test_row_costs_belong_to_the_results_and_are_read_first(bench, tmp_path, monkeypatch):
    """A file that is not there must not pass because the case is kept from before."""
    assert bench("--stage", "curve").exit_code == 0
    monkeypatch.setenv("ADAVERIFY_PATHS_ROW_COSTS", str(tmp_path / "none.json"))
    found = bench("--stage", "curve")
    assert found.exit_code == 3
    assert "no row-cost table" in found.stderr
    costs = (RowCost("flatten", 8, 48, 1e-3, 0.0), RowCost("paired", 8, 48, 2e-3, 0.0))
    RowCostTable(costs, {"device": "a test"}).save(tmp_path / "none.json")
    assert "row costs" in bench("--stage", "curve").stderr


def test_edited_figures_are_refused_where_they_are_shown(bench, tmp_path):
    assert bench("--stage", "curve", "--stage", "arms").exit_code == 0
    path = tmp_path / "out" / "endtoend.json"
    value = json.loads(path.read_text())
    value["stages"]["arms"]["2"]["arms"]["adaptive"]["tokens_per_s"] = "fast"
    path.write_text(json.dumps(value))
    found = bench("--stage", "plot")
    assert found.exit_code == 3
    assert "stage 'arms', case '2', arms, adaptive, tokens_per_s: a number" in found.stderr


def test_sizes_that_do_not_count_on_a_cpu_are_said(bench, monkeypatch):
    monkeypatch.setenv("ADAVERIFY_SPARSE_MOE_LAYERS", "3")
    assert "count on a card" in bench("--stage", "curve").stderr


def test_too_many_requests_are_refused_at_once(ours, invoke):
    found = invoke("bench", "endtoend", "--device", "cpu", "--requests", 65536, "--stage", "curve")
    assert found.exit_code == 3
    assert "1 .. 1024" in found.stderr
