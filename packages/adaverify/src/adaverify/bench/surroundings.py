"""Where a measurement was taken: device, clocks as found, versions, commit, command."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from adaverify_contracts import Capability

_SECONDS = 20
_CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
_LIBRARIES = ("torch", "triton", "numpy")


def surroundings(device: str, capability: Capability, repeat: int) -> dict[str, Any]:
    """Return what identifies a measurement, JSON-ready; what is not known is None."""
    return {
        "device": device,
        "device_name": capability.device_name,
        "architecture": capability.architecture,
        "processors": capability.processors,
        "host": platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: _version(name, capability) for name in _LIBRARIES},
        "kernels": {
            report.name: {"version": report.version, "level": report.level.name.lower()}
            for report in capability.kernels
        },
        "commit": commit(),
        "packages": packages(),
        "command": ["adaverify", *sys.argv[1:]],
        "repeat": repeat,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def clocks(device: str) -> dict[str, str] | None:
    """Return the clocks, power and temperature of a CUDA device as found, None without nvidia-smi."""
    if not device.startswith("cuda") or shutil.which("nvidia-smi") is None:
        return None
    # By id, since nvidia-smi counts devices that CUDA_VISIBLE_DEVICES hides.
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    query = ["nvidia-smi", f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader"]
    found = _output([*query, f"--id=GPU-{uuid}"]) if uuid is not None else None
    # A container may show another id than the driver's; with one card there is nothing to choose.
    if found is None and torch.cuda.device_count() == 1:
        found = _output(query)
    if not found:
        return None
    values = [value.strip() for value in found.splitlines()[0].split(",")]
    return dict(zip(_CLOCKS, values, strict=True)) if len(values) == len(_CLOCKS) else None


def commit() -> str | None:
    """Return the commit of the source tree this runs from, ``+`` behind it when files differ from it.

    None when the package was installed: ``packages`` then says which versions ran.
    """
    folder = str(Path(__file__).resolve().parent)
    if shutil.which("git") is None:
        return None
    # An installation may lie inside somebody's repository, whose commit says nothing about it.
    if _output(["git", "-C", folder, "ls-files", "--error-unmatch", __file__]) is None:
        return None
    head = _output(["git", "-C", folder, "rev-parse", "HEAD"])
    if not head:
        return None
    return head + ("+" if _output(["git", "-C", folder, "status", "--porcelain", "-uno"]) else "")


def packages() -> dict[str, str]:
    """Return the versions of the installed adaverify distributions, by name."""
    found = {}
    for distribution in metadata.distributions():
        name = distribution.name or ""
        if name == "adaverify" or name.startswith("adaverify-"):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def _version(name: str, capability: Capability) -> str | None:
    if name == "torch":
        return str(torch.__version__)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return capability.version(name) or None


def _output(command: list[str]) -> str | None:
    """Return what a command printed, None when it failed or hung."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
