"""Build distributions, read what their wheels declare, and install them into clean environments."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from email.message import Message
from email.parser import Parser
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from workspace import Distribution

# Programs for `CleanEnvironment.call("-c", ...)`. The first argument names folders, joined by colons, whose
# modules and entry points are there beside what the environment has.
_ON_PATH = "import sys\nsys.path[:0] = sys.argv.pop(1).split(':')\n"
COMMAND = _ON_PATH + "from adaverify.cli import main\nmain()\n"
PYTEST = _ON_PATH + "import pytest\nsys.exit(pytest.main(sys.argv[1:]))\n"
# The first argument is the folder for the results, the others are projects. Sdists are unpacked beside them.
_BUILD = """
import os, shutil, sys
from hatchling.build import build_sdist, build_wheel

output, folders = os.path.abspath(sys.argv[1]), sys.argv[2:]
for folder in folders:
    os.chdir(folder)
    sdist = build_sdist(output)
    shutil.unpack_archive(os.path.join(output, sdist), folder + ".unpacked", filter="data")
    os.chdir(os.path.join(folder + ".unpacked", sdist.removesuffix(".tar.gz")))
    build_wheel(output)
"""


class Wheel:
    """One built wheel: its file names and its declared metadata."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @cached_property
    def names(self) -> list[str]:
        """Every path in the archive."""
        with zipfile.ZipFile(self.file) as archive:
            return archive.namelist()

    @cached_property
    def metadata(self) -> Message:
        """The parsed METADATA file."""
        return Parser().parsestr(self.read("METADATA"))

    @property
    def requirements(self) -> list[Requirement]:
        """Every declared requirement, those of extras included."""
        return [Requirement(text) for text in self.metadata.get_all("Requires-Dist", [])]

    def read(self, name: str) -> str:
        """Return a file of the metadata folder."""
        (path,) = [n for n in self.names if n.endswith(f".dist-info/{name}")]
        with zipfile.ZipFile(self.file) as archive:
            return archive.read(path).decode()


class Wheelhouse:
    """A folder with the wheel and the sdist of every distribution."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, distributions: Sequence[Distribution]) -> None:
        """Build each sdist, and the wheel from the sdist, out of copies that have no workspace around them.

        One process calls the build backend for all of them; `nox -s build` goes through the build frontend.
        """
        with tempfile.TemporaryDirectory() as alone:
            copies = [Path(alone) / distribution.name for distribution in distributions]
            for copy, distribution in zip(copies, distributions, strict=True):
                shutil.copytree(distribution.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            check([sys.executable, "-c", _BUILD, self.folder, *copies], cwd=alone)

    def wheel(self, name: str) -> Wheel:
        """Return the one wheel of a distribution."""
        stem = name.replace("-", "_")
        found = sorted(self.folder.glob(f"{stem}-[0-9]*.whl"))
        if len(found) != 1:
            message = f"{self.folder} has {len(found)} wheels of {name}, expected one: {found}"
            raise LookupError(message)
        return Wheel(found[0])

    def sdist(self, name: str) -> Path:
        """Return the one sdist of a distribution."""
        (found,) = self.folder.glob(f"{name.replace('-', '_')}-[0-9]*.tar.gz")
        return found

    def closure(self, requirement: str) -> tuple[set[str], set[str]]:
        """Return what installing this requirement brings: names of ours, and names of others.

        Ours are read from the wheels, others from what is installed here, so nothing is downloaded.
        """
        ours: set[str] = set()
        others: set[str] = set()
        seen: set[tuple[str, frozenset[str]]] = set()
        queue = [Requirement(requirement)]
        while queue:
            current = queue.pop()
            name, extras = canonicalize_name(current.name), frozenset(current.extras)
            if (name, extras) in seen:
                continue
            seen.add((name, extras))
            if name == "adaverify" or name.startswith("adaverify-"):
                ours.add(name)
                declared = self.wheel(name).requirements
            else:
                others.add(name)
                declared = [Requirement(text) for text in importlib.metadata.requires(name) or []]
            queue += [r for r in declared if applies(r, extras)]
        return ours, others


class CleanEnvironment:
    """A virtual environment in which exactly the named third-party distributions are installed, by link.

    Linking keeps torch from being copied for every test, and an undeclared import still fails.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site,) = (folder / "lib").glob("python*/site-packages")

    def link(self, names: set[str]) -> None:
        """Make the installed distributions of these names importable here."""
        for name in sorted(names):
            distribution = importlib.metadata.distribution(name)
            base = Path(str(distribution.locate_file("")))
            tops = {file.parts[0] for file in distribution.files or []}
            for top in sorted(tops - {"..", "__pycache__"}):
                target = self.site / top
                if not target.exists():
                    target.symlink_to(base / top)

    def install(self, *requirements: str | Path, wheelhouse: Wheelhouse) -> None:
        """Install from the wheelhouse alone; pip refuses if a dependency is in neither place."""
        options = ["--no-index", "--find-links", wheelhouse.folder, "--no-compile", "-q"]
        # An isolated pip reads no configuration, so no machine's index or constraints take part.
        pip = [sys.executable, "-m", "pip", "--isolated", "--python", self.python]
        check([*pip, "install", *options, *requirements])

    def run(self, code: str, *arguments: str) -> str:
        """Run code in the environment and return what it printed."""
        return check([self.python, "-I", "-c", code, *arguments], cwd=self.folder)

    def call(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python without this process's import path and return what became of it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ADAVERIFY_")}
        return subprocess.run(
            [str(self.python), "-I", *map(str, arguments)],
            cwd=self.folder,
            env=kept | {"COLUMNS": "400", "NO_COLOR": "1"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )


def build_outsiders(folders: Iterable[Path], output: Path) -> dict[str, Path]:
    """Build the wheels of projects outside the workspace and return them by folder name."""
    output.mkdir(parents=True, exist_ok=True)
    code = (
        "import os, sys\n"
        "from hatchling.build import build_wheel\n"
        "for folder in sys.argv[2:]:\n"
        "    os.chdir(folder)\n"
        "    print(build_wheel(sys.argv[1]))\n"
    )
    listed = list(folders)
    names = check([sys.executable, "-c", code, output, *listed]).split()
    return {folder.name: output / name for folder, name in zip(listed, names, strict=True)}


def unpack(wheels: Iterable[Path], target: Path) -> Path:
    """Install wheels into a folder of its own, without what they depend on; it goes on a path as a whole."""
    options = ["--no-index", "--no-deps", "--no-compile", "-q", "--target", target]
    check([sys.executable, "-m", "pip", "--isolated", "install", *options, *wheels])
    return target


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a declared requirement counts on this machine with these extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""})


def check(command: list[str | Path], cwd: str | Path | None = None) -> str:
    """Run a command and return its output; a failure shows what it printed."""
    # Source folders on the path would count as installed, and pip would leave out what they hold.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(map(str, command))} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        raise AssertionError(message)
    return done.stdout
