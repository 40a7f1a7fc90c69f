"""Where the prices of a run come from: measured, stored and checked, rescaled or given up, always said."""

from __future__ import annotations

import json
from time import perf_counter

import pytest

from adaverify_replay import read_trace
from adaverify_verification import CostTable


@pytest.fixture(scope="module")
def measured():
    """The table that the first run stored, by name; empty before it."""
    return {}


@pytest.fixture
def stored(cold_cache, tiny, run_tiny, measured):
    """Return the path of a table that a quiet run has measured and stored, once for all tests."""
    folder = cold_cache / "cost-tables"
    if not measured:
        assert run_tiny().exit_code == 0
        (path,) = folder.iterdir()
        measured[path.name] = path.read_bytes()
    ((name, content),) = measured.items()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def outcome(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["cost_table"]


def test_a_fitting_table_is_kept(stored, run_tiny):
    """Measured once, checked at every start, never measured again; the report says all of it."""
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"], found["disturbed"]) == ("stored", True, [])
    assert found["check"]["outcome"] == "kept"
    assert found["check"]["distortion"] < found["check"]["bound"]
    assert len(found["check"]["probes"]) == 3
    assert "measuring" not in result.stderr
    shown = run_tiny().stdout
    assert f"Cost: cost table {stored}, checked: 3 points agree with each other within 0%." in shown


def test_a_slower_clock_rescales_the_table_in_memory_only(stored, run_tiny, machine):
    """All points moved by one factor: said in the JSON, with the factor, and nothing is written."""
    before = stored.read_bytes()
    machine.slow = lambda tokens, number: 1.5
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"]) == ("stored", False)
    assert found["check"]["outcome"] == "rescaled"
    assert found["check"]["factor"] == pytest.approx(1.5)
    assert "all times rescaled by 1.50" in json.loads(result.stdout)["setup"]["cost"]
    assert "measuring" not in result.stderr
    assert stored.read_bytes() == before


def test_a_wrong_shape_is_measured_anew_with_the_numbers(stored, run_tiny, machine):
    """A table measured while busy is given up at the next start and replaced (adaptive at 0.91 x fixed)."""
    before = CostTable.load(stored, None)
    machine.slow = lambda tokens, number: 1.3 if tokens == 8 else 1.0
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"]) == ("measured", True)
    assert found["check"]["outcome"] == "distorted"
    assert found["check"]["distortion"] == pytest.approx(0.3)
    said = " ".join(result.stderr.split())
    assert "the stored cost table is given up, its shape is off by 30% (15% allowed): 8 tokens" in said
    assert "measuring step times anew" in said
    assert CostTable.load(stored, None) != before
    assert outcome(run_tiny("--json"))["check"]["outcome"] == "kept"


def test_a_busy_machine_prices_this_run_only(cold_cache, tiny, run_tiny, machine):
    """Nothing is stored; standard error says so once, with the command that mends it."""
    machine.slow = lambda tokens, number: 1.0 + 0.4 * number if tokens == 4 else 1.0
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"], found["check"]) == ("measured", False, None)
    assert any("4 tokens" in line for line in found["disturbed"])
    said = " ".join(result.stderr.split())
    assert said.count("the machine was busy while step times were measured") == 1
    assert "adaverify profile --concurrency 2 --context 128 --draft-tokens 3" in said
    assert "--device cpu --dtype float32`" in said
    assert not list(cold_cache.rglob("*.json"))


def test_a_neighbour_that_slows_every_round_alike_prices_this_run_only(cold_cache, tiny, run_tiny, machine):
    """A newcomer's first run beside steady load: every point 1.2 s, no scatter, and adaptive off for good."""
    clock = perf_counter
    machine.slow = lambda tokens, number: 40.0
    machine.waits = lambda: {1: 0.9 * clock()}
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"]) == ("measured", False)
    assert all("waiting for a processor that something else held" in line for line in found["disturbed"])
    assert "the machine was busy while step times were measured" in " ".join(result.stderr.split())
    assert not list(cold_cache.rglob("*.json"))


def test_a_table_that_the_machine_outruns_is_measured_anew(stored, run_tiny, machine):
    """It was measured beside a steady neighbour that was not seen then: 40 times too slow, and flat."""
    table = CostTable.load(stored, None)
    slowest = 40 * max(seconds for *_, seconds in table.points)
    flat = [(*shape, slowest) for *shape, _ in table.points]
    CostTable.from_points(table.fingerprint, flat, draft=table.draft).save(stored)
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"], found["check"]["outcome"]) == ("measured", True, "outrun")
    assert "the stored cost table is given up, steps take 0.0" in " ".join(result.stderr.split())
    now = CostTable.load(stored, None)
    assert now.disturbed == ()
    assert max(seconds for *_, seconds in now.points) < slowest / 10
    assert outcome(run_tiny("--json"))["check"]["outcome"] == "kept"


def test_a_named_table_that_the_machine_outruns_is_rescaled_and_said(stored, run_tiny, machine, monkeypatch):
    """The user's file stays as it is; times fifty times too long would never be corrected while serving."""
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(stored))
    CostTable.load(stored, None).scaled(50.0).save(stored)
    before = stored.read_bytes()
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["kept"], found["check"]["outcome"]) == ("stored", False, "outrun")
    assert "names it, but steps take 0.02 of its times" in " ".join(result.stderr.split())
    assert "unpriced" not in json.loads(result.stdout)["modes"]["adaptive"]["counters"]
    assert stored.read_bytes() == before


def test_a_stored_table_that_says_disturbed_is_measured_anew(stored, run_tiny):
    """However it came there."""
    document = json.loads(stored.read_text())
    document["disturbed"] = ["8 tokens: 12 rounds do not agree"]
    stored.write_text(json.dumps(document))
    result = run_tiny("--json")
    assert outcome(result)["source"] == "measured"
    assert "was measured on a busy machine: 8 tokens: 12 rounds do not agree: measuring" in " ".join(
        result.stderr.split()
    )
    assert CostTable.load(stored, None).disturbed == ()


def test_a_named_table_of_another_shape_is_used_and_said(stored, run_tiny, machine, monkeypatch):
    """It is the user's: never replaced, never used in silence."""
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(stored))
    before = stored.read_bytes()
    machine.slow = lambda tokens, number: 1.3 if tokens == 8 else 1.0
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["check"]["outcome"]) == ("stored", "distorted")
    assert "is used because ADAVERIFY_PATHS_COST_TABLE names it, but its shape is off by 30%" in result.stderr
    assert stored.read_bytes() == before


def test_a_check_on_a_busy_machine_keeps_the_table_and_says_so(stored, run_tiny, machine):
    """What is measured now is worth less than what was measured in quiet."""
    before = stored.read_bytes()
    before_check = machine.runs.get(8, -1)

    def slow(tokens, number):
        return 2.0 + 0.5 * (number - before_check) if tokens == 8 else 1.0

    machine.slow = slow
    result = run_tiny("--json")
    found = outcome(result)
    assert (found["source"], found["check"]["outcome"]) == ("stored", "undecided")
    assert "the machine is too busy now to tell" in result.stderr
    assert stored.read_bytes() == before


def test_no_measure_verifies_everything_and_says_so_once(cold_cache, tiny, run_tiny, machine, caplog):
    """No step is timed, nothing is stored, and every record of the trace is unpriced."""
    result = run_tiny("--no-measure", "--json", "--trace", "t.jsonl")
    assert outcome(result)["source"] == "none"
    assert machine.runs == {}
    assert not cold_cache.exists()
    assert result.stderr.count("unpriced") == 1
    # The library's log reaches standard error where nobody configures logging.
    assert "adaptive verification is off" not in caplog.text
    assert {record.state for record in read_trace("t.jsonl")} <= {"unpriced", "idle"}
    stats = json.loads(result.stdout)["modes"]
    assert stats["adaptive"]["stats"]["verified"] == stats["adaptive"]["stats"]["drafted"]


def test_no_measure_takes_a_stored_table_as_it_is(stored, run_tiny, machine):
    """Nothing is timed, and the origin says that nothing was checked."""
    runs = dict(machine.runs)
    result = run_tiny("--no-measure", "--json")
    assert (outcome(result)["source"], outcome(result)["check"]) == ("stored", None)
    assert "not checked: --no-measure" in json.loads(result.stdout)["setup"]["cost"]
    assert machine.runs == runs


def test_a_small_job_measures_few_points_for_itself(cold_cache, tiny, run_tiny, machine):
    """At most half as many timings as the job has steps; what is left out must not serve a larger job."""
    result = run_tiny("--json", "--tokens", 8)
    assert (outcome(result)["source"], outcome(result)["kept"]) == ("measured", False)
    assert sum(number + 1 for number in machine.runs.values()) <= 3 * 2 * 2 * 8 / 2
    assert "the job is small" in " ".join(result.stderr.split())
    assert not list(cold_cache.rglob("*.json"))


def test_the_smallest_job_measures_nothing(cold_cache, tiny, run_tiny, machine):
    """A few steps cannot pay for any; the profile command is named."""
    result = run_tiny("--json", "--tokens", 1)
    assert outcome(result)["source"] == "none"
    assert machine.runs == {}
    assert "too few to measure for" in " ".join(result.stderr.split())
    assert "adaverify profile" in result.stderr
