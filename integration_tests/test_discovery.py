"""A new distribution is a new folder: nothing else in the workspace names it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpu
import pytest
import workspace

PLUGIN = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "adaverify-dummy"
version = "0.1.0"
"""


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy of the workspace: its own files, and of each distribution the project file and the source."""
    target = tmp_path / "workspace"
    target.mkdir()
    for name in ("pyproject.toml", "noxfile.py"):
        shutil.copy(root / name, target)
    skip = shutil.ignore_patterns("__pycache__", "tests", "benchmarks", "changelog.d", "README.md", "LICENSE")
    for name in (".ci", "packages", "plugins"):
        shutil.copytree(root / name, target / name, ignore=skip)
    return target


def add(copy: Path, kind: str, source: str = "", extra: str = "") -> Path:
    """Add the distribution adaverify-dummy with one module to the copy."""
    folder = copy / kind / "adaverify-dummy"
    package = folder / "src" / "adaverify_dummy"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PLUGIN + extra)
    (package / "__init__.py").write_text('"""A dummy."""\n' + source)
    return folder


def call(copy: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command in the copy, without this process's import path."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": "", "COLUMNS": "200", "NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def lint_imports(copy: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter as the lint session does."""
    found = workspace.discover(copy)
    config = copy / "importlinter.toml"
    config.write_text(workspace.import_linter_config(found))
    path = os.pathsep.join(workspace.python_path(found))
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return call(copy, "-c", code, str(config), "--no-cache", PYTHONPATH=path)


def test_nox_lists_a_new_plugin(copy):
    """The folder is enough for nox, which installs, tests, types and builds what it lists."""
    before = call(copy, "-m", "nox", "--list")
    assert before.returncode == 0, before.stderr
    assert "adaverify-dummy" not in before.stdout
    add(copy, "plugins")
    assert "adaverify-dummy" in call(copy, "-m", "nox", "--list").stdout


def test_every_session_says_what_it_does(copy):
    """One line of description each in the list."""
    listed = call(copy, "-m", "nox", "--list").stdout.splitlines()
    sessions = [line for line in listed if line.startswith(("* ", "- "))]
    assert len(sessions) >= 9
    assert [line for line in sessions if " -> " not in line] == []


def test_the_import_contracts_hold_for_the_copy_with_a_new_plugin(copy):
    """A plugin that imports the contracts passes, so that a failure below has one cause."""
    add(copy, "plugins", "import adaverify_contracts\n")
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("forbidden", ["adaverify_runtime", "adaverify_verification", "adaverify_reference"])
def test_a_new_plugin_may_import_the_contracts_and_the_metadata_only(copy, forbidden):
    """The direction of design section 3 holds for a plugin that no list names."""
    add(copy, "plugins", f"import {forbidden}\n")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert f"adaverify_dummy -> {forbidden}" in done.stdout


def test_no_package_may_import_a_new_plugin(copy):
    """Entry points reach a plugin; an import would make it a part of the package."""
    add(copy, "plugins")
    package = copy / "packages" / "adaverify-runtime" / "src" / "adaverify_runtime" / "__init__.py"
    package.write_text(package.read_text() + "import adaverify_dummy\n")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert "adaverify_runtime -> adaverify_dummy" in done.stdout


@pytest.mark.parametrize("sibling", ["adaverify_graphs", "adaverify_runtime"])
def test_a_new_component_imports_neither_siblings_nor_outwards(copy, sibling):
    """A package states its layer in its own project file, and the layer decides what it may import."""
    add(copy, "packages", f"import {sibling}\n", '\n[tool.adaverify]\nlayer = "component"\n')
    done = lint_imports(copy)
    assert done.returncode == 1
    assert f"adaverify_dummy -> {sibling}" in done.stdout


def test_a_package_without_a_layer_is_refused_with_what_to_do(copy):
    """The message names the file, what arrived and what is allowed."""
    add(copy, "packages", extra='\n[tool.adaverify]\nlayer = "middle"\n')
    done = call(copy, ".ci/workspace.py", "import-linter")
    assert done.returncode == 1
    assert "adaverify-dummy" in done.stderr
    assert "'middle'" in done.stderr
    assert all(layer in done.stderr for layer in workspace.LAYERS)


def test_a_folder_whose_name_is_not_the_distribution_is_refused(copy):
    """Folder, distribution and import package are one word."""
    folder = add(copy, "plugins")
    folder.rename(folder.with_name("adaverify-other"))
    message = r"project\.name is 'adaverify-dummy'.*'adaverify-other'"
    with pytest.raises(workspace.WorkspaceError, match=message):
        workspace.discover(copy)


def test_metadata_for_a_gpu_machine_shows_every_entry_point(copy, tmp_path, distributions):
    """Without an installation, the source folders and the written metadata show the same entry points."""
    workspace.write_metadata(distributions, tmp_path / "metadata")
    code = (
        "import importlib.metadata as m\n"
        "print('\\n'.join(f'{e.name} {e.value}' for e in m.entry_points(group='adaverify')))\n"
    )
    done = call(copy, "-S", "-c", code, PYTHONPATH=str(tmp_path / "metadata"))
    expected = {f"{n} {v}" for d in distributions for n, v in d.entry_points.get("adaverify", {}).items()}
    assert set(done.stdout.splitlines()) == expected
    assert expected


@pytest.mark.parametrize("arguments", [[], ["sm75"]])
def test_the_gpu_runner_names_what_it_allows(copy, arguments):
    """A marker that it does not know is refused with the ones it knows."""
    done = call(copy, ".ci/gpu.py", *arguments)
    assert done.returncode == 2
    assert "gpu, sm90, sm100" in done.stderr


def test_the_gpu_runner_says_that_there_is_no_device(copy):
    """On a machine without a device it fails and says why: a skipped run must not look like a pass."""
    done = call(copy, ".ci/gpu.py", "sm90", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert done.stderr.startswith("not run: ")


def test_the_gpu_runner_leaves_out_only_what_cannot_matter(tmp_path):
    """A file that needs a missing tool is left out unless it has a test of the marker."""
    folder = tmp_path / "packages" / "adaverify-dummy" / "tests"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text("import no_such_tool.part\n")
    (folder / "test_b.py").write_text(
        "from no_such_tool import x\nimport pytest\npytestmark = pytest.mark.sm90\n"
    )
    (folder / "test_c.py").write_text("import json\n")
    assert gpu.left_out(tmp_path, "sm90") == {folder / "test_a.py": "no_such_tool"}
    assert set(gpu.left_out(tmp_path, "sm100")) == {folder / "test_a.py", folder / "test_b.py"}
