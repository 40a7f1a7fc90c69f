"""The package exports what it says, documents it, and loads nothing heavy."""

import dataclasses
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import adaverify_contracts

MODULES = [
    importlib.import_module(f"adaverify_contracts.{item.name}")
    for item in pkgutil.iter_modules(adaverify_contracts.__path__)
]


def test_importing_the_contracts_loads_no_heavy_library():
    """The packages work without any engine, and the contracts without torch."""
    code = (
        "import sys, pkgutil, importlib, adaverify_contracts as c\n"
        "for item in pkgutil.iter_modules(c.__path__):\n"
        "    importlib.import_module(f'adaverify_contracts.{item.name}')\n"
        "heavy = {'torch', 'numpy', 'triton', 'pydantic', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_contracts_work_where_torch_cannot_be_imported():
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from adaverify_contracts import Limits, GraphKey, Requirements, Capability\n"
        "assert Limits(1, 7, 4096, 64).table_width == 65\n"
        "assert GraphKey(8, 1, 8, 65).dominates(GraphKey(3, 1, 8, 65))\n"
        "assert Requirements(modules=('torch',)).unmet(Capability('cpu', 'cpu', 'CPU', None, 1, 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_export_list_is_complete():
    names = adaverify_contracts.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(adaverify_contracts, name)
    loaded = {name for name, value in vars(adaverify_contracts).items() if not inspect.ismodule(value)}
    assert {name for name in loaded if not name.startswith("_")} - {"annotations"} == set(names)


def _public():
    for module in MODULES:
        if module.__name__.rsplit(".", 1)[1].startswith("_"):
            continue
        yield module.__name__, module
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            if inspect.isclass(value):
                for member, attribute in vars(value).items():
                    function = attribute.fget if isinstance(attribute, property) else attribute
                    if not member.startswith("_") and inspect.isfunction(function):
                        yield f"{module.__name__}.{name}.{member}", function


@pytest.mark.parametrize(
    ("name", "thing"), list(_public()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_public_name_has_a_docstring_of_its_own(name, thing):
    text = thing.__doc__ or ""
    assert len(text.split()) >= 3, name
    assert text.split("\n")[0].rstrip().endswith((".", ":", ",", ";")) or "\n" in text, name
    # A dataclass without a docstring gets its signature as one.
    if inspect.isclass(thing):
        assert not text.startswith(f"{thing.__name__}("), name


def test_value_types_are_frozen_with_slots():
    for name in adaverify_contracts.__all__:
        value = getattr(adaverify_contracts, name)
        if dataclasses.is_dataclass(value):
            assert value.__dataclass_params__.frozen, name
            assert "__slots__" in vars(value), name
