"""The command: stages, cases that are kept, failures and refusals."""

from __future__ import annotations

import json

import pytest

from adaverify.bench.endtoend import run as endtoend
from adaverify.bench.endtoend.store import Store
from adaverify.commands.bench import _chosen
from adaverify.session import discover
from adaverify_contracts import AdaverifyError, WrongValueError
from adaverify_runtime import doctor


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
        return {"points": []}

    monkeypatch.setattr(endtoend._Bench, "measure", measure)
    found = invoke("bench", "endtoend", "--device", "cpu", "--stage", "curve", "--out", tmp_path / "out")
    assert found.exit_code == 1
    assert "seven differs" in found.stderr
    assert set(json.loads((tmp_path / "out" / "endtoend.json").read_text())["stages"]["curve"]) == {"4"}


def test_an_unknown_stage_is_refused(bench):
    found = bench("--stage", "arm")
    assert found.exit_code == 3
    assert "arms" in found.stderr


def test_all_leaves_it_out(ours, invoke):
    """It would take minutes; it is listed, and runs when it is named."""
    assert "endtoend" in invoke("bench").stdout
    chosen = _chosen("all", discover()[1], doctor(device="cpu").capability)
    assert "endtoend" not in {entry.descriptor.name for entry in chosen}


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
