"""``adaverify bench`` at toy sizes on a CPU: right values are timed, wrong ones are not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from adaverify import session
from adaverify.bench import assign, capture, metadata, plan, relay, step, surroundings
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
from adaverify_metadata import FlattenRowBuilder

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


def wrong_rows():
    class Wrong(FlattenRowBuilder):
        def build(self, batch):
            rows = super().build(batch)
            rows.row_lens[-1, -1] += 1
            return rows

    return Wrong, metadata.flatten_rows


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
    right = capture.GraphCache.replay

    def wrong(self, key):
        rows, value = right(self, key)
        return rows, value * 1.5

    monkeypatch.setattr(capture.GraphCache, "replay", wrong)


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
    "metadata": lambda monkeypatch: monkeypatch.setitem(metadata.BUILDERS, "flatten", wrong_rows()),
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
