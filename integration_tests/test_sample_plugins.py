"""The sample plugins are what the command line writes, and work from built wheels as an outsider's would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from wheelhouse import COMMAND, PYTEST, CleanEnvironment, build_outsiders, unpack

from adaverify.scaffold import Kind, Project

SAMPLES = {
    "sample_plugin": Project("sample", Kind.STRATEGY),
    "sample_signal": Project("sample-signal", Kind.SIGNAL),
    "sample_policy": Project("sample-policy", Kind.POLICY),
}
LISTED = {
    "sample_plugin": ("sample", {"strategies": ["sample"]}),
    "sample_signal": ("sample-signal", {"signals": ["sample-signal"]}),
    "sample_policy": ("sample-policy", {"policies": ["sample-policy"]}),
}


@pytest.mark.parametrize("folder", SAMPLES)
def test_a_sample_is_what_the_command_writes(root, tracked, folder):
    """`adaverify plugins new` would write these files today, to the byte."""
    home = root / "integration_tests" / folder
    found = {
        path.relative_to(home).as_posix(): path.read_text(encoding="utf-8")
        for path in tracked
        if path.is_relative_to(home)
    }
    assert found == SAMPLES[folder].render()


@pytest.fixture(scope="module")
def samples(root, tmp_path_factory) -> dict[str, Path]:
    """Each sample, built outside the repository and installed into a folder of its own."""
    home = tmp_path_factory.mktemp("samples")
    for name in SAMPLES:
        shutil.copytree(root / "integration_tests" / name, home / name)
    wheels = build_outsiders([home / name for name in SAMPLES], home / "wheels")
    return {name: unpack([wheel], home / "site" / name) for name, wheel in wheels.items()}


@pytest.mark.slow
@pytest.mark.parametrize("folder", SAMPLES)
def test_a_sample_passes_its_own_tests_from_its_wheel(
    command_line: CleanEnvironment, samples, root, tmp_path, folder
):
    """The tests see the installed package: the source folder is not there."""
    for name in ("tests", "pyproject.toml"):
        copy = shutil.copytree if name == "tests" else shutil.copy
        copy(root / "integration_tests" / folder / name, tmp_path / name)
    options = ("-q", "-p", "no:cacheprovider", "-c", tmp_path / "pyproject.toml", tmp_path / "tests")
    done = command_line.call("-c", PYTEST, samples[folder], *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.slow
def test_the_sample_strategy_passes_the_kit_from_its_wheel(command_line: CleanEnvironment, samples, tmp_path):
    """Found by its entry point, probed, and judged by every check that its declaration allows."""
    report, config = tmp_path / "kit.json", tmp_path / "pytest.ini"
    config.write_text("[pytest]\n", encoding="utf-8")
    kit = ("--adaverify-conformance", "sample", "--adaverify-conformance-json", report)
    options = ("-p", "no:cacheprovider", "-c", config)
    done = command_line.call("-c", PYTEST, samples["sample_plugin"], *kit, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sample (adaverify-sample 0.1.0) on cpu, cpu: 15 passed, 2 skipped" in done.stdout
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    assert {item["status"] for item in outcomes} == {"passed", "skipped"}


@pytest.mark.slow
def test_the_samples_are_discovered_and_chosen_together(command_line: CleanEnvironment, samples):
    """All three beside ours; the strategy by its priority, signal and policy by their settings."""
    path = ":".join(map(str, samples.values()))
    listed = json.loads(command_line.call("-c", COMMAND, path, "plugins", "--json").stdout)
    found = {row["name"]: (row["outcome"], row["registered"]) for row in listed}
    for name, registered in LISTED.values():
        assert found[name] == ("loaded", registered)
    settings = {
        "ADAVERIFY_PLANNER_SIGNAL": "sample-signal",
        "ADAVERIFY_PLANNER_POLICY": "sample-policy",
        "ADAVERIFY_DEVICE_STRATEGY": "sample",
    }
    done = command_line.call("-c", COMMAND, path, "doctor", "--device", "cpu", "--json", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert "sample" in [item["name"] for item in report["strategies"] if item["chosen"]]
    assert report["problems"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_a_project_is_written_by_the_installed_command(command_line: CleanEnvironment, tmp_path, kind):
    """The templates travel in the wheel, and what it writes is what the source tree writes."""
    arguments = ("plugins", "new", "fresh", "--kind", kind.value, "--into", tmp_path)
    done = command_line.call("-c", COMMAND, tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "adaverify-fresh"
    written = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert written == Project("fresh", kind).render()
