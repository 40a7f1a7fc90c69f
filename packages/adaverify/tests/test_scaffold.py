"""``adaverify plugins new``: what it writes works as it is, and what it refuses leaves nothing behind."""

from __future__ import annotations

import json
import sys
import tomllib

import pytest

from adaverify.scaffold import LONGEST_NAME, Kind, Project, write_project
from adaverify_contracts import AdaverifyError, PluginError
from adaverify_testing import isolated_manager

HOOK = {
    Kind.STRATEGY: "adaverify_register_decode_strategies",
    Kind.SIGNAL: "adaverify_register_signals",
    Kind.POLICY: "adaverify_register_policies",
}


@pytest.fixture
def importable(monkeypatch):
    """Return a function that makes a written project importable until the test ends."""
    packages = []

    def add(folder):
        monkeypatch.syspath_prepend(str(folder / "src"))
        packages.append(folder.name.replace("-", "_"))
        return packages[-1]

    yield add
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", ["cedar", "a-1-b", "x" * LONGEST_NAME, "class"])
def test_every_file_of_a_project_parses_and_fits_the_line(kind, name):
    """Python compiles, TOML parses, no placeholder is left, no line is too long for its own linter."""
    files = Project(name, kind).render()
    for path, text in files.items():
        assert "{{" not in text, path
        assert "{%" not in text, path
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
        if path.endswith(".py"):
            compile(text, path, "exec")
            assert [line for line in text.splitlines() if len(line) > 110] == []
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["entry-points"]["adaverify"] == {name: f"adaverify_{name.replace('-', '_')}.hooks"}


@pytest.mark.parametrize("kind", Kind)
def test_a_project_registers_what_was_asked_for(tmp_path, importable, kind):
    """One descriptor of that kind under that name."""
    package = importable(write_project(Project(f"fresh-{kind}", kind), tmp_path))
    hooks = __import__(f"{package}.hooks", fromlist=["hooks"])
    groups = getattr(isolated_manager(hooks).hook, HOOK[kind])()
    assert [item.name for group in groups for item in group] == [f"fresh-{kind}"]


def test_importing_the_hooks_of_a_strategy_brings_no_builder(tmp_path, importable):
    """Registration does no work: what makes rows is imported when rows are made."""
    package = importable(write_project(Project("fresh"), tmp_path))
    hooks = __import__(f"{package}.hooks", fromlist=["hooks"])
    assert not {"torch", "FlattenRowBuilder"} & set(vars(hooks))
    assert hooks.probe_kernel(None).level.name == "EXECUTED"


@pytest.mark.parametrize(
    "name", ["", "Cedar", "cedar_x", "cedar pairs", "-cedar", "1st", "../up", "a--b", "ähre", "x" * 25]
)
def test_a_name_that_nobody_could_type_or_import_is_refused(invoke, tmp_path, name):
    """With what is allowed, before anything is written."""
    result = invoke("plugins", "new", "--", name)
    assert result.exit_code == 3
    assert "cannot be the name of a plugin" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_prefix_is_ours_to_add(invoke):
    """Otherwise the distribution would be called adaverify-adaverify-cedar."""
    result = invoke("plugins", "new", "adaverify-cedar")
    assert result.exit_code == 3
    assert "does not begin with adaverify" in result.stderr


def test_a_name_that_is_installed_is_refused(invoke, tmp_path, monkeypatch):
    """Two owners of one name stop the start, so the second is not written."""
    info = tmp_path / "site" / "adaverify_oak-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: adaverify-oak\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[adaverify]\nbirch = oak.hooks\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for name in ("oak", "birch"):
        with pytest.raises(PluginError, match=f"the name '{name}' is taken by adaverify-oak"):
            write_project(Project(name), tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"), [("reference", "strategy"), ("uniform", "strategy"), ("ratio", "policy")]
)
def test_a_name_that_is_registered_is_refused(invoke, tmp_path, name, kind):
    """The entry point would be new and the strategy not: the first start would stop at the duplicate."""
    result = invoke("plugins", "new", name, "--kind", kind)
    assert result.exit_code == 3
    assert f"the name '{name}' is taken by adaverify-" in " ".join(result.stderr.split())
    assert not (tmp_path / f"adaverify-{name}").exists()


def test_an_existing_folder_is_left_alone(invoke, tmp_path):
    """Somebody's work is in it."""
    (tmp_path / "adaverify-cedar").mkdir()
    (tmp_path / "adaverify-cedar" / "mine").write_text("work")
    result = invoke("plugins", "new", "cedar")
    assert result.exit_code == 3
    assert "the folder of the new project exists" in result.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["adaverify-cedar", "mine"]


@pytest.mark.parametrize("into", ["missing", "a-file"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, into):
    """Missing, or no folder at all."""
    (tmp_path / "a-file").write_text("")
    with pytest.raises(AdaverifyError, match="the project cannot be written"):
        write_project(Project("cedar"), tmp_path / into)
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_disk_that_fills_up_leaves_no_half_of_a_project(tmp_path, monkeypatch):
    """The folder appears when it is complete, or not at all."""
    monkeypatch.setattr(Project, "render", lambda self: {"a": "x", "b/" * 200 + "c" * 300: "y"})
    with pytest.raises(AdaverifyError, match="the project cannot be written"):
        write_project(Project("cedar"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_wrote_and_what_comes_next(invoke, tmp_path):
    """For people and as JSON; unknown kinds are wrong usage."""
    (tmp_path / "there").mkdir()
    shown = invoke("plugins", "new", "cedar", "--into", "there").stdout
    assert "pytest --adaverify-conformance cedar" in shown
    assert (tmp_path / "there" / "adaverify-cedar" / "pyproject.toml").is_file()
    found = json.loads(invoke("plugins", "new", "cedar", "--kind", "policy", "--json").stdout)
    assert found["kind"] == "policy"
    folder = tmp_path / found["folder"]
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written == set(found["files"])
    assert "src/adaverify_cedar/policy.py" in written
    assert invoke("plugins", "new", "elm", "--kind", "chip").exit_code == 2
    assert invoke("plugins", "--json", "new", "elm").exit_code == 2
