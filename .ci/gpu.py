"""Run the tests of one marker on this machine's GPU, with this interpreter and nothing installed.

Usage: python .ci/gpu.py {gpu,sm90,sm100} [pytest arguments]

All tests of the marker run unless a file or folder is among the arguments.

GPU machines come with torch and pytest, often without nox, a network, or our packages. The source folders go
on the import path, and metadata folders made for the occasion let entry points be discovered.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import workspace

# Exact capabilities: a neighbour in the same family has not the same kernels.
DEVICES = {"gpu": None, "sm90": {(9, 0)}, "sm100": {(10, 0), (10, 3)}}


def refusal(marker: str) -> str | None:
    """Return why the tests of this marker cannot run here, or None."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch; the {marker} tests need one built for CUDA"
    import torch

    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no CUDA device; run the {marker} tests on a machine that has one"
        )
    wanted = DEVICES[marker]
    found = torch.cuda.get_device_capability()
    if wanted is not None and found not in wanted:
        allowed = " or ".join(f"{major}.{minor}" for major, minor in sorted(wanted))
        name = torch.cuda.get_device_name()
        return f"{name} has compute capability {found[0]}.{found[1]}; the {marker} tests need {allowed}"
    return None


def tolerant_options() -> list[str]:
    """Return pytest options that let the workspace's configuration stand without optional plugins."""
    if importlib.util.find_spec("pytest_timeout"):
        return []
    # `timeout` is then an unknown setting, which strict configuration refuses and warnings-as-errors repeats.
    relaxed = "addopts=--import-mode=importlib --strict-markers -ra"
    return ["-o", relaxed, "-W", "ignore::pytest.PytestConfigWarning"]


def left_out(root: Path, marker: str) -> dict[Path, str]:
    """Return the test files and folders that need a module that is not here and hold no test of this marker.

    GPU machines lack tools such as hypothesis. What names the marker is kept, and fails without them. A
    folder is left out when its conftest.py needs the module.
    """
    found = {}
    for kind in (*workspace.KINDS, "integration_tests"):
        for file in sorted((root / kind).rglob("*.py")):
            whole = file.name == "conftest.py"
            if not (whole or file.name.startswith("test_")):
                continue
            place = file.parent if whole else file
            tests = file.parent.rglob("test_*.py") if whole else [file]
            if any(f"mark.{marker}" in test.read_text(encoding="utf-8") for test in tests):
                continue
            imports = sorted(_top_level_imports(file.read_text(encoding="utf-8")))
            missing = next(filter(None, map(_missing, imports)), None)
            if missing:
                found[place] = missing
    return found


def _top_level_imports(text: str) -> set[str]:
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def _missing(module: str) -> str | None:
    """Return which module is not here when this one is imported, for it may be a need of a need."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return error.name
    except Exception:  # noqa: BLE001  (pytest will import it again and show this one properly)
        return None
    return None


def main(arguments: list[str]) -> int:
    """Check the device, then run pytest on the tests of the marker."""
    if not arguments or arguments[0] not in DEVICES:
        print(f"got {arguments}; the first argument must be one of: {', '.join(DEVICES)}", file=sys.stderr)
        return 2
    marker, *rest = arguments
    reason = refusal(marker)
    if reason:
        print(f"not run: {reason}", file=sys.stderr)
        return 1
    distributions = workspace.discover()
    with tempfile.TemporaryDirectory(prefix="adaverify-gpu-") as folder:
        workspace.write_metadata(distributions, Path(folder))
        path = [*workspace.python_path(distributions), folder, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        sys.path[:0] = workspace.python_path(distributions)
        skipped = left_out(workspace.ROOT, marker)
        for file, module in skipped.items():
            print(
                f"left out, no {marker} test and no module {module} here: {file.relative_to(workspace.ROOT)}"
            )
        options = [*tolerant_options(), *(f"--ignore={file}" for file in skipped)]
        # Named one by one: pytest imports the conftest.py of its configured test folders even when ignored.
        folders = [*(d.folder / "tests" for d in distributions), workspace.ROOT / "integration_tests"]
        named = any(Path(argument.partition("::")[0]).exists() for argument in rest)
        chosen = [] if named else [str(one) for one in folders if one.is_dir() and one not in skipped]
        command = [sys.executable, "-m", "pytest", *options, "-m", marker, *rest, *chosen]
        return subprocess.run(command, cwd=workspace.ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
