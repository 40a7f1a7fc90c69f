"""What torch says about one device, before any kernel runs."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING

from adaverify_capability.architectures import CPU, architecture_of
from adaverify_contracts import Capability, CapabilityError

if TYPE_CHECKING:
    pass

FactsProvider = Callable[[str], Capability]
"""Given a torch device string, return a ``Capability`` without kernels, or raise ``CapabilityError``."""

_DRIVER_FILES = {"cuda": Path("/proc/driver/nvidia/version"), "rocm": Path("/sys/module/amdgpu/version")}


def device_facts(device: str) -> Capability:
    """Read the facts of a CPU, CUDA or ROCm device through torch; initialises that device's runtime.

    Args:
        device: a torch device string such as ``cpu``, ``cuda`` or ``cuda:1`` (ROCm devices are ``cuda`` too).

    Raises:
        CapabilityError: torch is missing, the string names no device, or this machine does not have it.
    """
    try:
        import torch
    except ImportError as error:
        raise CapabilityError(
            "a device cannot be read without torch",
            arrived=f"{type(error).__name__}: {error}",
            allowed="an importable torch",
            remedy="install torch for this machine's accelerator",
        ) from error
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _unavailable(device, str(error), torch) from error
    if parsed.type == "cpu":
        return _cpu_facts(torch.__version__)
    if parsed.type != "cuda":
        raise _unavailable(device, f"device type {parsed.type!r} is not supported", torch)
    if not torch.cuda.is_available():
        raise _unavailable(device, "torch finds no CUDA or ROCm device", torch)
    # torch types the index as an int, but "cuda" has none.
    index = torch.cuda.current_device() if parsed.index is None else parsed.index
    if index >= torch.cuda.device_count():
        raise _unavailable(device, f"this machine has {torch.cuda.device_count()} devices", torch)
    return accelerator_facts(
        torch.cuda.get_device_properties(index),
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        hip_version=torch.version.hip,
    )


def accelerator_facts(
    properties: object, *, torch_version: str, cuda_version: str | None, hip_version: str | None
) -> Capability:
    """Turn torch's device properties into facts; ``hip_version`` decides between ROCm and CUDA.

    Args:
        properties: what ``torch.cuda.get_device_properties`` returned.
        torch_version: ``torch.__version__``.
        cuda_version: ``torch.version.cuda``.
        hip_version: ``torch.version.hip``, None in a CUDA build.
    """
    rocm = hip_version is not None
    device_type = "rocm" if rocm else "cuda"
    # On ROCm major and minor are an ISA number that would collide with a CUDA compute capability (gfx942
    # reports (9, 4)), so they are not a compute capability.
    compute = None if rocm else (int(properties.major), int(properties.minor))  # type: ignore[attr-defined]
    key = str(properties.gcnArchName) if compute is None else compute  # type: ignore[attr-defined]
    return Capability(
        device_type=device_type,
        architecture=architecture_of(key),
        device_name=str(properties.name),  # type: ignore[attr-defined]
        compute_capability=compute,
        processors=int(properties.multi_processor_count),  # type: ignore[attr-defined]
        memory_bytes=int(properties.total_memory),  # type: ignore[attr-defined]
        versions=_versions(
            torch=torch_version,
            hip=hip_version,
            cuda=None if rocm else cuda_version,
            driver=_driver_version(device_type),
        ),
    )


def _cpu_facts(torch_version: str) -> Capability:
    return Capability(
        device_type="cpu",
        architecture=CPU,
        device_name=_cpu_name(),
        compute_capability=None,
        processors=_cpu_count(),
        memory_bytes=_cpu_memory(),
        versions=_versions(torch=torch_version),
    )


def _versions(**known: str | None) -> tuple[tuple[str, str], ...]:
    pairs = {"python": platform.python_version(), **{key: value for key, value in known.items() if value}}
    with suppress(PackageNotFoundError):
        pairs["triton"] = distribution_version("triton")
    return tuple(sorted(pairs.items()))


def _driver_version(device_type: str) -> str | None:
    try:
        text = _DRIVER_FILES[device_type].read_text()
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(?:\.\d+)*", text)
    return found.group(0) if found else None


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine() or "CPU"


def _cpu_count() -> int:
    # The affinity mask is what a container grants; cpu_count would report the whole host.
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _cpu_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def _unavailable(device: str, why: str, torch: object) -> CapabilityError:
    count = torch.cuda.device_count()  # type: ignore[attr-defined]
    here = ["cpu", *(f"cuda:{index}" for index in range(count))]
    return CapabilityError(
        f"device {device!r} cannot be used: {why}",
        arrived=device,
        allowed=", ".join(here),
        remedy="choose a device of this machine, or install a torch built for the accelerator",
    )
