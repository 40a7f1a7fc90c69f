"""Every distribution builds alone and is useful alone, tried on what a user would download."""

from __future__ import annotations

import importlib.metadata
import json
import tarfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wheelhouse import CleanEnvironment, Wheelhouse
from workspace import Distribution

# What a component must not bring along: design section 3 promises this to the authors of engines.
NEVER = {
    "adaverify-contracts": {"torch", "numpy", "pydantic", "triton"},
    "adaverify-capability": {"triton", "pydantic", "adaverify-runtime", "adaverify-engine"},
    "adaverify-metadata": {"triton", "pydantic", "adaverify-runtime", "adaverify-engine"},
    "adaverify-verification": {"triton", "pydantic", "adaverify-runtime", "adaverify-engine"},
    "adaverify-graphs": {"triton", "pydantic", "adaverify-runtime", "adaverify-engine"},
    "adaverify-runtime": {"adaverify-engine", "matplotlib", "typer", "pytest"},
    "adaverify-engine": {"adaverify-smollm2", "matplotlib", "typer", "pytest"},
    "adaverify-replay": {"adaverify-engine", "matplotlib", "typer", "pytest"},
}


def test_the_wheel_holds_its_package_and_nothing_else(wheelhouse: Wheelhouse, distribution: Distribution):
    """One import package, typed, with the licence; no tests, no neighbour's file."""
    wheel = wheelhouse.wheel(distribution.name)
    tops = {name.partition("/")[0] for name in wheel.names}
    info = f"{distribution.import_name}-{distribution.project['version']}.dist-info"
    assert tops == {distribution.import_name, info}
    assert f"{distribution.import_name}/py.typed" in wheel.names
    assert f"{info}/licenses/LICENSE" in wheel.names
    assert not [name for name in wheel.names if name.endswith(".pyc") or "/tests/" in name]


def test_the_wheel_holds_every_source_file(wheelhouse: Wheelhouse, distribution: Distribution, tracked):
    """Data files included: what is missing here is missing on the user's machine."""
    source = [path for path in tracked if path.is_relative_to(distribution.src)]
    expected = {path.relative_to(distribution.src).as_posix() for path in source}
    assert expected <= set(wheelhouse.wheel(distribution.name).names)


def test_the_metadata_says_what_the_project_file_says(wheelhouse: Wheelhouse, distribution: Distribution):
    """Name, version, licence expression, Python, readme and requirements."""
    metadata = wheelhouse.wheel(distribution.name).metadata
    project = distribution.project
    assert metadata["Name"] == distribution.name
    assert metadata["Version"] == project["version"]
    assert metadata["Summary"] == project["description"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    requirements = wheelhouse.wheel(distribution.name).requirements
    built = {canonicalize_name(r.name) for r in requirements if not r.marker}
    assert built == {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}


def test_the_sdist_carries_source_tests_and_changelog(wheelhouse: Wheelhouse, distribution: Distribution):
    """Enough for a packager to build and test it without the repository."""
    with tarfile.open(wheelhouse.sdist(distribution.name)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert f"src/{distribution.import_name}/py.typed" in names
    assert any(name.startswith("changelog.d/") for name in names)


def test_a_component_brings_only_its_declared_needs(wheelhouse: Wheelhouse, distribution: Distribution):
    """The closure over wheel metadata holds nothing that the design keeps out of it."""
    ours, others = wheelhouse.closure(distribution.name)
    assert (ours | others) & NEVER.get(distribution.name, set()) == set()


def test_nothing_but_the_command_line_depends_on_a_plugin(distributions, wheelhouse: Wheelhouse):
    """A component that pulled a plugin would choose for its user."""
    plugins = {d.name for d in distributions if d.kind == "plugins"}
    for d in distributions:
        if d.kind == "packages" and d.layer != "command-line":
            assert wheelhouse.closure(d.name)[0] & plugins == set(), d.name


def test_entry_points_are_discovered_and_load(distribution: Distribution):
    """What the project file registers is what the installed distribution shows, and each of it imports."""
    for group, entries in distribution.entry_points.items():
        found = {
            point.name: point
            for point in importlib.metadata.entry_points(group=group)
            if point.dist and point.dist.name == distribution.name
        }
        assert {name: point.value for name, point in found.items()} == entries
        for point in found.values():
            assert point.load()


def test_console_scripts_load(distribution: Distribution):
    """The function behind a script exists and can be called."""
    for name, value in distribution.project.get("scripts", {}).items():
        (point,) = importlib.metadata.entry_points(group="console_scripts", name=name)
        assert point.value == value
        assert callable(point.load())


@pytest.mark.slow
def test_a_wheel_alone_installs_and_imports(wheelhouse: Wheelhouse, distribution: Distribution, tmp_path):
    """With its declared dependencies and no other package there, it imports and shows its entry points."""
    ours, others = wheelhouse.closure(distribution.name)
    environment = CleanEnvironment(tmp_path / "clean")
    environment.link(others)
    environment.install(distribution.name, wheelhouse=wheelhouse)
    code = (
        "import importlib, importlib.metadata as m, json, sys\n"
        "importlib.import_module(sys.argv[1])\n"
        "names = sorted({d.name.lower() for d in m.distributions() if d.name.startswith('adaverify')})\n"
        "entries = [[e.group, e.name, e.value] for e in m.distribution(sys.argv[2]).entry_points]\n"
        "print(json.dumps([names, entries]))\n"
    )
    installed, entries = json.loads(environment.run(code, distribution.import_name, distribution.name))
    assert set(installed) == ours
    groups = distribution.entry_points | {"console_scripts": distribution.project.get("scripts", {})}
    declared = {(group, name, value) for group, members in groups.items() for name, value in members.items()}
    assert {tuple(entry) for entry in entries} == declared


@pytest.mark.slow
def test_an_undeclared_import_fails_in_a_clean_environment(wheelhouse: Wheelhouse, tmp_path):
    """The environment is as clean as it claims: what was not linked cannot be imported."""
    environment = CleanEnvironment(tmp_path / "clean")
    environment.link({"packaging"})
    assert environment.run("import packaging; print('found')") == "found\n"
    with pytest.raises(AssertionError, match="No module named 'pytest'"):
        environment.run("import pytest")
    with pytest.raises(AssertionError, match=r"No matching distribution found for (pluggy|adaverify)"):
        environment.install("adaverify-contracts", wheelhouse=Wheelhouse(tmp_path))
