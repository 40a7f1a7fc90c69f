"""Where the Triton kernel runs in these tests: on an accelerator, else in the interpreter."""

from __future__ import annotations

import os

import pytest
import torch

# Read by Triton when a kernel module is first imported, hence here and not in a fixture.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def kernel_device() -> torch.device:
    """Return the device the kernel runs on here."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
