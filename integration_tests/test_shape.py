"""Every distribution has one shape, so that the next one is copied from any of them."""

from __future__ import annotations

import ast
import re

import pytest
from packaging.requirements import Requirement
from workspace import LAYERS, Distribution

FRAGMENT = re.compile(r"\d{4}\.(added|changed|deprecated|removed|fixed|security)\.md")
# Kept by each project file, word for word.
COMMON = {
    "requires-python": ">=3.11",
    "license": "Apache-2.0",
    "license-files": ["LICENSE"],
    "readme": "README.md",
}


def test_the_top_level_is_exactly_what_the_design_says(root, tracked):
    """Only the folders and files of design section 3, dotfiles aside."""
    top = {path.relative_to(root).parts[0] for path in tracked}
    expected = {"LICENSE", "README.md", "pyproject.toml", "noxfile.py"}
    expected |= {"packages", "plugins", "integration_tests", "docs"}
    assert {name for name in top if not name.startswith(".")} == expected


def test_a_distribution_has_the_same_files_as_every_other(distribution: Distribution):
    """Project file, README, licence, changelog, source, tests; benchmarks or training where it has them."""
    present = {path.name for path in distribution.folder.iterdir() if not path.name.startswith(".")}
    required = {"pyproject.toml", "README.md", "LICENSE", "changelog.d", "src", "tests"}
    assert required <= present
    assert present <= required | {"benchmarks", "training"}


def test_folder_distribution_and_import_names_agree(distribution: Distribution):
    """One hyphenated word; the import name is the same with underscores and the only thing in src."""
    assert re.fullmatch(r"adaverify(-[a-z0-9]+)*", distribution.name)
    tops = {path.name for path in distribution.src.iterdir() if path.name != "__pycache__"}
    assert tops == {distribution.import_name}
    assert distribution.pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [
        f"src/{distribution.import_name}"
    ]


def test_the_package_is_typed_and_says_what_it_is(distribution: Distribution):
    """A py.typed marker, and a package file with a docstring and no code but imports and the export list."""
    assert (distribution.package / "py.typed").read_bytes() == b""
    tree = ast.parse((distribution.package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If)
    others = [ast.unparse(node) for node in tree.body[1:] if not isinstance(node, allowed)]
    assert others == []


def test_the_export_list_is_sorted(distribution: Distribution):
    """A reader finds a name where the alphabet puts it."""
    tree = ast.parse((distribution.package / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            assert len(set(names)) == len(names)
            assert list(names) == sorted(names) or list(names) == sorted(names, key=_constants_first)


def test_project_files_agree_where_they_must(distribution: Distribution):
    """Python, licence and readme are the same everywhere; the description is there."""
    project = distribution.project
    assert {key: project.get(key) for key in COMMON} == COMMON
    assert project["description"].endswith(".")
    assert "Typing :: Typed" in project["classifiers"]
    # PEP 639: the expression replaces the classifier.
    assert not any(c.startswith("License ::") for c in project["classifiers"])
    assert distribution.pyproject["build-system"]["build-backend"] == "hatchling.build"
    if distribution.kind == "packages":
        assert distribution.layer in LAYERS


def test_the_licence_is_the_workspace_licence(root, distribution: Distribution):
    """A wheel carries the licence text, and a copy that drifts is a different licence."""
    assert (distribution.folder / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()


def test_the_readme_is_short_and_tells_how_to_install(distribution: Distribution):
    """What it is, how to install it, where to read more."""
    text = (distribution.folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {distribution.name}\n")
    assert f"pip install {distribution.name}" in text


def test_changelog_fragments_are_named_by_number_and_kind(distribution: Distribution):
    """One fragment per user-visible change, none of them empty."""
    fragments = [path for path in (distribution.folder / "changelog.d").iterdir() if path.name != ".gitkeep"]
    assert fragments
    assert [path.name for path in fragments if not FRAGMENT.fullmatch(path.name)] == []
    assert [path.name for path in fragments if not path.read_text(encoding="utf-8").strip()] == []


def test_our_own_requirements_allow_one_minor_version(distributions, distribution: Distribution):
    """Between our packages `>=0.1,<0.2`; torch without an upper bound, for the user's build decides.

    An extra of a plugin may name one exact build of a kernel library: its binary fits one torch, and what was
    executed says nothing about the next build.
    """
    versions = {d.name: d.project["version"] for d in distributions}
    extras = distribution.project.get("optional-dependencies", {}).values()
    optional = [text for extra in extras for text in extra]
    for text in [*distribution.project["dependencies"], *optional]:
        requirement = Requirement(text)
        operators = {specifier.operator for specifier in requirement.specifier}
        if requirement.name in versions:
            assert operators == {">=", "<"}, text
            assert requirement.specifier.contains(versions[requirement.name]), text
        elif operators == {"=="}:
            assert distribution.kind == "plugins" and text in optional, f"{text}: only a plugin's extra pins"
        else:
            assert operators == {">="}, f"{text}: a lower bound only; exact pins live in the workspace"


def test_extras_of_ours_exist(distributions, distribution: Distribution):
    """An extra asked of one of our packages is declared there; pip would only warn."""
    declared = {d.name: set(d.project.get("optional-dependencies", {})) for d in distributions}
    for text in distribution.project["dependencies"]:
        requirement = Requirement(text)
        if requirement.name in declared:
            assert requirement.extras <= declared[requirement.name], text


@pytest.mark.parametrize("kind", ["packages", "plugins"])
def test_the_tables_of_a_plugin_and_a_package_differ_in_the_layer_only(distributions, kind):
    """A plugin takes no layer: what it may import is the same for all plugins."""
    has_table = {"adaverify" in d.pyproject["tool"] for d in distributions if d.kind == kind}
    assert has_table == {kind == "packages"}


def _constants_first(name: str) -> tuple[int, str]:
    # Ruff's order: CONSTANTS, then Classes, then functions.
    rank = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return rank, name
