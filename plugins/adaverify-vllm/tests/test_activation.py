"""What a manager is made from: settings, sizes, and where its trace goes."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from adaverify_contracts import SettingsError, StepRecord
from adaverify_replay import read_header, read_trace
from adaverify_runtime import PathSettings, PlannerSettings, Settings
from adaverify_vllm import activation, seams, tracing
from adaverify_vllm.manager import BridgeManager
from adaverify_vllm.ranks import Alone
from adaverify_vllm.settings import SIGNAL, settings_in_force

FACTS = {"model": "some/model"}


def config(rank=0):
    return SimpleNamespace(
        model_config=SimpleNamespace(model="some/model", dtype="bfloat16"),
        parallel_config=SimpleNamespace(tensor_parallel_size=4, data_parallel_rank=rank),
    )


def record(step):
    values = dict.fromkeys(("step", "requests", "certain_tokens", "scheduled", "planned", "verified"), step)
    values |= dict.fromkeys(("accepted", "emitted", "tokens", "tier", "realised_tokens"), step)
    return StepRecord(
        **values,
        state="full",
        reason="",
        strategy="vllm",
        predicted_seconds=None,
        realised_seconds=None,
        predicted_tokens=0.0,
        lag=None,
        digest="0",
    )


@pytest.mark.parametrize(("rank", "name"), [(0, "t.jsonl"), (1, "t.jsonl.dp1"), (3, "t.jsonl.dp3")])
def test_each_data_parallel_rank_has_a_trace_of_its_own(tmp_path, rank, name):
    """Two processes that append to one file would mix their steps."""
    settings = Settings(paths=PathSettings(trace=tmp_path / "t.jsonl"))
    write = tracing.trace_of(settings, FACTS, rank)
    for step in range(tracing.FLUSH_EVERY):
        write(record(step))
    assert [item.step for item in read_trace(tmp_path / name)] == list(range(tracing.FLUSH_EVERY))
    assert read_header(tmp_path / name).settings["mode"] == "adaptive"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_trace_is_written_unless_asked(tmp_path):
    settings = Settings(paths=PathSettings(trace=None))
    assert tracing.trace_of(settings, FACTS, 0) is None


@pytest.fixture
def given(drive, monkeypatch):
    """A maker of what vLLM's factory is given, with the names that activation asks of vLLM."""
    envs = ModuleType("vllm.envs")
    envs.VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN = 8192
    adaptive = ModuleType(seams.ADAPTIVE)
    adaptive.AdmittedDraftCounts = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    monkeypatch.setitem(sys.modules, seams.ADAPTIVE, adaptive)
    monkeypatch.setattr(activation, "vllm_ranks", Alone)

    def make():
        made = drive()
        return {
            "req_states": made.state,
            "query_start_loc": made.boundaries,
            "num_bonus_tokens": 1,
            "max_total_logits": 10**6,
            "vllm_config": config(),
        }

    return make


@pytest.fixture
def said(caplog):
    """The lines of the log, information included."""
    caplog.set_level(logging.INFO, "vllm.adaverify")
    return lambda: [item.getMessage() for item in caplog.records]


def test_a_trace_of_another_setup_costs_the_trace_alone(given, monkeypatch, tmp_path, said):
    """Adaptive first, then fixed on the same file: the bridge acts in both, and the file keeps the first."""
    path = tmp_path / "t.jsonl"
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(path))
    assert activation.activate(given()).recorded
    kept = path.read_bytes()
    monkeypatch.setenv("ADAVERIFY_PLANNER_MODE", "fixed")
    made = activation.activate(given())
    assert (made.recorded, made.planner.options.mode) == (False, "fixed")
    assert path.read_bytes() == kept
    (line,) = [text for text in said() if "writes no trace" in text]
    assert "belongs to another setup" in line
    assert "write to a new file" in line
    assert [text for text in said() if "is active: mode fixed" in text and "no trace" in text]


@pytest.mark.parametrize("where", ["no/such/folder/t", ".", "text"])
def test_a_trace_that_cannot_be_opened_costs_the_trace_alone(given, monkeypatch, tmp_path, said, where):
    """A folder that is missing, one instead of a file, and a file of somebody else's."""
    (tmp_path / "text").write_text("somebody's notes\n")
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(tmp_path / where))
    assert not activation.activate(given()).recorded
    assert len([text for text in said() if "no trace" in text and "is active: mode" not in text]) == 1
    assert (tmp_path / "text").read_text() == "somebody's notes\n"


def test_the_header_of_a_trace_says_what_it_was_measured_on(given, monkeypatch, tmp_path):
    """The setup, and the settings as they are in force: the signal is vLLM's."""
    path = tmp_path / "t.jsonl"
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(path))
    activation.activate(given())
    header = read_header(path)
    assert header.fingerprint == {
        "model": "some/model",
        "device": "cpu",
        "dtype": "bfloat16",
        "draft_tokens": 7,
        "shards": 4,
        "torch": torch.__version__,
        "vllm": seams.vllm_version() or "unknown",
    }
    settings = header.settings
    assert (settings["signal"], settings["mixed_tiers"]) == (SIGNAL, True)
    assert (settings["mode"], settings["policy"], settings["margin"]) == ("adaptive", "ratio", 0.02)
    assert not {"warmup_steps", "lossless"} & set(settings)


@pytest.mark.parametrize("part", ["put_rows", "said"])
def test_what_fails_once_the_ranks_have_agreed_costs_no_manager(given, monkeypatch, said, part):
    """The others have made theirs by then."""

    def fails(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(activation, part, fails)
    made = activation.activate(given())
    assert isinstance(made, BridgeManager)
    assert [text for text in said() if "RuntimeError: no such thing" in text]


@pytest.mark.parametrize("name", ["COST_TABLE", "CALIBRATION"])
def test_a_file_that_does_nothing_in_vllm_is_said(given, monkeypatch, tmp_path, said, name):
    monkeypatch.setenv(f"ADAVERIFY_PATHS_{name}", str(tmp_path / "a.json"))
    activation.activate(given())
    assert len([text for text in said() if f"ADAVERIFY_PATHS_{name} is set and does nothing" in text]) == 1


def test_a_wrong_setting_beside_a_wrong_trace_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(tmp_path))
    assert settings_in_force()[0].paths.trace is None
    monkeypatch.setenv("ADAVERIFY_PLANNER_MARGIN", "nan")
    with pytest.raises(SettingsError, match="ADAVERIFY_PLANNER_MARGIN"):
        settings_in_force()


def test_a_policy_that_the_bridge_has_not_is_refused_by_name():
    settings = Settings(planner=PlannerSettings(policy="own-policy"))
    with pytest.raises(SettingsError, match="ADAVERIFY_PLANNER_POLICY"):
        activation.make_manager({"req_states": None}, settings, Alone())


@pytest.mark.parametrize(
    ("device", "slots", "drafts", "backend"),
    [
        ("cpu", 8, 7, "torch"),
        ("cuda", 256, 7, "triton"),
        ("cuda", 2048, 7, "torch"),
        ("cuda", 8, 16, "torch"),
    ],
)
def test_the_assignment_is_one_launch_where_the_kernel_serves(device, slots, drafts, backend):
    state = SimpleNamespace(device=torch.device(device), max_num_reqs=slots, num_speculative_steps=drafts)
    assert activation.assign_backend(state) == backend


def test_step_times_belong_to_the_setup_they_were_profiled_on():
    state = SimpleNamespace(device=torch.device("cpu"), num_speculative_steps=7)
    facts = activation.facts_of(config(), state)
    assert facts["device"] == "cpu"
    assert facts["shards"] == 4
    assert facts["model"] == "some/model"
    assert facts["draft_tokens"] == 7
