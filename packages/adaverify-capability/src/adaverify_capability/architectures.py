"""The exact table of architectures: a device is one entry or ``unknown``, never a family."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import LayoutError

UNKNOWN = "unknown"
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table.

    Attributes:
        word: what strategies name in their requirements.
        device_type: ``cpu``, ``cuda`` or ``rocm``.
        compute_capability: (major, minor) for CUDA, else None.
        part: a typical part of this architecture, for people.
        processors: processors of that part; used only when a device is assumed, never when one is read.
    """

    word: str
    device_type: str
    compute_capability: tuple[int, int] | None
    part: str
    processors: int


def _cuda(major: int, minor: int, part: str, processors: int) -> Architecture:
    return Architecture(f"sm{major}{minor}", "cuda", (major, minor), part, processors)


def _rocm(word: str, part: str, processors: int) -> Architecture:
    return Architecture(word, "rocm", None, part, processors)


# (10, 1), (10, 7), (11, 0), (12, 0) and (12, 1) are listed so that a report can name them. They are not the
# datacentre parts beside them: what was executed on (9, 0) or (10, 0) says nothing about them
# (DeepGEMM #425: an illegal access on (12, 1) only).
_TABLE = (
    Architecture(CPU, "cpu", None, "CPU", 1),
    _cuda(7, 0, "V100", 80),
    _cuda(7, 5, "T4", 40),
    _cuda(8, 0, "A100", 108),
    _cuda(8, 6, "A10", 72),
    _cuda(8, 7, "Orin", 16),
    _cuda(8, 9, "L40S", 142),
    _cuda(9, 0, "H100", 132),
    _cuda(10, 0, "B200", 148),
    _cuda(10, 1, "Thor before CUDA 13", 20),
    _cuda(10, 3, "B300", 148),
    # No part of it is known here; one processor is the smallest number that any schedule accepts.
    _cuda(10, 7, "part not known", 1),
    _cuda(11, 0, "Thor", 20),
    _cuda(12, 0, "RTX 5090", 170),
    _cuda(12, 1, "GB10", 48),
    _rocm("gfx908", "MI100", 120),
    _rocm("gfx90a", "MI250X, one die", 110),
    _rocm("gfx942", "MI300X", 304),
    _rocm("gfx950", "MI355X", 256),
    _rocm("gfx1100", "RX 7900 XTX", 96),
    _rocm("gfx1201", "RX 9070 XT", 64),
)

ARCHITECTURES: dict[str, Architecture] = {row.word: row for row in _TABLE}
_BY_COMPUTE_CAPABILITY = {row.compute_capability: row.word for row in _TABLE if row.compute_capability}


def architecture_of(key: object) -> str:
    """Return the table's word for a device, ``unknown`` when the table does not list exactly that device.

    Args:
        key: a CUDA compute capability ``(major, minor)``, a ROCm name with or without its feature suffix
            (``gfx942:sramecc+:xnack-``), or ``cpu``.

    Raises:
        LayoutError: the key is neither a pair of ints nor a string.
    """
    if isinstance(key, str):
        word = key.split(":", 1)[0]
        row = ARCHITECTURES.get(word)
        return word if row is not None and row.device_type != "cuda" else UNKNOWN
    if isinstance(key, tuple) and len(key) == 2 and all(type(part) is int for part in key):
        return _BY_COMPUTE_CAPABILITY.get((key[0], key[1]), UNKNOWN)
    raise LayoutError(
        "an architecture is looked up by the device's own name",
        arrived=key,
        allowed="(major, minor) of a CUDA device, a gfx name of a ROCm device, or 'cpu'",
        remedy="pass torch.cuda.get_device_capability() or the properties' gcnArchName",
    )
