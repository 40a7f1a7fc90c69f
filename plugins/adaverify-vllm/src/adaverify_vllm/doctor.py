"""What ``adaverify doctor --vllm`` shows: versions, seams, what would be active, and why not."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from adaverify_vllm import seams
from adaverify_vllm.plugin import switched_off, unsupported


def report() -> dict[str, Any]:
    """Return the report, JSON-ready: versions, every seam, active parts and the reasons against.

    Imports vLLM's model runner, which takes many seconds; changes nothing in it.

    Raises:
        SettingsError: a setting is wrong.
    """
    reasons: list[str] = []
    if switched_off():
        reasons.append("ADAVERIFY_VLLM is off")
    if (why := unsupported()) is not None:
        reasons.append(why)
    found: tuple[seams.Found, ...] = ()
    rows: tuple[seams.Found, ...] = ()
    if seams.vllm_version() is not None:
        found, rows = seams.look(seams.SEAMS), seams.look(seams.ROW_SEAMS)
        reasons += seams.differences(found)
    parts = [
        _part("manager", reasons, "planner, relay and assignment, where enable_adaptive_verification is on"),
        _part(
            "rows",
            [*reasons, *seams.differences(rows), *_device()],
            "ragged decode rows in one launch, where the sparse indexer flattens them",
        ),
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
    }


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
