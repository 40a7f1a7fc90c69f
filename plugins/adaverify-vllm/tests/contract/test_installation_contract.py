"""How the bridge gets into vLLM's processes, and that it stays out where it is not wanted."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from _vllm_child import IDENTITY, LOADED, WORKER, child


@pytest.mark.timeout(400)
def test_vllms_loader_finds_the_built_wheel_and_imports_no_runner():
    """The plugin is found by entry point, watches, and costs no process the model runner's import."""
    assert importlib.metadata.distribution("adaverify-vllm").read_text("WHEEL")
    found = child(
        LOADED
        + """
new = {name.partition(".")[0] for name in after - before}
watching = [f.name for f in sys.meta_path if isinstance(f, ImportWatch)]
print(json.dumps({
    "file": adaverify_vllm.__file__,
    "watching": watching,
    "runner": "vllm.v1.worker.gpu.model_runner" in sys.modules,
    "new": sorted(new),
}))
""",
        # vLLM has plugins of its own, which bring a hub's client.
        VLLM_PLUGINS="adaverify",
    )
    assert "site-packages" in found["file"]
    assert found["watching"] == ["vllm.v1.worker.gpu.model_runner"]
    assert not found["runner"]
    # Of ours the one package, and nothing that vLLM had not imported itself.
    third_party = set(found["new"]) - set(sys.stdlib_module_names)
    assert third_party == {"adaverify_vllm"}


@pytest.mark.timeout(400)
def test_with_the_switch_off_vllms_objects_are_the_originals():
    found = child(LOADED + IDENTITY, ADAVERIFY_VLLM="off")
    assert found == {"same": True, "wraps": False, "prepare": True, "watching": False}


@pytest.mark.timeout(400)
def test_where_the_configuration_asks_for_nothing_vllms_objects_are_the_originals():
    """As in a worker: the plugin is loaded first, the runner imported under its configuration."""
    under = """
import vllm.platforms
vllm.platforms.current_platform.device_type = "cpu"
from vllm.config import VllmConfig, set_current_vllm_config
with set_current_vllm_config(VllmConfig()):
    import vllm.v1.worker.gpu.model_runner
"""
    found = child(LOADED + under + IDENTITY)
    assert found == {"same": True, "wraps": False, "prepare": True, "watching": False}


@pytest.mark.timeout(400)
def test_a_worker_that_is_asked_for_nothing_has_the_originals_when_it_serves():
    """A worker imports the runner before its configuration is in force: vLLM's own answer tells."""
    asked = """
import vllm.v1.worker.gpu.model_runner as runner
assert "adaverify" in runner.maybe_create_adaptive_verification_manager.__code__.co_filename
answer = runner.maybe_create_adaptive_verification_manager(
    enable_adaptive_verification=False, attn_groups=[], req_states=None, query_start_loc=None,
    num_bonus_tokens=1, max_total_logits=1, vllm_config=None,
)
assert answer is None
"""
    found = child(LOADED + WORKER + asked + IDENTITY)
    assert found == {"same": True, "wraps": False, "prepare": True, "watching": False}


@pytest.fixture
def installed(vllm):
    """The bridge in vLLM's seams, and everything as before afterwards."""
    from adaverify_vllm import install, uninstall

    name = "maybe_create_adaptive_verification_manager"
    original = getattr(vllm.runner, name)
    assert install(vllm.runner)
    assert install(vllm.runner), "a second time changes nothing"
    yield getattr(vllm.runner, name)
    uninstall()
    assert getattr(vllm.runner, name) is original


def arguments(vllm, **more):
    """What the model runner passes to the factory."""
    state = vllm.states.RequestState(8, 4096, 512, 7, 1000, torch.device("cpu"))
    config = SimpleNamespace(
        model_config=SimpleNamespace(model="some/model", dtype="bfloat16"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_rank=0),
    )
    return {
        "enable_adaptive_verification": True,
        "attn_groups": [],
        "req_states": state,
        "query_start_loc": torch.zeros(9, dtype=torch.int32),
        "num_bonus_tokens": 1,
        "max_total_logits": 10**6,
        "vllm_config": config,
    } | more


def test_the_factory_makes_our_manager_and_says_so_in_one_line(vllm, installed, caplog):
    from adaverify_vllm.manager import BridgeManager

    with caplog.at_level(logging.INFO, "vllm.adaverify"):
        vllm_logger = logging.getLogger("vllm")
        kept, vllm_logger.propagate = vllm_logger.propagate, True
        try:
            made = installed(**arguments(vllm))
        finally:
            vllm_logger.propagate = kept
    assert isinstance(made, BridgeManager)
    lines = [record.getMessage() for record in caplog.records if "is active" in record.getMessage()]
    assert len(lines) == 1
    assert "mode adaptive, K 7, up to 8 requests, assignment torch" in lines[0]
    assert "ADAVERIFY_VLLM=off turns it off" in lines[0]


def test_with_the_flag_off_the_factory_returns_what_vllms_returns_and_leaves(vllm, installed):
    """The runner has vLLM's own from then on."""
    assert installed(**arguments(vllm, enable_adaptive_verification=False)) is None
    factory = vllm.runner.maybe_create_adaptive_verification_manager
    assert factory is vllm.adaptive.maybe_create_adaptive_verification_manager


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ADAVERIFY_PLANNER_POLICY", "no-such-policy"),
        ("ADAVERIFY_PLANNER_MODE", "sometimes"),
        ("ADAVERIFY_PLANNER_MARGIN", "a lot"),
        ("ADAVERIFY_PLANNER_MARGIN", "nan"),
        ("ADAVERIFY_RELAY_DEPTH", "-1"),
        ("ADAVERIFY_VLLM_AGREEMENT", "by vote"),
        ("ADAVERIFY_VLLM", "perhaps"),
    ],
)
def test_a_wrong_setting_leaves_vllms_own_manager(vllm, installed, monkeypatch, caplog, name, value):
    """Nothing is replaced in silence and nothing raises into vLLM: one line names the setting."""
    monkeypatch.setenv(name, value)
    logger = logging.getLogger("vllm.adaverify")
    logger.addHandler(caplog.handler)
    try:
        made = installed(**arguments(vllm))
    finally:
        logger.removeHandler(caplog.handler)
    assert type(made) is vllm.adaptive.AdaptiveVerificationManager
    (line,) = {record.getMessage() for record in caplog.records}
    assert line.startswith("adaverify-vllm is not active, vLLM's own adaptive verification is")
    assert name in line


def test_a_trace_that_cannot_be_opened_leaves_ours_without_one(vllm, installed, monkeypatch, caplog):
    """The trace is lost, the bridge is not."""
    from adaverify_vllm.manager import BridgeManager

    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", "/proc/nobody/may/write/here")
    logger = logging.getLogger("vllm.adaverify")
    logger.addHandler(caplog.handler)
    try:
        made = installed(**arguments(vllm))
    finally:
        logger.removeHandler(caplog.handler)
    assert isinstance(made, BridgeManager)
    (line,) = {
        record.getMessage()
        for record in caplog.records
        if record.name == logger.name and record.levelno >= logging.WARNING
    }
    assert line.startswith("adaverify-vllm writes no trace, and is active without")
    assert "/proc/nobody/may/write/here" in line


def test_install_beside_the_real_runner_obeys_the_switch(vllm, monkeypatch):
    from adaverify_vllm import install

    monkeypatch.setenv("ADAVERIFY_VLLM", "off")
    assert install(vllm.runner) is False
    factory = vllm.runner.maybe_create_adaptive_verification_manager
    assert factory is vllm.adaptive.maybe_create_adaptive_verification_manager


def test_a_trace_holds_what_the_steps_did(vllm, installed, monkeypatch, tmp_path):
    """The file of ADAVERIFY_PATHS_TRACE, in the format that `adaverify report` reads."""
    from adaverify_replay import read_trace

    trace = tmp_path / "trace.jsonl"
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(trace))
    given = arguments(vllm)
    made = installed(**given)
    state = given["req_states"]
    state.add_request("a", 5, [1, 2, 3, 4, 5], 5, 100)
    slot = state.req_id_to_index["a"]
    state.total_len.gpu[slot] = 5
    made.add_request(slot)
    import numpy as np

    rows = torch.tensor([slot])
    batch = SimpleNamespace(num_reqs=1, idx_mapping=rows, idx_mapping_np=np.array([slot]))
    for _ in range(8):
        made.get_num_tokens({"a": 8}, {"a": [-1] * 7})
        made.compact_batch(np.array([7], np.int32), np.array([8], np.int32), np.array([0, 8], np.int32))
        made.reallocate_drafts(["a"], rows)
        state.total_len.gpu[slot] += 3
        made.record_confidences(torch.full((8, 7), 0.5), batch)
    records = read_trace(trace)
    assert [record.step for record in records] == list(range(8))
    assert {(record.verified, record.accepted, record.emitted) for record in records} == {(7, 2, 3)}
    assert {record.state for record in records} == {"unpriced"}


CHANGES = {
    "another signature": ("adaptive", "AdaptiveVerificationManager.get_num_tokens", lambda self, tokens: 0),
    "a keyword more": ("runner", "maybe_create_adaptive_verification_manager", lambda *, a, b: None),
    "a method gone": ("adaptive", "AdaptiveVerificationManager.reallocate_drafts", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_seam_that_changed_leaves_vllm_untouched(vllm, monkeypatch, caplog, change):
    """One line says which, and what to do; the factory is the one that was there."""
    from adaverify_vllm import install

    where, name, new = CHANGES[change]
    owner = getattr(vllm, where)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if new is None:
        monkeypatch.delattr(owner, last)
    else:
        monkeypatch.setattr(owner, last, new)
    factory = vllm.runner.maybe_create_adaptive_verification_manager
    logger = logging.getLogger("vllm.adaverify")
    logger.addHandler(caplog.handler)
    try:
        assert install(vllm.runner) is False
    finally:
        logger.removeHandler(caplog.handler)
    assert vllm.runner.maybe_create_adaptive_verification_manager is factory
    lines = {record.getMessage() for record in caplog.records}
    assert len(lines) == 1
    assert last in lines.pop()


def test_a_method_more_that_the_runner_calls_is_a_changed_seam(vllm):
    """What the runner calls on the manager is read from its source."""
    import types

    from adaverify_vllm.seams import SEAMS, methods_used

    (used,) = [seam for seam in SEAMS if seam.read is methods_used]
    assert used.form == methods_used(vllm.runner)
    another = types.ModuleType("another_runner")
    source = "self.adaptive_verification.add_request(1)\nself.adaptive_verification.new_method(2)\n"
    import inspect

    kept = inspect.getsource
    inspect.getsource = lambda module: source if module is another else kept(module)
    try:
        assert methods_used(another) == "add_request, new_method"
    finally:
        inspect.getsource = kept


def test_the_report_finds_every_seam(vllm):
    from adaverify_vllm import report

    found = report()
    assert found["problems"] == []
    assert len(found["seams"]) >= 15
    assert all(item["fits"] for item in found["seams"])
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["manager"]["active"]
    assert parts["rows"]["active"] or "CUDA device" in parts["rows"]["reasons"][0]
