"""The pytest plugin: fixtures and the conformance kit, for this repository and authors outside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from adaverify_testing import capabilities, managers, models, poisoning, tolerances, waiting
from adaverify_testing.compiling import TritonCompiler
from adaverify_testing.conformance.hooks import pytest_addoption, pytest_configure

if TYPE_CHECKING:
    import torch

    from adaverify_contracts import Capability, LoadedModel

__all__ = [
    "assert_close",
    "fake_capability",
    "inline_entry_points",
    "isolated_manager",
    "poison",
    "pytest_addoption",
    "pytest_configure",
    "refusing_waits",
    "tiny_model",
    "triton_compiler",
]


@pytest.fixture
def isolated_manager() -> Callable[..., managers.IsolatedManager]:
    """Return a function from plugins to a manager that holds exactly these and can discover no other."""
    return managers.isolated_manager


@pytest.fixture
def inline_entry_points() -> Callable[..., tuple[managers.InlineEntryPoint, ...]]:
    """Return a function from (name, plugin) pairs to entry points, for loaders that take them."""
    return managers.inline_entry_points


@pytest.fixture
def fake_capability() -> Callable[..., Capability]:
    """Return a function from an architecture word and kernels to a capability."""
    return capabilities.fake_capability


@pytest.fixture
def poison() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that fills a tensor with values no correct result holds."""
    return poisoning.poison


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Return a function that compares a tensor with its reference by the table of tolerances."""
    return tolerances.assert_close


@pytest.fixture
def tiny_model() -> Callable[..., LoadedModel]:
    """Return a function to a two-layer model with random weights and its tokenizer."""
    return models.tiny_model


@pytest.fixture
def refusing_waits() -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager in which every call of torch that waits for the device raises."""
    return waiting.refusing_waits


@pytest.fixture(scope="session")
def triton_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonCompiler]:
    """Return what runs scripts where Triton compiles, one process for all tests; skips without Triton."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    with TritonCompiler(tmp_path_factory.mktemp("triton")) as compiler:
        yield compiler
