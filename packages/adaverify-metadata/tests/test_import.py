"""Importing kernel modules decorates nothing and reads nothing; loading does, once."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types

import pytest

from adaverify_contracts import CapabilityError
from adaverify_metadata import _jit

KERNELS = ["flatten", "paired", "uniform", "tail_heavy", "head_heavy"]


def test_the_package_imports_without_triton():
    """Triton is an optional dependency; the torch backend needs none."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import adaverify_metadata as m\n"
        "from adaverify_contracts import Limits\n"
        "m.FlattenRowBuilder('flatten', Limits(1, 1, 8, 4), 'cpu', backend='torch')\n"
        "try:\n"
        "    m.FlattenRowBuilder('flatten', Limits(1, 1, 8, 4), 'cpu', backend='triton')\n"
        "except ImportError:\n"
        "    print('refused')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.parametrize("name", KERNELS)
def test_loading_decorates_a_module_once(name):
    """The same kernel object every time, its helpers included."""
    path = f"adaverify_metadata.ops.{name}.kernel"
    first = getattr(_jit.load(path), f"{name}_kernel")
    assert not isinstance(first, types.FunctionType)
    assert getattr(_jit.load(path), f"{name}_kernel") is first
    module = importlib.import_module(path)
    functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
    assert [value.__name__ for value in functions if hasattr(value, _jit._OPTIONS)] == []


def test_a_compiled_kernel_refuses_a_cpu(kit, monkeypatch):
    """Outside the interpreter a CPU tensor would be handed over as a raw pointer."""

    class Compiled:
        """Stands for what triton.jit returns when it compiles."""

    module = types.SimpleNamespace(some_kernel=Compiled())
    monkeypatch.setattr(_jit, "load", lambda name: module)
    device = types.SimpleNamespace(type="cpu")
    with pytest.raises(CapabilityError, match="backend='torch'"):
        _jit.kernel_for("anything", "some_kernel", device)
