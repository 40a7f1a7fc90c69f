"""Import and exercise a module in a child process: it may crash, hang or misbind without hurting this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STDERR_CHARACTERS = 300
_ENV = "/usr/bin/env"

# The child writes its stage before each step, so that a crash is placed even when nothing else survives.
_CHILD = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
report = {"stage": "import", "version": "", "file": "", "value": None, "error": None}
def save():
    with open(request["report"], "w") as file:
        json.dump(report, file)
save()
try:
    import importlib
    module = importlib.import_module(request["module"])
    report["version"] = str(getattr(module, "__version__", ""))
    report["file"] = str(getattr(module, "__file__", "") or "")
    report["stage"] = "run"
    save()
    scope = {"module": module, "result": None, "__name__": "__isolated__"}
    exec(request["code"], scope)
    json.dumps(scope["result"])
    report["value"] = scope["result"]
    report["stage"] = "done"
except BaseException as error:
    text = " ".join(str(error).split()) or "no message"
    report["error"] = type(error).__name__ + ": " + text
save()
"""


@dataclass(frozen=True, slots=True)
class IsolatedResult:
    """What a child process did.

    Attributes:
        stage: how far it came: ``import``, ``run`` or ``done``; ``import`` means the import did not finish.
        ok: True when the import and the code both finished.
        version: the module's ``__version__``, empty when it has none.
        file: where the module was loaded from, empty when it was not.
        value: what the code left in ``result``; plain JSON values.
        reason: why it stopped, with error type and text, or that it finished.
        seconds: wall time of the child.
    """

    stage: str
    ok: bool
    version: str
    file: str
    value: Any
    reason: str
    seconds: float


def run_isolated(
    module: str, code: str = "", *, bind_now: bool = True, timeout_s: float = 120.0
) -> IsolatedResult:
    """Import ``module`` in a child process, run ``code`` there and report whatever the child does.

    Args:
        module: import name.
        code: Python source run after the import, with the module as ``module``; what it assigns to ``result``
            (JSON values) comes back.
        bind_now: True starts the child with LD_BIND_NOW=1, which the loader reads at process start only. With
            lazy binding a library built for another torch imports although symbols are missing
            (seen with sgl-deep-gemm 0.2.2). Has an effect on ELF systems only.
        timeout_s: seconds after which the child is killed.

    The child sees this process's ``sys.path`` and starts anew, without this process's device state. Nothing
    the child does raises here: whether it crashed, was killed or raised is in ``reason``.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="adaverify-") as folder:
        path = Path(folder) / "report.json"
        request = {"module": module, "code": code, "path": sys.path, "report": str(path)}
        ended, stderr = run_child(_command(bind_now), json.dumps(request), timeout_s)
        report = _load(path)
    return _result(module, report, ended, stderr, time.monotonic() - started)


def _command(bind_now: bool) -> list[str]:
    # env(1) adds one variable to what the child inherits; nothing here reads the environment.
    prefix = [_ENV, "LD_BIND_NOW=1"] if bind_now and Path(_ENV).exists() else []
    return [*prefix, sys.executable, "-c", _CHILD]


def run_child(command: list[str], request: str, timeout_s: float) -> tuple[str, str]:
    """Return how the child ended in words (empty when normally) and its standard error."""
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        return f"was killed after {timeout_s:g} s", _text(error.stderr)
    except OSError as error:
        return f"could not be started ({type(error).__name__}: {error})", ""
    if done.returncode < 0:
        return f"died of {signal_name(-done.returncode)}", done.stderr
    if done.returncode > 0:
        return f"exited with status {done.returncode}", done.stderr
    return "", done.stderr


def end_of(ended: str, doing: str, stderr: str) -> str:
    """Return in words how a child ended, at what, and the end of what it said."""
    tail = " ".join(stderr.split())[-_STDERR_CHARACTERS:]
    return f"the child process {ended} while {doing}" + (f": {tail}" if tail else "")


def _text(raw: object) -> str:
    # Output cut off by the time limit arrives as bytes even in text mode, on some Python versions.
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")


def signal_name(number: int) -> str:
    """Return what a signal is called, such as ``SIGABRT``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _load(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError):
        report = {}
    return report if isinstance(report, dict) else {}


def _result(module: str, report: dict[str, Any], ended: str, stderr: str, seconds: float) -> IsolatedResult:
    stage = str(report.get("stage", "import"))
    doing = {"import": f"importing {module}", "run": f"running the probe of {module}"}.get(stage, "ending")
    if report.get("error"):
        reason = f"{report['error']} while {doing}"
    elif ended:
        reason = end_of(ended, doing, stderr)
    elif stage == "done":
        reason = f"{module} imported and its probe finished"
    else:
        reason = end_of("left no result", doing, stderr)
    return IsolatedResult(
        stage=stage,
        ok=stage == "done" and not ended,
        version=str(report.get("version", "")),
        file=str(report.get("file", "")),
        value=report.get("value"),
        reason=reason,
        seconds=seconds,
    )
