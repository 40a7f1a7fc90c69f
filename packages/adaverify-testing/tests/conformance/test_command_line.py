"""``pytest --adaverify-conformance NAME`` in a folder of its own, with plugins found by entry point."""

from __future__ import annotations

import json
import os

import pytest

from adaverify_capability import probe
from adaverify_testing.conformance.checks import CHECKS
from adaverify_testing.conformance.discovery import discover

pytest_plugins = ("pytester",)

PLUGIN = """
from dataclasses import replace
import torch
from adaverify_contracts import DecodeStrategyDescriptor, GraphSupport, Requirements, hookimpl
from adaverify_reference import hooks as reference

good, uniform = reference.adaverify_register_decode_strategies()

def broken(limits, device, capability):
    builder = good.allocate(limits, device, capability)
    original = builder._write_reference
    def write(batch, views):
        original(batch, views)
        views.row_lens.add_(1)
    builder._write_reference = write
    builder._strategy = "birch-broken"
    return builder

def named(limits, device, capability):
    builder = good.allocate(limits, device, capability)
    builder._strategy = "birch"
    return builder

@hookimpl
def adaverify_register_decode_strategies():
    far = Requirements(device_types=("cuda",), architectures=("sm100",), kernels=("birch-kernel",))
    return (
        replace(good, name="birch", allocate=named),
        replace(good, name="birch-broken", allocate=broken),
        replace(good, name="birch-far", requirements=far, allocate=named),
    )
"""


@pytest.fixture(scope="module")
def loaded_once():
    """Import torch and every plugin before the sessions in this process, which forget their imports."""
    found = discover()
    probe("cpu", found.probes)
    assert CHECKS


@pytest.fixture
def folder(pytester, monkeypatch, request, loaded_once):
    """An empty folder; beside it a plugin seen as an installed one is, and one that cannot load."""
    site = pytester.mkdir("site")
    (site / "birch_hooks.py").write_text(PLUGIN, encoding="utf-8")
    (site / "rotten_hooks.py").write_text("raise RuntimeError('no Rotten driver')\n", encoding="utf-8")
    for name in ("birch", "rotten"):
        info = site / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8"
        )
        text = f"[adaverify]\n{name} = {name}_hooks\n"
        (info / "entry_points.txt").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    paths = filter(None, [str(site), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    loaded = {getattr(plugin, "__name__", "") for plugin in request.config.pluginmanager.get_plugins()}
    by_entry_point = any(point.group == "pytest11" for point in _own_entry_points())
    given = (
        [] if "adaverify_testing.plugin" in loaded or by_entry_point else ["-p", "adaverify_testing.plugin"]
    )
    work = pytester.mkdir("work")
    monkeypatch.chdir(work)

    def run(*arguments, child=False):
        start = pytester.runpytest_subprocess if child else pytester.runpytest_inprocess
        return start(*given, "-p", "no:cacheprovider", "--rootdir", str(work), *arguments)

    run.work = work
    return run


def _own_entry_points():
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("adaverify-testing").entry_points
    except PackageNotFoundError:
        return ()


def test_a_strategy_passes_in_an_empty_folder(folder):
    """No test file is needed; the summary has counts, device and latency, the file every outcome."""
    result = folder(
        "--adaverify-conformance", "birch", "--adaverify-conformance-json", "out.json", child=True
    )
    assert result.ret == 0, result.stdout.str()
    result.assert_outcomes(passed=17)
    result.stdout.fnmatch_lines(
        ["birch (birch 1.2) on cpu, cpu: 17 passed; build * us for 32 tokens, median"]
    )
    document = json.loads((folder.work / "out.json").read_text(encoding="utf-8"))
    assert document["version"] == 1
    assert len(document["outcomes"]) == 17
    assert {item["status"] for item in document["outcomes"]} == {"passed"}
    assert document["outcomes"][-1]["numbers"]["median_us"] > 0


def test_a_broken_strategy_fails_with_the_kit_s_words(folder):
    """The exit code is pytest's for failures, the text names field, values and contract, and no traceback."""
    result = folder("--adaverify-conformance", "birch-broken", "-k", "row_semantics or dtypes")
    assert result.ret == 1
    result.assert_outcomes(failed=1, passed=1, deselected=15)
    result.stdout.fnmatch_lines(["*birch-broken: row_semantics*", "row_lens*got *expected *", "*contract: *"])
    assert "Traceback" not in result.stdout.str()


def test_several_names_and_test_files(folder):
    """The option repeats; named test files run as well, others do not."""
    (folder.work / "test_mine.py").write_text("def test_mine(): pass\n", encoding="utf-8")
    only = ("-k", "requirements or test_mine")
    both = ("--adaverify-conformance", "birch", "--adaverify-conformance", "birch-broken")
    folder(*both, *only).assert_outcomes(passed=2, deselected=32)
    folder(*both, *only, "test_mine.py").assert_outcomes(passed=3, deselected=32)


def test_an_unknown_name_lists_what_was_discovered(folder):
    """A usage error, with owners, and with the plugin that could not be loaded."""
    result = folder("--adaverify-conformance", "brich")
    assert result.ret == 4
    text = result.stderr.str()
    for word in (
        "'brich'",
        "birch (birch 1.2)",
        "birch-broken",
        "plugin rotten was not loaded: RuntimeError",
    ):
        assert word in text, text


def test_a_plugin_that_could_not_be_loaded_says_so_first(folder):
    """Its name is known: the reason with the line, and not a list of other names."""
    result = folder("--adaverify-conformance", "rotten")
    assert result.ret == 4
    text = result.stderr.str()
    assert "plugin 'rotten' is installed and was not loaded: RuntimeError: no Rotten driver" in text
    assert "rotten_hooks.py:1" in text
    assert text.index("no Rotten driver") < text.index("birch")


def test_one_reason_is_told_once(folder):
    """Sixteen checks that cannot run share a line."""
    result = folder("--adaverify-conformance", "birch-far")
    result.stdout.fnmatch_lines(
        ["  16 checks could not run for this reason: the check 'requirements' failed"]
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--adaverify-conformance", "birch", "--adaverify-assume", "sm999"), "sm999"),
        (("--adaverify-conformance", "birch", "--adaverify-device", "tpu"), "device 'tpu' is not here"),
        (("--adaverify-assume", "sm90"), "needs --adaverify-conformance NAME"),
        (
            ("--adaverify-conformance", "birch", "--adaverify-conformance-json", "nowhere/out.json"),
            "no folder that exists",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_usage_errors(folder, arguments, says):
    """An unknown architecture, an unknown device, an option without a strategy, a file without a folder."""
    result = folder(*arguments)
    assert result.ret == 4
    assert says in result.stderr.str()


def test_an_unmet_requirement_fails_unless_it_is_assumed(folder):
    """Every reason is listed; an injected capability lets the same strategy be judged, and is reported."""
    result = folder("--adaverify-conformance", "birch-far")
    assert result.ret == 1
    result.assert_outcomes(failed=1, skipped=16)
    for word in ("device type is cpu, needs cuda", "needs sm100", "birch-kernel", "--adaverify-assume"):
        assert word in result.stdout.str()
    assumed = folder(
        "--adaverify-conformance", "birch-far", "--adaverify-assume", "sm100", "-k", "requirements"
    )
    assumed.assert_outcomes(passed=1, deselected=16)
    assumed.stdout.fnmatch_lines(["birch-far (birch 1.2) on cpu, sm100, assumed: 1 passed"])


def test_nothing_judged_is_never_a_pass(folder):
    """Deselecting every check fails, also when the user's own tests pass."""
    (folder.work / "test_mine.py").write_text("def test_mine(): pass\n", encoding="utf-8")
    result = folder("--adaverify-conformance", "birch", "-k", "test_mine", "test_mine.py")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["birch (birch 1.2): NOT JUDGED, no check ran; this is a failure"])
    assert folder("--adaverify-conformance", "birch", "-k", "nothing_like_it").ret != 0


def test_without_the_option_nothing_is_added(folder):
    """A session that does not ask for the kit is as it was."""
    (folder.work / "test_mine.py").write_text("def test_mine(): pass\n", encoding="utf-8")
    result = folder()
    result.assert_outcomes(passed=1)
    assert "conformance" not in result.stdout.str()
