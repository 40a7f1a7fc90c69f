"""What ``adaverify doctor --vllm`` shows: versions, seams, what would be active, and why not."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from adaverify_vllm import seams
from adaverify_vllm.plugin import switched_off, unsupported

# The entry point's name in vLLM's group of plugins.
ENTRY = "adaverify"


def report() -> dict[str, Any]:
    """Return the report, JSON-ready: versions, every seam, active parts and the reasons against.

    What activation would refuse is a problem; what it would say and go on without is a warning. Imports
    vLLM's model runner, which takes many seconds; changes nothing in it, and creates no file.
    """
    reasons, warnings, trace = _settings()
    if (why := unsupported()) is not None:
        reasons.append(why)
    found: tuple[seams.Found, ...] = ()
    rows: tuple[seams.Found, ...] = ()
    if seams.vllm_version() is not None:
        reasons += left_out()
        found, rows = seams.look(seams.SEAMS), seams.look(seams.ROW_SEAMS)
        reasons += seams.differences(found)
    parts = [
        _part("manager", reasons, "planner, relay and assignment, where enable_adaptive_verification is on"),
        _part(
            "rows",
            [*reasons, *seams.differences(rows), *_device()],
            "ragged decode rows in one launch, where the sparse indexer flattens them",
        ),
        _part("trace", [*reasons, *trace], "a record of each step with drafts"),
    ]
    return {
        "bridge": "vllm",
        "versions": _versions(),
        "supported": list(seams.SUPPORTED),
        "seams": [
            {"name": item.seam.where, "fits": item.fits, "found": item.form, "expected": item.seam.form}
            for item in (*found, *rows)
        ],
        "parts": parts,
        "problems": reasons,
        "warnings": warnings,
    }


def _settings() -> tuple[list[str], list[str], list[str]]:
    """Return what activation would refuse, what it would only say, and what keeps a trace away."""
    try:
        if switched_off():
            return ["ADAVERIFY_VLLM is off"], [], []
        import_module("adaverify_vllm.rows")
        from adaverify_vllm.activation import policy_of
        from adaverify_vllm.settings import settings_in_force
        from adaverify_vllm.tracing import trace_problem

        settings, warnings = settings_in_force()
        trace = trace_problem(settings)
        asked = trace is not None and settings.paths.trace is not None
        try:
            policy_of(settings.planner)
            refused: list[str] = []
        except Exception as error:  # noqa: BLE001 - what activation would meet is what is reported
            refused = [f"{type(error).__name__}: {error}"]
        return refused, [*warnings, *([trace] if trace and asked else [])], [trace] if trace else []
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return [f"{type(error).__name__}: {error}"], [], []


def left_out() -> list[str]:
    """Return the reason why vLLM would not load the bridge, as a list that is empty where it would."""
    named = import_module("vllm.envs").VLLM_PLUGINS
    if named is None or ENTRY in named:
        return []
    return [f"VLLM_PLUGINS is {','.join(named)!r} and leaves the bridge out: add {ENTRY} to it, or unset it"]


def _part(name: str, reasons: list[str] | tuple[str, ...], what: str) -> dict[str, Any]:
    return {"name": name, "active": not reasons, "what": what, "reasons": list(reasons)}


def _device() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["no CUDA device is available: the rows are for compute capability 9.0"]
    capability = torch.cuda.get_device_capability()
    return [] if capability == (9, 0) else [f"the device has compute capability {capability}, not 9.0"]


def _versions() -> dict[str, str]:
    names = ("adaverify-vllm", "adaverify-verification", "vllm", "torch", "triton", "numpy")
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
