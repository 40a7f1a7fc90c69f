"""Fixtures of the workspace's own tests: the distributions found by folder, and their wheels built once."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The discovery that nox uses, and the helpers beside this file; importlib mode puts neither on the path.
sys.path[:0] = [str(ROOT / ".ci"), str(ROOT / "integration_tests" / "support")]

import workspace  # noqa: E402
from wheelhouse import CleanEnvironment, Wheelhouse  # noqa: E402

DISTRIBUTIONS = workspace.discover(ROOT)
# Projects of their own, as an outsider's: test_sample_plugins.py runs their tests where they are installed.
collect_ignore_glob = ["sample_*"]


def pytest_collection_finish() -> None:
    """Take the imported modules and the collected tests out of the garbage collector's sight.

    They stay to the end anyway, and every full collection would walk all of them: a graph capture starts one.
    """
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `nox -s build` test the very files it built."""
    parser.addoption("--wheelhouse", help="folder with every wheel and sdist, built beforehand")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `distribution` once for each."""
    if "distribution" in metafunc.fixturenames:
        metafunc.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: d.name)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the workspace."""
    return ROOT


@pytest.fixture(scope="session")
def distributions() -> tuple[workspace.Distribution, ...]:
    """Every distribution of the workspace."""
    return DISTRIBUTIONS


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Every file that git tracks or would, were it added now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in sorted(set(listed.split("\0"))) if name]
    # A file removed and not yet committed is still listed.
    return [file for file in files if file.is_file()]


@pytest.fixture(scope="session")
def wheelhouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wheelhouse:
    """The built wheel and sdist of every distribution."""
    given = request.config.getoption("--wheelhouse")
    if given:
        return Wheelhouse(Path(given).resolve())
    house = Wheelhouse(tmp_path_factory.mktemp("wheelhouse"))
    house.build(DISTRIBUTIONS)
    return house


@pytest.fixture(scope="session")
def command_line(wheelhouse: Wheelhouse, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """One environment for all tests of what an outsider adds: the command line and the kit, from wheels.

    No test installs into it: plugins go into folders of their own, which a test puts on the path.
    """
    environment = CleanEnvironment(tmp_path_factory.mktemp("command-line") / "clean")
    names = ("adaverify", "adaverify-testing")
    for name in names:
        environment.link(wheelhouse.closure(name)[1])
    environment.install(*names, wheelhouse=wheelhouse)
    return environment
