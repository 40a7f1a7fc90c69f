"""What a manager is made from: settings, sizes, and where its trace goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import SettingsError, StepRecord, TraceError
from adaverify_replay import read_header, read_trace
from adaverify_runtime import PathSettings, PlannerSettings, Settings
from adaverify_vllm import activation
from adaverify_vllm.ranks import Alone


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
    write = activation.trace_of(settings.paths, settings, config(rank))
    for step in range(activation.FLUSH_EVERY):
        write(record(step))
    assert [item.step for item in read_trace(tmp_path / name)] == list(range(activation.FLUSH_EVERY))
    assert read_header(tmp_path / name).settings["mode"] == "adaptive"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_trace_is_written_unless_asked(tmp_path):
    settings = Settings(paths=PathSettings(trace=None))
    assert activation.trace_of(settings.paths, settings, config()) is None


def test_a_trace_of_another_setup_is_refused(tmp_path):
    for margin in (0.02, 0.03):
        paths, planner = PathSettings(trace=tmp_path / "t"), PlannerSettings(margin=margin)
        settings = Settings(paths=paths, planner=planner)
        if margin == 0.03:
            with pytest.raises(TraceError, match="another setup"):
                activation.trace_of(paths, settings, config())
        else:
            activation.trace_of(paths, settings, config())


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
