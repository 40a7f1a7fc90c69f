"""``adaverify bench`` as a command: what it lists, runs, refuses and blames."""

from __future__ import annotations

import json

from adaverify_contracts import (
    BenchmarkColumn,
    BenchmarkDescriptor,
    BenchmarkResult,
    ModelFileError,
    Requirements,
    WrongValueError,
    hookimpl,
)


class Bench:
    """Registers one benchmark."""

    def __init__(self, run, name="gemm", requirements=None):
        self.descriptor = BenchmarkDescriptor(name, "a product", requirements or Requirements(), run)

    @hookimpl
    def adaverify_register_benchmarks(self):
        return (self.descriptor,)


def result(options):
    return BenchmarkResult(
        columns=(BenchmarkColumn("variant"), BenchmarkColumn("host_us", "us")),
        rows=(("ours", 123.456),),
        checks=("seven values equal",),
        data="zeros",
        cache="warm",
    )


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
    for path in (tmp_path / "no" / "folder.json", "/dev/full"):
        found = invoke("bench", "gemm", "--device", "cpu", "--json", path)
        assert found.exit_code == 3 and "--json" in found.stderr


def test_a_file_that_cannot_be_written_is_refused_before_the_device_is_asked(install, invoke, monkeypatch):
    install()
    monkeypatch.setattr("adaverify.commands.bench.startup_report", _never)
    found = invoke("bench", "all", "--json", "/dev/full")
    assert found.exit_code == 3 and "--json" in found.stderr


def test_a_stranger_that_raises_is_blamed(install, invoke):
    """A benchmark of a plugin that breaks is a typed error that names the plugin."""
    source = "def run(options):\n    raise KeyError('x')\n"
    namespace = {"__name__": "stranger.bench"}
    exec(compile(source, "bench.py", "exec"), namespace)
    install(Bench(namespace["run"]))
    found = invoke("bench", "gemm", "--device", "cpu")
    assert found.exit_code == 3 and "extra-0" in found.stderr
