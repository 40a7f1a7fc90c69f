"""Hooks register on every Python that we support, where the machine has it.

Annotations that name types only a type checker sees broke the registration of hooks on 3.14 once: reading a
signature evaluated them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wheelhouse import CleanEnvironment, Wheelhouse, build_outsiders, unpack

pytestmark = pytest.mark.slow

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
SAMPLES = ("sample_plugin", "sample_signal", "sample_policy")
# Built for one Python, so not to be had for another here.
BINARY = {"numpy", "torch", "pydantic", "pydantic_core", "pydantic_settings", "triton"}
PROGRAM = """\
import inspect, json, sys
from importlib import metadata

sys.path[:0] = sys.argv[1:]
import pluggy
from adaverify_contracts import ENTRY_POINT_GROUP, PROJECT_NAME, hookspecs

registered, missing = {}, {}
for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
    try:
        plugin = point.load()
    except ModuleNotFoundError as error:
        missing[point.name] = error.name
        continue
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    hooks = [name for name in vars(hookspecs) if name.startswith("adaverify_register_")]
    found = [item for hook in hooks for group in getattr(manager.hook, hook)() for item in group]
    registered[point.name] = [item.name for item in found]
    for item in found:
        for part in ("allocate", "factory", "probe", "load", "run", "supports"):
            if callable(getattr(item, part, None)):
                inspect.signature(getattr(item, part))
print(json.dumps([sys.version_info[:2], registered, missing]))
"""


def interpreter(version: str) -> str | None:
    """Return a Python of this version that starts, or None."""
    candidates = [shutil.which(f"python{version}")]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(path) for path in sorted(root.glob(f"versions/{version}*/bin/python{version}"))]
    for candidate in filter(None, candidates):
        # The name may belong to a shim that knows no such version.
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.fixture(scope="module")
def installed(wheelhouse: Wheelhouse, root, distributions, tmp_path_factory) -> tuple[Path, Path]:
    """Everything of ours and the samples in one folder, and pluggy, which is pure Python, in another."""
    home = tmp_path_factory.mktemp("versions")
    samples = [home / name for name in SAMPLES]
    for name in SAMPLES:
        shutil.copytree(root / "integration_tests" / name, home / name)
    wheels = [wheelhouse.wheel(d.name).file for d in distributions]
    outsiders = build_outsiders(samples, home / "wheels").values()
    environment = CleanEnvironment(home / "pluggy")
    environment.link({"pluggy"})
    return unpack([*wheels, *outsiders], home / "site"), environment.site


@pytest.mark.parametrize("version", VERSIONS)
def test_hooks_register(installed, distributions, version):
    """Every plugin whose imports are pure Python registers; what is missing is somebody's binary."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    command = [python, "-I", "-c", PROGRAM, *map(str, installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, registered, missing = json.loads(done.stdout)
    assert ".".join(map(str, found)) == version
    names = {name for d in distributions for name in d.entry_points.get("adaverify", {})}
    samples = {"sample", "sample-signal", "sample-policy"}
    assert registered.keys() | missing.keys() == names | samples
    assert set(missing.values()) <= BINARY, missing
    assert registered["reference"] == ["reference", "uniform"]
    assert registered["sample"] == ["sample", "sample"]
    assert registered["sample-signal"] == ["sample-signal"]
