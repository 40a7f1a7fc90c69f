"""Projects for plugins, written from the templates beside this module."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from jinja2 import Environment, PackageLoader, StrictUndefined

from adaverify_contracts import ENTRY_POINT_GROUP, AdaverifyError, PluginError

# The form of every name that a plugin may register; with underscores it is a part of an import name.
_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
# Lines of the templates hold the name up to four times; beyond this they pass the line length.
LONGEST_NAME = 24
_PREFIX = "adaverify"


class Kind(StrEnum):
    """What a new plugin registers."""

    STRATEGY = "strategy"
    SIGNAL = "signal"
    POLICY = "policy"


_DESCRIPTIONS = {
    Kind.STRATEGY: "A decode strategy for adaverify.",
    Kind.SIGNAL: "A confidence signal for adaverify.",
    Kind.POLICY: "A budget policy for adaverify.",
}
_DEPENDENCIES = {
    Kind.STRATEGY: ("adaverify-contracts>=0.1,<0.2", "adaverify-metadata>=0.1,<0.2", "torch>=2.6"),
    Kind.SIGNAL: ("adaverify-contracts>=0.1,<0.2", "torch>=2.6"),
    Kind.POLICY: ("adaverify-contracts>=0.1,<0.2", "numpy>=1.26"),
}
# The module beside hooks.py, where a kind has one.
_MODULES = {Kind.STRATEGY: (), Kind.SIGNAL: ("signal",), Kind.POLICY: ("policy",)}


@dataclass(frozen=True, slots=True)
class Project:
    """A project to be written: the plugin's name and its kind.

    Raises:
        PluginError: the name cannot be registered, imported or told from ours.
    """

    name: str
    kind: Kind = Kind.STRATEGY

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise PluginError(
                "this cannot be the name of a plugin",
                arrived=self.name,
                allowed="lower-case letters and digits in words joined by single hyphens, first a letter, at "
                f"most {LONGEST_NAME} characters",
                remedy="choose another name; users type it in settings and on the command line",
            )
        if self.name.partition("-")[0] == _PREFIX:
            raise PluginError(
                f"the name of a plugin does not begin with {_PREFIX}",
                arrived=self.name,
                allowed="the name alone, such as cedar",
                remedy=f"leave it out: the distribution of cedar is called {_PREFIX}-cedar",
            )

    @property
    def distribution(self) -> str:
        """Name of the distribution and of its folder."""
        return f"{_PREFIX}-{self.name}"

    @property
    def package(self) -> str:
        """Import name."""
        return self.distribution.replace("-", "_")

    def render(self) -> dict[str, str]:
        """Return the text of every file by its path in the project."""
        words = "".join(word.capitalize() for word in self.name.split("-"))
        suffix = self.kind.capitalize()
        values = {
            "name": self.name,
            "kind": self.kind.value,
            "distribution": self.distribution,
            "package": self.package,
            "class_name": words if words.endswith(suffix) else words + suffix,
            "description": _DESCRIPTIONS[self.kind],
            "dependencies": _DEPENDENCIES[self.kind],
        }
        # Python and TOML come out, not HTML: escaping would break them.
        templates = Environment(
            loader=PackageLoader("adaverify", "templates"),
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            trim_blocks=True,
            autoescape=False,
        )
        source = f"src/{self.package}"
        files = {
            "pyproject.toml": "common/pyproject.toml",
            "README.md": "common/README.md",
            f"{source}/__init__.py": "common/__init__.py",
            f"{source}/hooks.py": f"{self.kind}/hooks.py",
            **{f"{source}/{name}.py": f"{self.kind}/{name}.py" for name in _MODULES[self.kind]},
            "tests/test_plugin.py": f"{self.kind}/test_plugin.py",
        }
        rendered = {
            path: templates.get_template(f"{name}.jinja").render(values) for path, name in files.items()
        }
        return {**rendered, f"{source}/py.typed": ""}


def write_project(project: Project, into: Path, registered: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write a project into a folder of its own and return that folder; on an error nothing is left.

    Args:
        project: what to write.
        into: existing folder in which ``adaverify-NAME`` is made.
        registered: owners of the names that installed plugins register for this kind.

    Raises:
        PluginError: a plugin of that name, its distribution, or what it would register, is installed already.
        AdaverifyError: the folder exists, or cannot be made.
    """
    _require_free(project, registered)
    target = into / project.distribution
    if target.exists() or target.is_symlink():
        raise AdaverifyError(
            "the folder of the new project exists",
            arrived=str(target),
            allowed="a path where nothing is",
            remedy="choose another name, or another folder with --into",
        )
    try:
        # Renamed when complete: a full disk leaves no half of a project.
        with tempfile.TemporaryDirectory(dir=into, prefix=".new-") as folder:
            draft = Path(folder) / project.distribution
            for name, text in project.render().items():
                file = draft / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            shutil.move(draft, target)
    except OSError as error:
        raise AdaverifyError(
            f"the project cannot be written: {error.strerror}",
            arrived=str(target),
            allowed="a folder that exists and is writable",
            remedy="make the folder first, or choose another with --into",
        ) from error
    return target


def _require_free(project: Project, registered: Mapping[str, str]) -> None:
    points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    owners = {point.name: point.dist.name if point.dist is not None else point.value for point in points}
    owner = owners.get(project.name)
    if owner is None:
        with suppress(metadata.PackageNotFoundError):
            owner = metadata.distribution(project.distribution).name
    if owner is None:
        # A second owner of a registered name would stop every start.
        owner = registered.get(project.name)
    if owner is None:
        return
    raise PluginError(
        f"the name {project.name!r} is taken by {owner}, which is installed here",
        plugin=project.name,
        arrived=project.name,
        allowed=f"a name that no installed plugin, distribution or {project.kind.value} has",
        remedy=f"choose another name, or uninstall {owner}",
    )
