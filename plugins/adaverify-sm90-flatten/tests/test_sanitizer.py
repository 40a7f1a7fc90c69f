"""compute-sanitizer finds nothing in the metadata and assignment kernels, and finds what was planted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sm90, pytest.mark.timeout(700)]

FOUND = 86
"""Exit status that the sanitizer is told to use when it found something."""
CHILD = Path(__file__).with_name("sanitized_kernels.py")


def sanitizer() -> str:
    """Return the tool's path, or skip with what was looked for."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [os.environ.get("PATH", os.defpath), *(f"{home}/bin" for home in homes if home)]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if found is None:
        pytest.skip("compute-sanitizer is neither on PATH nor in CUDA_HOME; install the CUDA toolkit")
    return found


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the kernels under one tool of the sanitizer."""
    done = subprocess.run(
        [sanitizer(), "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, str(CHILD), *arguments],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not support this device or its driver: 'Device not supported'")
    return done


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_kernels_are_clean(tool):
    """No access out of bounds, no race in shared memory, no divergent barrier."""
    done = run(tool)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "launched" in done.stdout


def test_a_planted_store_past_the_end_is_found():
    """The run above could fail."""
    done = run("memcheck", "--plant")
    assert done.returncode == FOUND, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Invalid __global__ write" in done.stdout
