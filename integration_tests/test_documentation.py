"""The documentation is run and compared with the code, so that it cannot drift from it."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer
import workspace
from packaging.requirements import Requirement
from typer.testing import CliRunner

from adaverify import console
from adaverify.cli import app
from adaverify_contracts import PluginError, StepRecord, hookspecs
from adaverify_engine import EngineStats
from adaverify_replay import TraceWriter
from adaverify_runtime import Settings, doctor, known_variables, load_plugins
from adaverify_runtime.row_choice import TIE, UNKNOWN

ROOT = workspace.ROOT
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorials" / "first-hardware-plugin.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CAPTIONED = re.compile(r"^```\{code-block\} \w+\n:caption: ([^\n]+)\n\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def pages_with_python() -> list[str]:
    """Return every README and page that shows Python, relative to the root."""
    readmes = [ROOT / "README.md", *(d.folder / "README.md" for d in workspace.discover(ROOT))]
    found = [path for path in [*readmes, *DOCS.rglob("*.md")] if FENCE.search(path.read_text("utf-8"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def rows(page: str, section: str = "") -> list[list[str]]:
    """Return the cells of every table row of a page, or of what follows the heading ``section`` in it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if section:
        _, found, text = text.partition(f"\n## {section}\n")
        assert found, section
        text = text.partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code(cell: str) -> list[str]:
    """Return what stands between backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distributions) -> Path:
    """A reader's folder: everything is installed, no setting is set, a trace was recorded."""
    for name in known_variables():
        monkeypatch.delenv(name, raising=False)
    # Where the source folders are on the path and nothing is installed, entry points need metadata.
    workspace.write_metadata(distributions, tmp_path / "metadata")
    monkeypatch.syspath_prepend(str(tmp_path / "metadata"))
    monkeypatch.chdir(tmp_path)
    with TraceWriter("trace.jsonl"):
        pass
    return tmp_path


@pytest.mark.parametrize("page", pages_with_python())
def test_the_python_of_a_page_runs(page: str, reader: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of one page run in order, in one namespace, as a reader would type them."""
    namespace: dict[str, object] = {"__name__": "page"}
    text = (ROOT / page).read_text(encoding="utf-8")
    if project := follow(ROOT / page, reader):
        monkeypatch.syspath_prepend(str(project / "src"))
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start(1))
        source = "\n" * line + match.group(1)
        exec(compile(source, str(ROOT / page), "exec"), namespace)


def test_pages_with_python_are_found():
    """The pages that show an engine author what to write are among those that run."""
    assert {
        "README.md",
        "docs/how-to/use-in-your-engine.md",
        "docs/how-to/write-a-signal.md",
        "docs/how-to/write-a-policy.md",
    } <= set(pages_with_python())


def commands(page: Path, starts: str) -> list[list[str]]:
    """Return the words of each shell line of a page that starts so."""
    shell = re.findall(r"^```bash\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in shell for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(starts)]


def follow(page: Path, into: Path) -> Path | None:
    """Run the `adaverify plugins new` of a page and return the project, or None if the page writes none."""
    for words in commands(page, "adaverify plugins new"):
        result = CliRunner().invoke(app, [*words[1:], "--into", str(into), "--json"])
        assert result.exit_code == 0, result.output
        return Path(json.loads(result.stdout)["folder"])
    return None


def shown(page: Path) -> dict[str, str]:
    """Return the captioned blocks of a page by caption."""
    return dict(CAPTIONED.findall(page.read_text(encoding="utf-8")))


PAGES = ("tutorials/first-hardware-plugin", "how-to/write-a-signal", "how-to/write-a-policy")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_the_command_writes(name: str, reader: Path):
    """The code that a page explains is the code that the reader gets, to the letter."""
    page = DOCS / f"{name}.md"
    project = follow(page, reader)
    files = {name: text for name, text in shown(page).items() if " " not in name}
    assert len(files) >= 2
    assert {caption: (project / caption).read_text(encoding="utf-8") for caption in files} == files


@pytest.fixture
def cedar(reader: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tutorial's plugin after its second step, visible as if it were installed."""
    folder = follow(TUTORIAL, reader)
    ((_, _, change, name),) = commands(TUTORIAL, "sed -i")
    _, old, new, _ = change.split("/")
    hooks = folder / name
    text = hooks.read_text(encoding="utf-8")
    assert text.count(old) == 2
    hooks.write_text(text.replace(old, new), encoding="utf-8")
    test = folder / "tests" / "test_plugin.py"
    (line,) = [line for line in test.read_text().splitlines() if "row_lens.tolist()" in line]
    replacement = shown(TUTORIAL)["the last line of test_rows_of_a_ragged_batch"].rstrip("\n")
    test.write_text(test.read_text().replace(line, replacement), encoding="utf-8")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "src" / f"adaverify_cedar-{project['version']}.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
    header = f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n{needs}"
    (info / "METADATA").write_text(header, encoding="utf-8")
    ((name, value),) = project["entry-points"]["adaverify"].items()
    (info / "entry_points.txt").write_text(f"[adaverify]\n{name} = {value}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder / "src"))
    # The reader has `pip install adaverify`; the workspace has hardware plugins beside it.
    others = [d.name.removeprefix("adaverify-") for d in workspace.discover(ROOT) if d.kind == "plugins"]
    monkeypatch.setenv("ADAVERIFY_PLUGINS_DISABLED", ",".join(set(others) - {"reference", "smollm2"}))
    yield folder
    forget("adaverify_cedar")


def forget(package: str) -> None:
    """Let a package be imported anew."""
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[module]


def test_the_tutorial_plugin_is_discovered_probed_and_chosen(cedar: Path):
    """The reader sees what the page shows: the kernel executed, the plugin loaded, the strategy taken."""
    report = doctor(device="cpu")
    page = TUTORIAL.read_text(encoding="utf-8")
    kernel = report.capability.kernel("cedar")
    assert f"level `executed`, with the reason `{kernel.reason}`" in page
    assert f"`note: {report.notes[0]}`" in page
    assert {plugin.name: plugin.outcome.value for plugin in report.plugins}["cedar"] == "loaded"
    assert [item.name for item in report.strategies if item.chosen] == ["cedar", "uniform"]


def test_the_tests_of_the_tutorial_pass_after_its_change(cedar: Path):
    """The project's tests, the kit among them, run as the reader left them."""
    namespace: dict[str, object] = {"__name__": "test_plugin"}
    source = (cedar / "tests" / "test_plugin.py").read_text(encoding="utf-8")
    exec(compile(source, "test_plugin.py", "exec"), namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('Requirements(device_types=("cpu",)', 'Requirements(device_types=("cuda",)', "device type is cpu"),
        ("    import torch\n\n    product", '    raise OSError("no such device")\n    product', "absent"),
        ("from collections.abc", 'raise RuntimeError("no Cedar driver")\nfrom collections.abc', "raised"),
        ("from collections.abc", "import cedar_driver\nfrom collections.abc", "import failed"),
        ('NAME = "cedar"', 'NAME = "reference"', "DuplicateNameError"),
        ("def adaverify_register_probes", "def adaverify_register_probe", "PluginError"),
    ],
)
def test_the_tutorial_names_the_outcome_of_each_mistake(cedar: Path, old: str, new: str, says: str):
    """Each row of the tutorial's table is tried, and the page has the words of the outcome."""
    assert says in TUTORIAL.read_text(encoding="utf-8")
    hooks = cedar / "src" / "adaverify_cedar" / "hooks.py"
    text = hooks.read_text(encoding="utf-8")
    assert text.count(old) == 1
    hooks.write_text(text.replace(old, new), encoding="utf-8")
    if says.endswith("Error"):
        with pytest.raises(PluginError) as error:
            load_plugins()
        assert type(error.value).__name__ == says
        return
    report = doctor(device="cpu")
    outcome = next(plugin for plugin in report.plugins if plugin.name == "cedar").outcome.value
    reasons = next((item.reasons for item in report.strategies if item.name == "cedar"), ())
    assert says in f"{outcome} {reasons}"
    assert report.problems == ()


def test_the_settings_page_lists_every_variable_with_its_default(reader: Path):
    """Names and defaults of the page are those of the settings classes."""
    listed = {code(row[0])[0]: row[1] for row in rows("how-to/choose-settings.md") if code(row[0])}
    assert set(listed) == set(known_variables())
    settings = Settings()
    for section in (getattr(settings, item.name) for item in fields(settings)):
        if section == ():
            continue
        for variable, name in type(section).variables().items():
            assert listed[variable] == shown_default(variable, getattr(section, name)), variable


def shown_default(variable: str, value: object) -> str:
    """Return a default as the settings page writes it."""
    if variable == "ADAVERIFY_PATHS_CACHE":
        return "the user's cache folder"
    if value is None:
        return "unset"
    if value == ():
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def test_the_command_line_page_lists_every_command():
    """The options are written by the documentation's build; the table of commands is not."""
    listed = {code(row[0])[0] for row in rows("reference/cli.md") if code(row[0])}
    top = typer.main.get_command(app).commands
    below = {f"{name} {sub}" for name, group in top.items() for sub in getattr(group, "commands", ())}
    assert listed == set(top) | below
    assert "plugins new" in below


def test_the_support_matrix_lists_every_strategy_of_the_workspace(reader: Path, monkeypatch):
    """The page is written from the plugins, so a new one has its row without an edit."""
    monkeypatch.syspath_prepend(str(DOCS))
    conf = importlib.import_module("conf")
    page = conf.support_matrix_page()
    entries = load_plugins().decode_strategies()
    assert len(entries) >= 4
    for entry in entries:
        (row,) = re.findall(rf"\* - ``{entry.descriptor.name}``\n(.*?)(?=\n   \*|\Z)", page, re.DOTALL)
        cells = [line.strip(" -") for line in row.splitlines()]
        assert entry.descriptor.evidence in cells
        assert entry.descriptor.graph_support.name in cells
        assert entry.owner in cells
    assert "sm90" in page


def test_the_command_line_page_lists_every_exit_code():
    """The codes are the constants of the console module, and 2, which is typer's own."""
    public = {name: value for name, value in vars(console).items() if name.isupper() and name[0] != "_"}
    ours = {value for value in public.values() if isinstance(value, int)}
    assert ours
    assert ours <= {int(row[0]) for row in rows("reference/cli.md", "Exit codes")[1:]}


def test_the_links_of_the_readmes_exist():
    """A page that moves takes its links along."""
    readmes = [ROOT / "README.md", *(d.folder / "README.md" for d in workspace.discover(ROOT))]
    named = re.compile(r"\]\((?!https?:)([^)#]+)\)|`(docs/[^`]+)`")
    for readme in readmes:
        links = {"".join(pair) for pair in named.findall(readme.read_text(encoding="utf-8"))}
        assert [link for link in sorted(links) if not (ROOT / link).exists()] == [], readme
        assert links, readme


def test_the_hooks_page_lists_every_hook():
    """The table above the specifications is complete and in their order."""
    specified = [name for name in vars(hookspecs) if name.startswith("adaverify_")]
    assert [code(row[0])[0] for row in rows("reference/hooks.md")[1:]] == specified


def test_the_trace_page_lists_every_field_of_a_record():
    """In the order of the record."""
    listed = [code(row[0])[0] for row in rows("how-to/read-a-trace.md")[1:]]
    assert listed == [item.name for item in fields(StepRecord)]


def strings(path: str) -> set[str]:
    """Return every string constant of a source file; formatted strings as far as their first value."""
    tree = ast.parse((ROOT / "packages" / path).read_text(encoding="utf-8"))
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_the_counters_page_lists_every_counter():
    """Names are taken from the sources that count, so that a new one has to be documented."""
    verification = "adaverify-verification/src/adaverify_verification"
    modules = ("manager", "ranks", "containment", "live", "outcomes")
    counted = set().union(*(strings(f"{verification}/{module}.py") for module in modules))
    counted |= strings("adaverify-engine/src/adaverify_engine/draft_source.py")
    counted |= {"request-failed"} & strings("adaverify-engine/src/adaverify_engine/engine.py")
    counted |= strings("adaverify-engine/src/adaverify_engine/attention/paged.py")
    counted |= strings("adaverify-engine/src/adaverify_engine/attention/prompts.py")
    counted |= strings("adaverify-engine/src/adaverify_engine/ahead.py")
    counted |= strings("adaverify-engine/src/adaverify_engine/batch.py")
    counted |= strings("adaverify/src/adaverify/drafting.py") - {"n-gram"}
    counted |= strings("adaverify/src/adaverify/crowding.py")
    names = {text for text in counted if re.fullmatch(r"[a-z]+(-[a-z]+)+", text) or text == "unpriced"}
    # Two names are put together from the kind of plugin.
    source = (ROOT / "packages" / verification / "containment.py").read_text(encoding="utf-8")
    names |= {f"{kind}-raised" for kind in re.findall(r'raised\("([a-z]+)"', source)}
    listed = {name for row in rows("reference/counters.md", "Manager") for name in code(row[0])}
    assert listed == names
    assert "kernel-unproven:" in strings("adaverify-runtime/src/adaverify_runtime/verifier.py")
    assert [code(row[0]) for row in rows("reference/counters.md", "Kernels")[1:]] == [
        ["kernel-unproven:NAME"]
    ]
    assert "observer-disabled:" in strings("adaverify-runtime/src/adaverify_runtime/observers.py")
    graphs = {code(row[0])[0] for row in rows("reference/counters.md", "Graphs")[1:]}
    cache = "adaverify-graphs/src/adaverify_graphs/cache.py"
    reasons = strings("adaverify-graphs/src/adaverify_graphs/_misses.py") | strings(cache)
    reasons |= strings("adaverify-runtime/src/adaverify_runtime/capture.py")
    for name in graphs:
        assert name.removeprefix("missed: ") in reasons, name
    source = (ROOT / "packages" / cache).read_text(encoding="utf-8")
    assert set(re.findall(r'_counters\["([^"]+)"\]', source)) <= graphs
    misses = (ROOT / "packages" / cache).with_name("_misses.py").read_text(encoding="utf-8")
    missed = re.findall(r'return "([^"]+)"', misses) + re.findall(r', "([a-z ]+)"\),', misses)
    missed += re.findall(r'_miss\("([^"]+)"\)', source)
    assert {f"missed: {reason}" for reason in missed} <= graphs
    chosen = {code(row[0])[0] for row in rows("reference/counters.md", "Rows")[1:]}
    assert chosen == {f"rows: {word}" for word in ("NAME", TIE, UNKNOWN)}


def test_the_counters_page_lists_the_engine_totals():
    """Everything that ``EngineStats.as_dict`` returns."""
    listed = [name for row in rows("reference/counters.md", "Engine")[1:] for name in code(row[0])]
    assert sorted(listed) == sorted(EngineStats().as_dict())


def test_the_installation_page_names_what_each_distribution_needs(distributions):
    """The last column is the project file's dependencies, in their order."""
    projects = {d.name: d.project for d in distributions}
    for row in rows("how-to/install-only-what-you-need.md")[1:]:
        needs = [Requirement(text).name for text in projects[code(row[1])[0]]["dependencies"]]
        assert row[2].split(", ") == needs, row[1]
