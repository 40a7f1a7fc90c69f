"""``adaverify doctor --vllm``: the bridge's own report, found by entry point."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint

import pytest

from adaverify.commands import bridge

FITS = {
    "bridge": "vllm",
    "versions": {"vllm": "0.33.0", "torch": "2.14.0"},
    "supported": ["0.33"],
    "seams": [{"name": "a.b", "fits": True, "found": "(x)", "expected": "(x)"}],
    "parts": [{"name": "manager", "active": True, "what": "planner", "reasons": []}],
    "problems": [],
}
DIFFERS = FITS | {
    "seams": [{"name": "a.b", "fits": False, "found": "(x, y)", "expected": "(x)"}],
    "parts": [{"name": "manager", "active": False, "what": "planner", "reasons": ["a.b is [(x, y)]"]}],
    "problems": ["a.b is [(x, y)]"],
}


def fits():
    return FITS


def differs():
    return DIFFERS


@pytest.fixture
def found(monkeypatch):
    """Let the command line find these bridges."""

    def make(*values):
        points = [EntryPoint("vllm", value, bridge.GROUP) for value in values]
        monkeypatch.setattr(bridge, "entry_points", lambda **_: points)

    return make


def test_a_bridge_that_can_act_is_shown(found, invoke, monkeypatch):
    found("here:fits")
    monkeypatch.setattr(bridge, "_load", lambda _: fits)
    result = invoke("doctor", "--vllm")
    assert result.exit_code == 0, result.stderr
    for words in ("Versions", "0.33.0", "a.b", "as expected", "manager"):
        assert words in result.stdout
    assert "The bridge into vllm can act here" in result.stdout
    assert json.loads(invoke("doctor", "--vllm", "--json").stdout) == FITS


def test_what_differs_is_named_and_fails(found, invoke, monkeypatch):
    """The form that was found, the reason, and an exit code that a script can read."""
    found("here:differs")
    monkeypatch.setattr(bridge, "_load", lambda _: differs)
    result = invoke("doctor", "--vllm")
    assert result.exit_code == 1
    assert "(x, y)" in result.stdout
    assert "a.b is [(x, y)]" in result.stdout + result.stderr


def test_a_warning_is_shown_and_does_not_fail(found, invoke, monkeypatch):
    found("here:warns")
    monkeypatch.setattr(bridge, "_load", lambda _: lambda: FITS | {"warnings": ["no trace would be written"]})
    result = invoke("doctor", "--vllm")
    assert result.exit_code == 0
    assert "warning: no trace would be written" in result.stdout + result.stderr


def test_a_bridge_that_is_not_installed_says_what_to_install(found, invoke):
    found()
    result = invoke("doctor", "--vllm")
    assert result.exit_code == 3
    assert "the bridge into vllm is not installed" in result.stderr
    assert "pip install adaverify-vllm" in result.stderr


def test_a_bridge_that_cannot_be_imported_is_named(found, invoke):
    found("no_such_bridge.anywhere:report")
    result = invoke("doctor", "--vllm")
    assert result.exit_code == 3
    assert "no_such_bridge" in result.stderr


def test_no_device_is_named_beside_it(invoke):
    assert invoke("doctor", "--vllm", "--device", "cpu").exit_code == 2


def test_the_workspaces_own_bridge_is_found(invoke):
    """Where vLLM is missing the report says so; nothing of it is needed for that."""
    result = invoke("doctor", "--vllm", "--json")
    report = json.loads(result.stdout)
    assert report["bridge"] == "vllm"
    assert result.exit_code == (1 if report["problems"] else 0)
