"""``adaverify bench`` at toy sizes on a CPU: right values are timed, wrong ones are not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from adaverify import session
from adaverify.bench import assign, plan, relay, step
from adaverify.bench.timing import DeviceTimer
from adaverify_contracts import (
    ModelFileError,
    hookimpl,
)
from adaverify_engine.results import ResultRing
from adaverify_metadata import FlattenRowBuilder
from adaverify_runtime.staging import StaticInputs
from adaverify_verification import CpuRelay

NAMES = ("metadata", "plan", "assign", "relay", "capture", "step")


TOY = ("--device", "cpu", "--repeat", 1, "--requests", 2, "--steps", 4)


class OwnBenchmarks:
    """Registers ours as the entry point does."""

    @hookimpl
    def adaverify_register_benchmarks(self):
        from adaverify.hooks import adaverify_register_benchmarks

        return adaverify_register_benchmarks()


@pytest.fixture
def few_calls(monkeypatch):
    """One call a round: a test wants the path, not the time."""
    monkeypatch.setattr(
        "adaverify.commands.bench.DeviceTimer", lambda device, rounds: DeviceTimer(device, rounds, 1)
    )


@pytest.fixture
def ours(tiny, few_calls):
    """Our benchmarks with the tiny model, and a function that adds plugins."""
    tiny(OwnBenchmarks())
    return lambda *plugins: tiny(OwnBenchmarks(), *plugins)


def wrong_rows(monkeypatch):
    right = FlattenRowBuilder.build

    def wrong(self, batch):
        rows = right(self, batch)
        rows.row_lens[-1, -1] += 1
        return rows

    monkeypatch.setattr(FlattenRowBuilder, "build", wrong)


def wrong_assigner(monkeypatch):
    right = assign.Assigner.assign

    def wrong(self, *arguments):
        found = right(self, *arguments)
        found.token_offset[-1] += 1
        return found

    monkeypatch.setattr(assign.Assigner, "assign", wrong)


def wrong_relay(monkeypatch):
    right = relay.make_relay

    def wrong(*arguments):
        made = right(*arguments)
        latest = made.latest

        def stale(at_most=None):
            found = latest(at_most)
            return None if found is None else replace(found, confidences=found.confidences + 1)

        made.latest = stale
        return made

    monkeypatch.setattr(relay, "make_relay", wrong)


def wrong_plan(monkeypatch):
    right = plan.VerificationManager.plan
    monkeypatch.setattr(
        plan.VerificationManager, "plan", lambda self, state: replace(right(self, state), budget=0, tokens=2)
    )


def wrong_capture(monkeypatch):
    right = ResultRing.take

    def wrong(self, index, rows):
        found = right(self, index, rows)
        return replace(found, tokens=found.tokens ^ 1)

    monkeypatch.setattr(ResultRing, "take", wrong)


def wrong_step(monkeypatch):
    right = step.compare

    def wrong(engines, prompts, *arguments, **named):
        engines["adaptive"].add(prompts[0])
        engines["adaptive"].run()
        found = right(engines, prompts, *arguments, **named)
        found.results["adaptive"].stats["verified"] += 1
        return found

    monkeypatch.setattr(step, "compare", wrong)


WRONG = {
    "metadata": wrong_rows,
    "plan": wrong_plan,
    "assign": wrong_assigner,
    "relay": wrong_relay,
    "capture": wrong_capture,
    "step": wrong_step,
}


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_checks_and_times_at_toy_size(name, ours, invoke, tmp_path):
    """The JSON names device, versions, command, data and checks; every row has a figure."""
    found = invoke("bench", name, *TOY, "--json", tmp_path / "found.json")
    assert found.exit_code == 0, found.output
    value = json.loads((tmp_path / "found.json").read_text())
    setup = value["setup"]
    assert setup["device"] == "cpu" and setup["device_name"] and setup["torch"] == torch.__version__
    assert setup["clocks_before"] is None and setup["clocks_after"] is None
    assert setup["command"] and setup["packages"] is not None and "commit" in setup
    (one,) = value["benchmarks"]
    assert one["name"] == name and one["measured"] and one["reason"] is None
    assert one["checks"] and one["data"] and one["cache"]
    figure = {"step": "step_us", "capture": "seconds", "relay": "loaded_us"}.get(name, "host_us")
    assert all(row[figure] > 0 for row in one["rows"])
    assert {row["variant"] for row in one["rows"]} >= {"ours"} or name in ("step", "capture")
    assert set(one["units"]) == set(one["rows"][0])
    # A CPU has no device time, and says so by null.
    assert all(row.get("gpu_us") is None for row in one["rows"])
    assert "checked:" in found.stdout and "gpu us" not in found.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_kernel_is_refused_before_any_time(name, ours, invoke, monkeypatch, tmp_path):
    """The exit code is 1, the difference is named, and neither table nor JSON holds a time."""
    WRONG[name](monkeypatch)
    monkeypatch.setattr(DeviceTimer, "time", _never)
    monkeypatch.setattr(DeviceTimer, "under_load", _never)
    monkeypatch.setattr(step, "_measure", _never)
    found = invoke("bench", name, *TOY, "--json", tmp_path / "found.json")
    assert found.exit_code == 1
    assert "WrongValueError" in found.stderr
    (one,) = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    assert one["measured"] is False and "rows" not in one
    assert "wrong values" in one["reason"]


def _never(*arguments, **named):
    raise AssertionError("a time was taken of a kernel that is wrong")


def test_a_digest_that_changes_plans_is_refused(ours, invoke, monkeypatch):
    """Preparing must change nothing: a plan that knows less after it is not timed."""
    monkeypatch.setattr(plan.VerificationManager, "prepare", lambda self: self._relay.close() or True)
    monkeypatch.setattr(DeviceTimer, "time", _never)
    found = invoke("bench", "plan", *TOY)
    assert found.exit_code == 1 and "after prepare" in " ".join(found.stderr.split())


@pytest.fixture
def found_rows(ours, invoke):
    """Return a function that runs one benchmark at toy size and hands back its JSON."""

    def run(name, *arguments):
        found = invoke("bench", name, *TOY, *arguments, "--json", "-")
        assert found.exit_code == 0, found.stderr
        return json.loads(found.stdout)["benchmarks"][0]

    return run


def test_metadata_holds_ragged_strategies_against_the_uniform_one_on_the_same_batch(found_rows):
    """Full batches go through both; ratio and mean can be read off one table."""
    one = found_rows("metadata", "--requests", 3)
    assert one["facts"]["own_uniform"] == "uniform" and "reference" in one["facts"]["strategies"]
    rows = {(r["strategy"], r["batch"], r["requests"]): r for r in one["rows"] if r["variant"] == "ours"}
    kinds = (("reference", "full"), ("reference", "ragged"), ("uniform", "full"))
    assert set(rows) == {(*kind, size) for kind in kinds for size in (2, 3, "mean")}
    ragged, uniform = rows["reference", "full", 2], rows["uniform", "full", 2]
    assert ragged["tokens"] == uniform["tokens"] == 16
    expected = uniform["host_us"] / ragged["host_us"]
    assert ragged["host_uniform_ratio"] == pytest.approx(expected, rel=1e-3)
    assert uniform["host_uniform_ratio"] == 1.0
    assert rows["reference", "ragged", 2]["host_uniform_ratio"] is None
    mean = rows["reference", "full", "mean"]["host_us"]
    assert mean == pytest.approx((ragged["host_us"] + rows["reference", "full", 3]["host_us"]) / 2, abs=0.01)


def test_step_times_captured_steps(found_rows):
    """Both engines replay; host work and what of it is not hidden stand beside the time."""
    one = found_rows("step")
    assert one["facts"]["captured"] is True
    assert set(one["facts"]["host"]["2"]) == {"adaptive", "fixed"}
    adaptive, fixed = one["rows"]
    assert adaptive["block_ratio_low"] <= adaptive["block_ratio"] <= adaptive["block_ratio_high"]
    assert fixed["block_ratio"] is None
    # Nothing runs ahead on a CPU: a replay is the step itself.
    assert all(row["host_work_us"] is None and row["unhidden_share"] is None for row in one["rows"])
    assert all(host["phase_us"]["plan"] > 0 for host in one["facts"]["host"]["2"].values())
    assert any("launches are not counted" in check for check in one["checks"])


def test_plan_times_prepared_plans_and_what_preparing_takes(found_rows):
    """Nothing is hidden: the work that a prepared plan finds done has a row of its own."""
    one = found_rows("plan")
    rows = {(row["variant"], row["tiers"]): row["host_us"] for row in one["rows"]}
    for tiers in ("none", "each 8 tokens"):
        for name in ("ours", "prepared", "prepared, a step late", "prepare", "nothing new"):
            assert rows[name, tiers] > 0


def test_assign_and_relay_have_the_share_of_a_captured_step(found_rows):
    for name, variant in (("assign", "captured step"), ("relay", "in a graph")):
        one = found_rows(name)
        rows = {row["variant"]: row for row in one["rows"]}
        assert rows[variant]["host_us"] > 0
        assert any(variant in check for check in one["checks"])


def test_a_send_into_the_wrong_entry_is_refused(ours, invoke, monkeypatch):
    """A replay whose send does not arrive must not be timed."""
    monkeypatch.setattr(CpuRelay, "send", lambda self, confidences, entry: None)
    for name in ("relay", "assign"):
        found = invoke("bench", name, *TOY)
        assert found.exit_code == 1 and "WrongValueError" in found.stderr


def test_a_command_that_names_another_budget_is_refused(ours, invoke, monkeypatch):
    right = StaticInputs.command
    monkeypatch.setattr(
        StaticInputs, "command", lambda self, budget, *rest: right(self, max(0, budget - 1), *rest)
    )
    found = invoke("bench", "assign", *TOY)
    assert found.exit_code == 1 and "budget" in found.stderr


def test_a_ladder_that_lacks_a_size_is_refused(ours, invoke, monkeypatch):
    """Times of an incomplete ladder would be too short."""

    def fails(self, run):
        raise RuntimeError("no room")

    monkeypatch.setattr("adaverify_graphs.EagerBackend.capture", fails)
    found = invoke("bench", "capture", *TOY)
    assert found.exit_code == 1 and "were not captured" in " ".join(found.stderr.split())


def test_step_says_when_the_tiny_model_stands_in(tiny, few_calls, invoke):
    """The default model cannot be had: a note says so. A model that was named is never replaced."""

    def unavailable(options):
        raise ModelFileError("offline, and no file is here")

    tiny(OwnBenchmarks(), load=unavailable)
    found = invoke("bench", "step", *TOY, "--offline", "--json", "-")
    assert found.exit_code == 0, found.stderr
    (one,) = json.loads(found.stdout)["benchmarks"]
    assert any("tiny test model stood in" in note for note in one["notes"])
    assert one["facts"]["model"] == "tiny"
    assert invoke("bench", "step", *TOY, "--model", session.MODEL).exit_code == 3


def test_a_setting_that_nobody_reads_is_said(invoke, monkeypatch):
    """Not beside the result: what a script reads stays what it was."""
    monkeypatch.setenv("ADAVERIFY_SPARSE_MOE_LAYRES", "2")
    result = invoke("bench")
    assert result.exit_code == 0
    assert "ADAVERIFY_SPARSE_MOE_LAYRES is set and no setting reads it" in result.stderr
    assert "LAYRES" not in result.stdout
