"""vLLM's real classes, or a skip that says how to get them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parents[1] / "benchmarks"), str(FOLDER)]


def pytest_collection_modifyitems(items):
    """Skip what stands here where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is not None:
        return
    reason = "vllm is not installed; `nox -s vllm` installs it (9 GB) and runs these"
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def vllm():
    """vLLM's modules on host memory, in a group of one rank."""
    from _vllm_host import load

    return load()


@pytest.fixture(params=["theirs", "ours"])
def case(request, vllm):
    """A maker of cases over vLLM's manager and over ours: what holds for the one must hold for the other."""
    from _vllm_host import Case, ours, theirs

    def make(**sizes):
        options = {"margin": 0.0, "hysteresis": 0.0, "explore_share": 0.0}
        maker = theirs(vllm) if request.param == "theirs" else ours(vllm, **options)
        return Case(vllm, maker, **sizes)

    return make


@pytest.fixture
def both(vllm):
    """A maker of two cases of equal sizes: vLLM's manager, and ours without a margin."""
    from _vllm_host import Case, ours, theirs

    def make(**sizes):
        eager = ours(vllm, margin=0.0, hysteresis=0.0, explore_share=0.0)
        return Case(vllm, theirs(vllm), **sizes), Case(vllm, eager, **sizes)

    return make
