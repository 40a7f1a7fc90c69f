"""Importing any package touches no device and reads no environment."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from workspace import Distribution

# Whichever test is first waits for the imports of every distribution, and beside others that takes minutes.
pytestmark = pytest.mark.timeout(600)

# What a library cannot be kept from reading while a class of ours is defined, and why.
LIBRARY_READS = {
    "environment variable PYDANTIC_DISABLE_PLUGINS read": "pydantic looks for plugins for every model",
}

# Libraries that several distributions import. What one does while it is imported is its own business, and
# loading them once, before the forks, takes a fraction of the time.
LIBRARIES = ("numpy", "pluggy", "pydantic", "pydantic_settings", "pytest", "rich", "triton", "typer")
# Runs in a child process, which forks for every package, so that libraries are imported once for them all and
# no package sees what another imported: imports every module of one, and reports what the imports did.
CHILD = textwrap.dedent(
    """
    import gc, importlib, json, os, pkgutil, sys

    watch_torch, libraries, packages = sys.argv[1] == "torch", sys.argv[2].split(), sys.argv[3:]
    package, events = None, []


    def culprit():
        # Who called, up to the nearest import: a read while torch imports itself is torch's business, a read
        # by anything that our module calls is ours.
        frame = sys._getframe(2)
        while frame is not None and "importlib" not in frame.f_code.co_filename:
            if frame.f_globals.get("__name__", "").split(".")[0] == package:
                return f"{frame.f_globals['__name__']}:{frame.f_lineno}"
            frame = frame.f_back
        return None


    class Recorder(type(os.environ)):
        def __getitem__(self, key):
            place = culprit()
            if place:
                events.append(f"environment variable {key} read by {place}")
            return super().__getitem__(key)

        def __iter__(self):
            place = culprit()
            if place:
                events.append(f"environment listed by {place}")
            return super().__iter__()


    os.environ.__class__ = Recorder

    if watch_torch:
        import torch

        def watch(owner, name):
            original = getattr(owner, name)

            def watched(*args, **kwargs):
                events.append(f"torch.cuda.{name} called by {culprit() or 'a library'}")
                return original(*args, **kwargs)

            setattr(owner, name, watched)

        for name in ("_lazy_init", "is_available", "device_count", "current_device", "get_device_capability",
                     "get_device_name", "get_device_properties"):
            watch(torch.cuda, name)

    for library in libraries:
        importlib.import_module(library)

    gc.freeze()  # Or every collection in a fork would copy the pages of all libraries.
    for package in packages:
        child = os.fork()
        if child:
            if os.waitpid(child, 0)[1]:
                sys.exit(f"importing {package} failed")
            continue
        module = importlib.import_module(package)
        names = [package]
        for info in pkgutil.walk_packages(module.__path__, package + "."):
            if not info.name.endswith(".__main__"):
                importlib.import_module(info.name)
                names.append(info.name)
        torch = sys.modules.get("torch")
        print(json.dumps({
            "package": package,
            "events": events,
            "modules": names,
            "torch": torch is not None,
            "cuda": torch is not None and torch.cuda.is_initialized(),
        }), flush=True)
        os._exit(0)  # All is said; taking an interpreter with torch apart takes longer than the imports.
    """
)


def observe(
    *packages: str, torch: bool = True, path: str | None = None, libraries: tuple[str, ...] = ()
) -> dict[str, dict]:
    """Import every module of each package in a process of its own and return what that did, by package."""
    prefix = f"import sys; sys.path.insert(0, {path!r})\n" if path else ""
    watched = "torch" if torch else "bare"
    command = [sys.executable, "-c", prefix + CHILD, watched, " ".join(libraries), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"package"')]
    return {one["package"]: one for one in seen}


@pytest.fixture(scope="module")
def observed(distributions) -> dict[str, dict]:
    """What importing each distribution did."""
    return observe(*(d.import_name for d in distributions), libraries=LIBRARIES)


def test_import_touches_no_device_and_reads_no_environment(observed, distribution: Distribution):
    """Every module of the package, imported; a launch or a read belongs to a call somebody makes."""
    seen = observed[distribution.import_name]
    ours = [event for event in seen["events"] if not event.startswith(tuple(LIBRARY_READS))]
    assert ours == []
    assert not seen["cuda"]
    files = [path for path in distribution.package.rglob("*.py") if path.stem != "__main__"]
    assert len(seen["modules"]) == len(files)


def test_the_contracts_do_not_load_torch():
    """Plugin authors and tools read the contracts on machines without torch; it is there for typing only."""
    assert not observe("adaverify_contracts", torch=False)["adaverify_contracts"]["torch"]


def test_offenders_are_caught(tmp_path):
    """The watch sees each thing it is there to see, also through a library function."""
    offences = {
        "os.environ.get('AV_A')": "environment variable AV_A read",
        "os.getenv('AV_B')": "environment variable AV_B read",
        "'AV_C' in os.environ": "environment variable AV_C read",
        "dict(os.environ)": "environment listed",
        "os.path.expanduser('~')": "environment variable HOME read",
        "torch.cuda.is_available()": "torch.cuda.is_available called",
    }
    folder = tmp_path / "offender"
    folder.mkdir()
    (folder / "__init__.py").write_text("import os, torch\n" + "\n".join(offences))
    events = observe("offender", path=str(tmp_path))["offender"]["events"]
    missed = [f"{what} by offender:{line}" for line, what in enumerate(offences.values(), 2)]
    assert [expected for expected in missed if expected not in events] == []


def test_what_a_library_does_while_it_is_imported_is_not_ours(tmp_path):
    """Importing a library that reads the environment is not a read of ours; calling it is."""
    (tmp_path / "library.py").write_text("import os\nos.getenv('AV_D')\ndef call():\n    os.getenv('AV_E')\n")
    folder = tmp_path / "caller"
    folder.mkdir()
    (folder / "__init__.py").write_text("import library\nlibrary.call()\n")
    events = observe("caller", torch=False, path=str(tmp_path))["caller"]["events"]
    assert events == ["environment variable AV_E read by caller:2"]
