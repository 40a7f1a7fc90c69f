"""Sphinx configuration. The reference is written for the distributions found by folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Tests read this file where Sphinx is not installed.
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / ".ci"))
import workspace  # noqa: E402

project = "adaverify"
author = "adaverify contributors"
copyright = "adaverify contributors, Apache-2.0"
DISTRIBUTIONS = workspace.discover()
version = release = next(d.project["version"] for d in DISTRIBUTIONS if d.name == "adaverify")

SUPPORT_MATRIX = """\
Support matrix
==============

Which decode strategy serves which architecture, and how far that was proven. Written by the documentation's
build from what the plugins register; ``adaverify plugins support`` shows the same for what is installed.

- *executed*: on that hardware, values compared.
- *emulated*: the schedule and the logits were checked against an emulator of the hardware's kernel.
- *compiled*: every kernel compiles for it ahead of time; never executed there.
- *any*: the strategy requires no architecture, so it is admitted without a proof on this one; its evidence is
  from elsewhere.
- ``-``: refused; ``adaverify doctor --assume WORD`` says why.

.. list-table::
   :header-rows: 1

"""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "adaverify"
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

# The public surface is what a package exports, in the order of its sorted export list.
# ``model_config`` is pydantic's and would fill a screen for each settings class.
autodoc_default_options = {
    "members": True,
    "imported-members": True,
    "show-inheritance": True,
    "exclude-members": "model_config",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# A field documented in the class docstring is not documented a second time as an attribute.
napoleon_use_ivar = True

# Some names are exported by a package and by the one that defines them; either entry is the right target.
suppress_warnings = ["ref.python"]


def write_reference(_app: Sphinx) -> None:
    """Write one page for each distribution into docs/reference; git ignores these, and only these."""
    folder = HERE / "reference"
    folder.mkdir(exist_ok=True)
    pages = {f"{d.name}.rst": reference_page(d) for d in DISTRIBUTIONS}
    pages["support-matrix.rst"] = support_matrix_page()
    pages["cli-options.inc"] = command_line_options()
    for stale in {path.name for path in folder.glob("*.rst")} - set(pages):
        (folder / stale).unlink()
    for name, text in pages.items():
        page = folder / name
        # Left untouched if equal, so that an incremental build stays incremental.
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def reference_page(distribution: workspace.Distribution) -> str:
    """Return the page of one distribution: what it is, what it needs, what it exports."""
    needs = ", ".join(f"``{need}``" for need in distribution.project["dependencies"]) or "nothing"
    entries = [
        f"``{name} = {value}`` in group ``{group}``"
        for group, members in distribution.entry_points.items()
        for name, value in members.items()
    ]
    lines = [
        distribution.name,
        "=" * len(distribution.name),
        "",
        distribution.project["description"],
        "",
        f"Install with ``pip install {distribution.name}``. Needs {needs}.",
        "",
        *(["Registers " + "; ".join(entries) + ".", ""] if entries else []),
        f".. automodule:: {distribution.import_name}",
    ]
    return "\n".join(lines) + "\n"


def command_line_options() -> str:
    """Return a section for each command with its arguments and options, read from the command line itself."""
    import typer

    from adaverify.cli import app

    lines = []
    for name, command in named_commands(typer.main.get_command(app)):
        lines += ["", f"## adaverify {name}", "", cleandoc(command.help or ""), ""]
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for parameter in command.params:
            if "--help" in parameter.opts:
                continue
            is_option = parameter.param_type_name == "option"
            spelt = max(parameter.opts, key=len) if is_option else parameter.name.upper()
            lines.append(f"| `{spelt}` | {shown_default(parameter)} | {parameter.help or ''} |")
    return "\n".join(lines) + "\n"


def named_commands(group: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every command with its whole name, those of a group after the group itself."""
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from named_commands(command, f"{prefix}{name} ")


def support_matrix_page() -> str:
    """Return the page of the support matrix, read from what the workspace's own plugins register."""
    from importlib.metadata import entry_points

    from adaverify.support import support_matrix
    from adaverify_runtime import PluginSettings, load_plugins

    ours = {d.name for d in DISTRIBUTIONS}
    points = [p for p in entry_points(group="adaverify") if p.dist is not None and p.dist.name in ours]
    matrix = support_matrix(load_plugins(PluginSettings(), points))
    head = ["strategy", *matrix.architectures, "evidence", "graph support", "device lengths", "distribution"]
    body = [
        [
            f"``{row.strategy}``",
            *row.levels.values(),
            row.evidence,
            row.graph_support.upper(),
            "yes" if row.device_lengths else "no",
            row.owner,
        ]
        for row in matrix.rows
    ]
    table = [
        f"   {'*' if i == 0 else ' '} - {cell}" for cells in [head, *body] for i, cell in enumerate(cells)
    ]
    return SUPPORT_MATRIX + "\n".join(table) + "\n"


def shown_default(parameter: object) -> str:
    """Return the default of a parameter as the page shows it."""
    if parameter.required:
        return "required"
    if parameter.default is None:
        return "none"
    return "off" if parameter.default is False else f"`{parameter.default}`"


def setup(app: Sphinx) -> None:
    """Write the reference before Sphinx looks for its sources."""
    app.connect("config-inited", lambda app, _config: write_reference(app))
