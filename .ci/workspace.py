"""What the workspace consists of, found by folder.

The noxfile, the documentation and the integration tests all ask this module, so that a new distribution is a
new folder and nothing else. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("packages", "plugins")
# Import direction, from the outermost layer inwards: a layer may import those after it, never a sibling.
LAYERS = ("command-line", "application", "runtime", "component", "contracts")


class WorkspaceError(Exception):
    """A folder under packages/ or plugins/ that is not a distribution of the house shape."""


@dataclass(frozen=True)
class Distribution:
    """One folder under packages/ or plugins/ and what its project file declares."""

    name: str
    folder: Path
    kind: str
    pyproject: dict[str, Any] = field(repr=False, hash=False, compare=False)

    @property
    def import_name(self) -> str:
        """The import name: the distribution name with underscores."""
        return self.name.replace("-", "_")

    @property
    def src(self) -> Path:
        """The folder that goes on the import path."""
        return self.folder / "src"

    @property
    def package(self) -> Path:
        """The folder of the import package."""
        return self.src / self.import_name

    @property
    def project(self) -> dict[str, Any]:
        """The `[project]` table."""
        table: dict[str, Any] = self.pyproject["project"]
        return table

    @property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """Entry points by group, console scripts excluded."""
        groups: dict[str, dict[str, str]] = self.project.get("entry-points", {})
        return groups

    @property
    def bridge(self) -> bool:
        """Whether this plugin is a bridge into another engine: it registers there and not with us.

        It puts the components together as an engine's author does, so it may import any package.
        """
        return self.kind == "plugins" and "adaverify.bridges" in self.entry_points

    @property
    def layer(self) -> str:
        """The import layer that a package declares in `[tool.adaverify]`; plugins have none."""
        layer = self._settings.get("layer")
        if layer not in LAYERS:
            message = (
                f"{self.folder / 'pyproject.toml'}: [tool.adaverify] layer is {layer!r}; "
                f"allowed: {', '.join(LAYERS)}; set the layer whose packages may import this one's neighbours"
            )
            raise WorkspaceError(message)
        return str(layer)

    @property
    def open_to_plugins(self) -> bool:
        """Whether plugins may import this package."""
        return bool(self._settings.get("open-to-plugins", False))

    @property
    def _settings(self) -> dict[str, Any]:
        table: dict[str, Any] = self.pyproject.get("tool", {}).get("adaverify", {})
        return table


def discover(root: Path = ROOT) -> tuple[Distribution, ...]:
    """Return every distribution of the workspace, packages before plugins, each sorted by name."""
    found = []
    for kind in KINDS:
        for folder in sorted((root / kind).glob("*/")):
            if folder.name.startswith((".", "_")):
                continue
            file = folder / "pyproject.toml"
            if not file.is_file():
                # A folder left behind by a branch switch holds caches only; git does not know it either.
                if any(folder.rglob("*.py")):
                    message = f"{folder} has Python files but no pyproject.toml; add it, or remove the folder"
                    raise WorkspaceError(message)
                continue
            pyproject = tomllib.loads(file.read_text(encoding="utf-8"))
            name = pyproject["project"]["name"]
            if name != folder.name:
                message = f"{file}: project.name is {name!r}; it must be the folder's name, {folder.name!r}"
                raise WorkspaceError(message)
            found.append(Distribution(name, folder, kind, pyproject))
    return tuple(found)


def import_linter_config(distributions: tuple[Distribution, ...]) -> str:
    """Return the import-linter configuration (TOML) for these distributions."""
    packages = [d for d in distributions if d.kind == "packages"]
    plugins = [d.import_name for d in distributions if d.kind == "plugins"]
    plain = [d.import_name for d in distributions if d.kind == "plugins" and not d.bridge]
    layers = []
    for layer in LAYERS:
        members = [d.import_name for d in packages if d.layer == layer]
        if members:
            layers.append(" | ".join(members))
    closed = [d.import_name for d in packages if not d.open_to_plugins]
    contracts: list[dict[str, Any]] = [
        {"name": "Imports point one way and never to a sibling", "type": "layers", "layers": layers}
    ]
    if plugins:
        contracts += [
            {
                "name": "Nothing imports a plugin: entry points reach it",
                "type": "forbidden",
                "source_modules": [d.import_name for d in packages],
                "forbidden_modules": plugins,
            },
            {
                "name": "Plugins import the contracts and the metadata ops only; bridges import any package",
                "type": "forbidden",
                "source_modules": plain,
                "forbidden_modules": closed,
            },
        ]
    if len(plugins) > 1:
        contracts.append(
            {"name": "Plugins do not import each other", "type": "independence", "modules": plugins}
        )
    lines = ["[tool.importlinter]", f"root_packages = {_toml([d.import_name for d in distributions])}"]
    for contract in contracts:
        lines += ["", "[[tool.importlinter.contracts]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in contract.items()]
    return "\n".join(lines) + "\n"


def fingerprint(*parts: object) -> str:
    """Return a digest of the parts, to tell whether an environment is up to date."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def python_path(distributions: tuple[Distribution, ...]) -> list[str]:
    """Return the source folders, for an interpreter that has nothing of ours installed."""
    return [str(d.src) for d in distributions]


def write_metadata(distributions: tuple[Distribution, ...], folder: Path) -> None:
    """Write the metadata folders that make entry points visible beside `python_path`, without installing.

    Not promised: dependencies. The interpreter's own packages are all there is.
    """
    for d in distributions:
        info = folder / f"{d.import_name}-{d.project['version']}.dist-info"
        info.mkdir(parents=True)
        header = f"Metadata-Version: 2.4\nName: {d.name}\nVersion: {d.project['version']}\n"
        (info / "METADATA").write_text(header, encoding="utf-8")
        lines = []
        for group, entries in d.entry_points.items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def _toml(value: str | list[str]) -> str:
    # JSON strings and arrays of strings are valid TOML.
    return json.dumps(value)


def main(arguments: list[str]) -> int:
    """Print what the workspace consists of: `list`, `import-linter` or `python-path`."""
    views = {
        "list": lambda ds: "\n".join(f"{d.kind:9}{d.name}" for d in ds),
        "import-linter": import_linter_config,
        "python-path": lambda ds: ":".join(python_path(ds)),
    }
    if len(arguments) != 1 or arguments[0] not in views:
        print(f"got {arguments}; allowed is one of: {', '.join(views)}", file=sys.stderr)
        return 2
    try:
        print(views[arguments[0]](discover()))
    except WorkspaceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
