"""The kernels on the device at hand: compiled on a GPU, else in Triton's interpreter.

Only in that of Triton 3.6, the workspace's own: later ones fail on masked loads. vLLM brings its own Triton,
so beside it these are skipped on a CPU and the torch form is what runs.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _runs() -> str:
    if DEVICE == "cuda":
        return ""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "triton is not installed"
    return "" if found.startswith("3.6.") else f"the interpreter of triton {found} does not run these kernels"


if DEVICE == "cpu" and not _runs():
    # Before any kernel is first used; importing a kernel's module reads nothing.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items):
    """Skip where no device and no interpreter runs them."""
    why = _runs()
    for item in items:
        if why and item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def device():
    return torch.device(DEVICE)
