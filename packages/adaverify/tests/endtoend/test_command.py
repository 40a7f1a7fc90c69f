"""``adaverify bench endtoend``: its stages, what it keeps and what it refuses."""

from __future__ import annotations

import json

import pytest

from adaverify.bench.endtoend import run as endtoend
from adaverify.commands.bench import _chosen
from adaverify.hooks import adaverify_register_benchmarks
from adaverify.session import discover
from adaverify_contracts import (
    WrongValueError,
    hookimpl,
)
from adaverify_runtime import doctor

FEW = ("--device", "cpu", "--repeat", 2, "--requests", 2, "--steps", 3)


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
