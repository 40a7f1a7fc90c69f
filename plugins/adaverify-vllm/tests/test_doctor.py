"""``adaverify doctor --vllm`` says what serving would do."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from adaverify_replay import TraceHeader, TraceWriter
from adaverify_vllm import report, seams


@pytest.fixture
def beside(monkeypatch):
    """A supported vLLM without seams: what is wrong is the environment. Returns its variables."""
    envs = ModuleType("vllm.envs")
    envs.VLLM_PLUGINS = None
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    monkeypatch.setattr(seams, "vllm_version", lambda: "0.33.0")
    monkeypatch.setattr(seams, "has_runner", lambda: True)
    monkeypatch.setattr(seams, "SEAMS", ())
    monkeypatch.setattr(seams, "ROW_SEAMS", ())
    return envs


def parts(found):
    return {part["name"]: part for part in found["parts"]}


def test_nothing_wrong_is_no_problem(beside):
    found = report()
    assert (found["problems"], found["warnings"]) == ([], [])
    assert parts(found)["manager"]["active"]
    assert "ADAVERIFY_PATHS_TRACE is unset" in parts(found)["trace"]["reasons"][0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ADAVERIFY_PLANNER_POLICY", "garbage", "ratio or price"),
        ("ADAVERIFY_PLANNER_MARGIN", "nan", "a number in 0 .. 10"),
        ("ADAVERIFY_PLANNER_MODE", "sometimes", "none, fixed or adaptive"),
        ("ADAVERIFY_RELAY_DEPTH", "-1", "an int in 2"),
        ("ADAVERIFY_VLLM_AGREEMENT", "by vote", "rank0 or digest"),
        ("ADAVERIFY_VLLM", "perhaps", "on or off"),
        ("ADAVERIFY_VLLM", "off", "ADAVERIFY_VLLM is off"),
    ],
)
def test_what_activation_would_refuse_is_a_problem(beside, monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    found = report()
    (problem,) = found["problems"]
    assert name in problem
    assert words in problem
    assert not any(part["active"] for part in found["parts"])


def test_a_bridge_that_vllm_is_told_to_leave_out_cannot_act(beside):
    beside.VLLM_PLUGINS = ["lora_filesystem_resolver"]
    (problem,) = report()["problems"]
    assert "VLLM_PLUGINS is 'lora_filesystem_resolver'" in problem
    beside.VLLM_PLUGINS = ["adaverify", "others"]
    assert report()["problems"] == []


def test_a_package_that_activation_imports_and_is_missing_is_a_problem(beside, monkeypatch):
    monkeypatch.delitem(sys.modules, "adaverify_vllm.activation", raising=False)
    monkeypatch.setitem(sys.modules, "adaverify_verification", None)
    (problem,) = report()["problems"]
    assert "adaverify_verification" in problem


def test_a_variable_that_no_setting_reads_is_a_warning(beside, monkeypatch):
    monkeypatch.setenv("ADAVERIFY_PLANNER_MARGINS", "0.1")
    found = report()
    assert found["problems"] == []
    (warning,) = found["warnings"]
    assert "ADAVERIFY_PLANNER_MARGINS is set and no setting reads it" in warning


@pytest.mark.parametrize("where", ["no/such/folder/t", ".", "text", "other"])
def test_a_trace_that_would_not_be_written_is_a_warning(beside, monkeypatch, tmp_path, where):
    """The bridge would act; nothing is created and nothing changed by asking."""
    (tmp_path / "text").write_text("somebody's notes\n")
    TraceWriter(tmp_path / "other", TraceHeader(settings={"mode": "fixed"})).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(tmp_path / where))
    found = report()
    assert found["problems"] == []
    (warning,) = found["warnings"]
    assert str(tmp_path) in warning
    assert parts(found)["manager"]["active"]
    assert not parts(found)["trace"]["active"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("there", [False, True])
def test_a_trace_that_would_be_written_is_active(beside, monkeypatch, tmp_path, there):
    if there:
        (tmp_path / "t").write_bytes(b"")
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(tmp_path / "t"))
    found = report()
    assert (found["problems"], found["warnings"]) == ([], [])
    assert parts(found)["trace"]["active"]
    assert [path.name for path in tmp_path.iterdir()] == (["t"] if there else [])
