"""What `adaverify plugins` warns of, on standard error."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize("command", [("plugins",), ("plugins", "--json"), ("plugins", "support")])
def test_a_misspelt_name_is_warned_of(tiny, invoke, monkeypatch, command):
    """The plugin that was meant is in force, and the list of plugins looked as if nothing had been asked."""
    monkeypatch.setenv("ADAVERIFY_PLUGINS_DISABLED", '["engin"]')
    result = invoke(*command)
    assert result.exit_code == 0
    assert "engin" in result.stderr
    assert result.stdout
    if "--json" in command:
        assert json.loads(result.stdout)


def test_a_variable_that_is_none_is_warned_of(tiny, invoke, monkeypatch):
    monkeypatch.setenv("ADAVERIFY_PLUGINS_DISABELD", "[]")
    assert "ADAVERIFY_PLUGINS_DISABELD" in invoke("plugins").stderr


def test_without_anything_to_warn_of_nothing_is_said(tiny, invoke):
    assert invoke("plugins").stderr == ""
