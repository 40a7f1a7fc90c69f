"""What source files import and read, found by parsing them."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

# Modules of kernel libraries whose distribution has another name and cannot be installed on every machine.
KERNEL_LIBRARIES = {"deep_gemm": "tokenspeed-deepgemm"}
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb"}


@dataclass(frozen=True)
class Import:
    """One absolute import statement of one name."""

    file: Path
    line: int
    module: str

    @property
    def top(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: import of {self.module}"


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def imports(file: Path, *, typing: bool = False) -> Iterator[Import]:
    """Yield the absolute imports that can happen at run time, those inside functions included.

    With `typing`, also those that only a type checker sees.

    Opening a package's data with `importlib.resources.files` counts: it needs the package as much.
    Not included: `importlib.import_module`, which a probe uses on a library that need not be there.
    """
    yield from _imports(file, file.stat().st_mtime_ns, typing)


@cache
def _imports(file: Path, changed: int, typing: bool) -> tuple[Import, ...]:
    """Find the imports once a version of a file: several tests ask for the same ones."""
    return tuple(_find_imports(file, typing))


def _find_imports(file: Path, typing: bool) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if typing else _executed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                # `from a import b` names a module or an attribute; private is private either way.
                yield Import(file, node.lineno, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Call) and _called(node.func) == "files":
            constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from (Import(file, node.lineno, value) for value in constants if isinstance(value, str))


def environment_reads(file: Path) -> Iterator[str]:
    """Yield a line for each place that reaches for the process environment."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        attribute = (
            isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES and _called(node.value) == "os"
        )
        imported = (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(alias.name in ENVIRONMENT_NAMES for alias in node.names)
        )
        if attribute or imported:
            yield f"{file}:{node.lineno}"


def third_party(module: str) -> str | None:
    """Return the distribution that provides a top-level module, or None for the standard library."""
    if module in sys.stdlib_module_names:
        return None
    if module in KERNEL_LIBRARIES:
        return KERNEL_LIBRARIES[module]
    providers = _providers().get(module, [])
    # Unknown here: the module's own name is the best guess, and the message shows it.
    return canonicalize_name(providers[0] if providers else module)


@cache
def _providers() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the bodies that only a type checker reads."""
    yield node
    if isinstance(node, ast.If) and re.fullmatch(r"(typing\.)?TYPE_CHECKING", ast.unparse(node.test)):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _executed(child)


def _called(node: ast.AST) -> str:
    """Return the last word of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
