"""``adaverify bench`` at toy sizes on a CPU: right values are timed, wrong ones are not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from adaverify import session
from adaverify.bench import assign, plan, relay, step, surroundings
from adaverify.bench.launches import require_launches
from adaverify.bench.timing import DeviceTimer, sample
from adaverify_contracts import (
    BenchmarkColumn,
    BenchmarkDescriptor,
    BenchmarkResult,
    ModelFileError,
    Requirements,
    WrongValueError,
    hookimpl,
)
from adaverify_engine.results import ResultRing
from adaverify_metadata import FlattenRowBuilder
from adaverify_runtime.staging import StaticInputs
from adaverify_verification import CpuRelay

NAMES = ("metadata", "plan", "assign", "relay", "capture", "step")
TOY = ("--device", "cpu", "--repeat", 1, "--requests", 2, "--steps", 4)


class Bench:
    """Registers one benchmark."""

    def __init__(self, run, name="gemm", requirements=None):
        self.descriptor = BenchmarkDescriptor(name, "a product", requirements or Requirements(), run)

    @hookimpl
    def adaverify_register_benchmarks(self):
        return (self.descriptor,)


class OwnBenchmarks:
    """Registers ours as the entry point does."""

    @hookimpl
    def adaverify_register_benchmarks(self):
        from adaverify.hooks import adaverify_register_benchmarks

        return adaverify_register_benchmarks()


def result(options):
    return BenchmarkResult(
        columns=(BenchmarkColumn("variant"), BenchmarkColumn("host_us", "us")),
        rows=(("ours", 123.456),),
        checks=("seven values equal",),
        data="zeros",
        cache="warm",
    )


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


def test_assign_and_relay_have_the_share_of_a_captured_step(found_rows):
    for name, variant in (("assign", "captured step"), ("relay", "in a graph")):
        rows = {row["variant"]: row for row in found_rows(name)["rows"]}
        assert rows[variant]["host_us"] > 0
        assert any(variant in check for check in found_rows(name)["checks"])


def test_a_send_into_the_wrong_entry_is_refused(ours, invoke, monkeypatch):
    """A replay whose send does not arrive must not be timed."""
    monkeypatch.setattr(CpuRelay, "_send", lambda self, confidences, entry: None)
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


@pytest.mark.parametrize(
    "counts",
    [
        {"cudaGraphLaunch": 99},
        {"cudaGraphLaunch": 200},
        {"cudaGraphLaunch": 100, "cudaStreamSynchronize": 1},
        {"cudaGraphLaunch": 100, "cudaMemcpy": 1},
        {},
    ],
)
def test_steps_that_wait_or_are_no_single_launch_are_refused(counts):
    with pytest.raises(WrongValueError):
        require_launches(counts, 100, 100)


def test_steps_of_one_launch_pass():
    require_launches({"cudaGraphLaunch": 100, "cudaEventSynchronize": 100, "cudaMemcpyAsync": 200}, 100, 100)
    with pytest.raises(WrongValueError):
        require_launches({"cudaGraphLaunch": 60}, 60, 100)


def test_host_work_of_late_steps_is_not_hidden():
    """The share counts host time of the steps whose results lay there already."""
    steps = step.Steps()
    phases = dict.fromkeys(("draft", "plan", "forward", "accept", "observe"), 0.0)
    steps.add(50.0, phases | {"plan": 30e-6, "forward": 20e-6})
    steps.add(11.0, phases | {"plan": 10e-6, "forward": 1e-6})
    assert steps.unhidden == pytest.approx(0.25)
    assert step.Steps().unhidden == 0.0
    reading = step.Steps(read_us=15.0)
    reading.add(50.0, phases | {"plan": 30e-6, "forward": 20e-6})
    assert (reading.host[0], reading.waits[0], reading.unhidden) == pytest.approx((45.0, 5.0, 1.0))


def test_it_lists_what_there_is_and_what_runs_here(install, invoke):
    """Plugins bring their own; requirements are held against this device."""
    install(Bench(result), Bench(result, "warp", Requirements(device_types=("cuda",))))
    shown = " ".join(invoke("bench", "--device", "cpu").stdout.split())
    assert "gemm a product extra-0 yes" in shown
    assert "warp a product" in shown and "device type is cpu, needs cuda" in shown


def test_a_plugins_benchmark_runs_and_is_shown(install, invoke):
    install(Bench(result))
    found = invoke("bench", "gemm", "--device", "cpu")
    assert found.exit_code == 0
    assert "123.5" in found.stdout and "checked: seven values equal" in found.stdout


def test_json_on_standard_output_is_nothing_else(install, invoke):
    install(Bench(result))
    value = json.loads(invoke("bench", "gemm", "--device", "cpu", "--json", "-").stdout)
    assert value["benchmarks"][0]["rows"] == [{"variant": "ours", "host_us": 123.456}]


def test_all_goes_on_past_what_is_skipped_refused_or_wrong(install, invoke):
    """One wrong benchmark costs the exit code, not the others' figures."""

    def wrong(options):
        raise WrongValueError("seven differs from eight", arrived=7, allowed="8")

    def refused(options):
        raise ModelFileError("there is no model")

    plugins = Bench(wrong, "first"), Bench(refused, "second"), Bench(result, "last")
    install(*plugins, Bench(result, "warp", Requirements(device_types=("cuda",))))
    found = invoke("bench", "all", "--device", "cpu", "--json", "-")
    assert found.exit_code == 1
    by_name = {one["name"]: one for one in json.loads(found.stdout)["benchmarks"]}
    assert by_name["first"]["reason"].startswith("wrong values: seven differs from eight")
    assert by_name["second"]["reason"] == "refused: there is no model"
    assert by_name["warp"]["reason"].startswith("skipped: device type is cpu")
    assert by_name["last"]["measured"]


def test_one_that_does_not_run_here_or_does_not_exist_is_refused(install, invoke):
    install(Bench(result, "warp", Requirements(device_types=("cuda",))))
    found = invoke("bench", "warp", "--device", "cpu")
    assert found.exit_code == 3 and "needs cuda" in found.stderr
    found = invoke("bench", "nothing", "--device", "cpu")
    assert found.exit_code == 3 and "all, warp" in found.stderr


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(install, invoke, tmp_path):
    install(Bench(_never))
    found = invoke("bench", "gemm", "--device", "cpu", "--json", tmp_path / "no" / "folder.json")
    assert found.exit_code == 3 and "--json" in found.stderr


def test_a_stranger_that_raises_is_blamed(install, invoke):
    """A benchmark of a plugin that breaks is a typed error that names the plugin."""
    source = "def run(options):\n    raise KeyError('x')\n"
    namespace = {"__name__": "stranger.bench"}
    exec(compile(source, "bench.py", "exec"), namespace)
    install(Bench(namespace["run"]))
    found = invoke("bench", "gemm", "--device", "cpu")
    assert found.exit_code == 3 and "extra-0" in found.stderr


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


def test_the_timer_takes_turns_and_gives_quartiles():
    """Every variant runs in every round, in an order that rotates; on a CPU there is no device time."""
    calls = []
    timer = DeviceTimer("cpu", rounds=3, calls=1)
    times = timer.time({name: lambda name=name: calls.append(name) for name in "ab"})
    assert calls == [*"aaa", *"bbb", *"ab", *"ba", *"ab"]
    assert times["a"].host.low <= times["a"].host.median <= times["a"].host.high
    assert times["a"].gpu is None and times["a"].graph_gpu is None
    assert set(timer.under_load({"a": list})) == {"a"}
    assert sample([3.0, 1.0, 2.0]).median == 2.0
    assert sample([3.0]).high == 3.0


def test_surroundings_do_without_tools(monkeypatch):
    """No nvidia-smi, no git: the fields are null, and nothing fails."""
    monkeypatch.setattr(surroundings.shutil, "which", lambda name: None)
    assert surroundings.clocks("cuda") is None
    assert surroundings.commit() is None
    assert surroundings._output(["no-such-command-anywhere"]) is None
