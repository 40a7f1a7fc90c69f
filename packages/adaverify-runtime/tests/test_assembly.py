"""A verifier assembled from the real parts, on a CPU: plan, stage, observe, and what it reports."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    CapabilityError,
    DrafterDescriptor,
    GraphError,
    LayoutError,
    Limits,
    LosslessError,
    NoStrategyError,
    PlanError,
    PlanState,
    Seen,
    SettingsError,
    StepOutcome,
    StepState,
    UnknownNameError,
    hookimpl,
)
from adaverify_runtime import (
    DeviceSettings,
    GraphSettings,
    PlannerSettings,
    PluginSettings,
    Settings,
    assemble,
)
from adaverify_verification import CostTable, Fingerprint

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=64, page_size=4)
DRAFTER = DrafterDescriptor("echo", Seen.HISTORY, True, dict)
TABLE = CostTable.from_points(
    Fingerprint.from_mapping({"device": "a test"}),
    # 8 tokens cost what 1 does; from the ninth on a step costs five times as much.
    [
        (tokens, requests, 16, 0.01 if tokens <= 8 else 0.05)
        for tokens in (1, 2, 4, 8, 9, 16)
        for requests in (1, 4)
    ],
)
DRAFTER_SIGNAL = Settings(planner=PlannerSettings(signal="drafter", warmup_steps=0, online=False))


@pytest.fixture
def verifier(real_plugins):
    """Return a maker of verifiers; every one is closed."""
    made = []

    def make(*, limits=LIMITS, plugins=None, **options):
        options.setdefault("drafter", DRAFTER)
        made.append(assemble(limits, device="cpu", plugins=plugins or real_plugins(), **options))
        return made[-1]

    yield make
    for item in made:
        item.close()


def state_of(step, scheduled, **changes):
    requests = len(scheduled)
    values = {
        "step": step,
        "slots": np.arange(requests, dtype=np.int64),
        "generations": np.zeros(requests, dtype=np.int64),
        "scheduled": np.array(scheduled, dtype=np.int64),
        "emitting": requests,
        "kv_tokens": 8 * requests,
    }
    return StepState(**{**values, **changes})


def tensors(*values):
    return tuple(torch.tensor(value, dtype=torch.int32) for value in values)


def table_of(limits=LIMITS, requests=None):
    rows = limits.max_requests if requests is None else requests
    pages = torch.arange(rows * limits.table_width, dtype=torch.int32)
    return pages.view(rows, limits.table_width)


def outcome_of(state, plan, staged, accepted=None, seconds=0.01):
    admitted = staged.assignment.admitted[: state.requests].numpy().astype(np.int64)
    accepted = admitted if accepted is None else np.minimum(accepted, admitted)
    return StepOutcome(
        step=state.step,
        slots=state.slots,
        generations=state.generations,
        drafted=state.scheduled,
        admitted=admitted,
        accepted=accepted,
        scores=np.zeros((state.requests, LIMITS.draft_tokens), dtype=np.float32),
        learn=np.ones(state.requests, dtype=bool),
        sampled=np.zeros(state.requests, dtype=bool),
        emitted=int(accepted.sum()) + state.requests,
        seconds=seconds,
    )


SURE, HOPELESS = 12.0, -12.0


def test_a_trimmed_step_is_planned_staged_and_recorded(verifier):
    """The design's example, end to end with real parts: lengths [3, 1, 4, 0] flatten to ten rows."""
    checker = verifier(cost_table=TABLE, settings=DRAFTER_SIGNAL, mode="adaptive")
    scores = torch.full((3, 3), HOPELESS)
    scores[0, :2] = SURE
    scores[2] = SURE
    state = state_of(1, [3, 3, 3])
    checker.publish(1, state.slots, state.generations, scores)
    plan = checker.plan(state)
    assert (plan.state, plan.budget, plan.tokens) == (PlanState.TRIMMING, 5, 8)

    staged = checker.stage(
        plan, *tensors([3, 3, 3], [7, 6, 8]), table_of(), padded_requests=4, padded_tokens=10
    )
    assert staged.strategy == "reference"
    assert "4 of 9 draft tokens are trimmed" in staged.reason
    assert staged.assignment.admitted.tolist() == [2, 0, 3, 0]
    assert staged.assignment.query_start_loc.tolist() == [0, 3, 4, 8, 8]
    assert staged.assignment.seq_lens.tolist() == [10, 7, 12, 0]
    assert staged.rows.row_lens.flatten().tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]
    assert staged.rows.row_request.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 12, 13]

    record = checker.observe(outcome_of(state, plan, staged), plan)
    assert (record.strategy, record.planned, record.verified, record.state) == ("reference", 5, 5, "trimming")
    assert record.lag == 0
    assert record.fallbacks == ()
    assert checker.counters == {}


def test_full_verification_takes_the_uniform_path(verifier):
    """Fixed mode: nothing trimmed, one row a request, on the fast path."""
    checker = verifier(mode="fixed")
    state = state_of(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *tensors([3, 3], [5, 9]), table_of(), padded_requests=3)
    assert staged.strategy == "uniform"
    assert staged.rows.row_lens.tolist() == [[6, 7, 8, 9], [10, 11, 12, 13], [0, 0, 0, 0]]
    assert checker.observe(outcome_of(state, plan, staged), plan).strategy == "uniform"


def test_fixed_mode_with_unequal_schedules_takes_the_ragged_path(verifier):
    """A request without drafts makes the batch ragged although nothing is trimmed."""
    checker = verifier(mode="fixed")
    plan = checker.plan(state_of(1, [3, 0, 1]))
    staged = checker.stage(plan, *tensors([3, 0, 1], [4, 4, 4]), table_of())
    assert (staged.strategy, plan.budget) == ("reference", 4)
    assert staged.assignment.query_start_loc.tolist() == [0, 4, 5, 7]
    assert staged.rows.row_lens.flatten().tolist() == [5, 6, 7, 8, 5, 5, 6]


def test_mode_none_verifies_nothing_on_the_uniform_path(verifier):
    """Every query length is 1, whatever was drafted."""
    checker = verifier(mode="none")
    plan = checker.plan(state_of(1, [3, 2]))
    staged = checker.stage(plan, *tensors([3, 2], [4, 8]), table_of())
    assert (plan.state, plan.budget, staged.strategy) == (PlanState.IDLE, 0, "uniform")
    assert staged.rows.row_lens.tolist() == [[5], [9]]


def test_a_single_trimmed_request_takes_the_uniform_path(verifier):
    """R = 1 has equal host and device boundaries."""
    limits = replace(LIMITS, draft_tokens=15, max_model_len=52)
    checker = verifier(limits=limits, cost_table=TABLE, settings=DRAFTER_SIGNAL)
    state = state_of(1, [15])
    checker.publish(1, state.slots, state.generations, torch.full((1, 15), SURE))
    plan = checker.plan(state)
    assert 0 < plan.budget < 15
    staged = checker.stage(plan, *tensors([15], [9]), table_of(limits))
    assert staged.strategy == "uniform"
    assert f"query length {1 + plan.budget}" in staged.reason
    assert staged.rows.row_lens.tolist() == [list(range(10, 11 + plan.budget))]


def test_an_empty_step_is_ordinary(verifier):
    """The drain to zero: R = 0, nothing verified, rows of padding only."""
    checker = verifier(cost_table=TABLE, settings=DRAFTER_SIGNAL)
    state = state_of(1, [])
    plan = checker.plan(state)
    staged = checker.stage(plan, *tensors([], []), table_of(), padded_requests=2, padded_tokens=2)
    assert staged.rows.row_lens.flatten().tolist() == [0, 0]
    assert staged.assignment.query_start_loc.tolist() == [0, 0, 0]
    checker.observe(outcome_of(state, plan, staged), plan)


def test_padding_is_rewritten_every_step(verifier):
    """vllm #47066: 2 requests after 4: the tail is null, not what the larger batch left."""
    checker = verifier(mode="fixed")
    plan = checker.plan(state_of(1, [3, 2, 3, 3]))
    checker.stage(plan, *tensors([3, 2, 3, 3], [9, 9, 9, 9]), table_of())
    plan = checker.plan(state_of(2, [3, 2]))
    staged = checker.stage(plan, *tensors([3, 2], [4, 4]), table_of(), padded_requests=4, padded_tokens=15)
    assert staged.assignment.seq_lens.tolist() == [8, 7, 0, 0]
    assert staged.assignment.admitted.tolist() == [3, 2, 0, 0]
    assert staged.rows.row_lens.flatten().tolist() == [5, 6, 7, 8, 5, 6, 7, *([0] * 8)]
    assert (staged.rows.row_token.flatten()[7:] == -1).all()


def test_host_arrays_are_accepted_and_a_short_table_is_copied(verifier):
    """NumPy inputs and a table with one row a request give the same rows as device inputs."""
    checker = verifier(mode="fixed")
    plan = checker.plan(state_of(1, [3, 1]))
    table = table_of(requests=2)
    first = checker.stage(plan, *tensors([3, 1], [5, 9]), table, padded_requests=3, padded_tokens=8)
    expected = [first.rows.row_lens.clone(), first.rows.block_table.clone()]
    second = checker.stage(
        plan,
        np.array([3, 1], dtype=np.int32),
        np.array([5, 9], dtype=np.int32),
        table.long(),
        padded_requests=3,
        padded_tokens=8,
    )
    assert torch.equal(second.rows.row_lens, expected[0])
    assert torch.equal(second.rows.block_table, expected[1])
    assert second.rows.block_table[4, :3].tolist() == table[1, :3].tolist()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scheduled": [3]}, LayoutError, "plan or the limits"),
        ({"kv_lens": [3, 4, 5]}, LayoutError, "plan or the limits"),
        ({"padded_requests": 1}, LayoutError, "plan or the limits"),
        ({"padded_requests": 5}, LayoutError, "plan or the limits"),
        ({"scheduled": [3, 1]}, PlanError, "fewer drafts than its plan"),
        ({"padded_tokens": 99}, LayoutError, "static buffers"),
        ({"padded_tokens": 7}, LayoutError, "num_tokens"),
        ({"block_table": torch.zeros((2, 3), dtype=torch.int64)}, LayoutError, "block table"),
        ({"block_table": torch.zeros((1, 17), dtype=torch.int32)}, LayoutError, "block table"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(verifier, change, error, words):
    """One less, one more, another width: a typed error, never rows that read elsewhere."""
    checker = verifier(mode="fixed")
    plan = checker.plan(state_of(1, [3, 3]))
    scheduled, kv_lens = tensors(change.get("scheduled", [3, 3]), change.get("kv_lens", [4, 4]))
    padded = {name: change[name] for name in ("padded_requests", "padded_tokens") if name in change}
    with pytest.raises(error, match=words):
        checker.stage(plan, scheduled, kv_lens, change.get("block_table", table_of()), **padded)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, torch.int64, torch.float32])
@pytest.mark.parametrize("which", ["scheduled", "kv_lens"])
def test_lengths_of_another_dtype_are_refused_and_never_wrapped(verifier, which, dtype):
    """2**32 + 100 cast to int32 is 100: the rows of another sequence."""
    checker = verifier(mode="fixed")
    plan = checker.plan(state_of(1, [3, 3]))
    values = {"scheduled": np.array([3, 3], np.int32), "kv_lens": np.array([4, 4], np.int32)}
    made = torch.tensor([3, 3]).to(dtype) if isinstance(dtype, torch.dtype) else np.array([3, 3], dtype)
    values[which] = made
    with pytest.raises(LayoutError, match=f"{which} has the wrong dtype"):
        checker.stage(plan, values["scheduled"], values["kv_lens"], table_of())


@pytest.mark.parametrize("length", [-1, 10**6])
def test_kv_lengths_past_the_table_are_refused_on_the_host(verifier, length):
    """A row of such a length would read table entries that are not there."""
    checker = verifier(mode="fixed")
    plan = checker.plan(state_of(1, [3, 3]))
    with pytest.raises(LayoutError, match="KV length"):
        checker.stage(plan, *tensors([3, 3], [4, length]), table_of())


def every_hook(make, calls):
    """A plugin that implements every hook and counts."""

    class Everything:
        @hookimpl
        def adaverify_register_probes(self):
            calls.append("probes")
            return ()

        @hookimpl
        def adaverify_register_decode_strategies(self):
            calls.append("strategies")
            return (make.strategy("extra", priority=-1),)

        @hookimpl
        def adaverify_register_signals(self):
            calls.append("signals")
            return ()

        @hookimpl
        def adaverify_register_policies(self):
            calls.append("policies")
            return ()

        @hookimpl
        def adaverify_register_graph_backends(self):
            calls.append("backends")
            return ()

        @hookimpl
        def adaverify_register_drafters(self):
            calls.append("drafters")
            return ()

        @hookimpl
        def adaverify_register_models(self):
            calls.append("models")
            return (make.model("never-loaded"),)

        @hookimpl
        def adaverify_step_recorded(self, record):
            calls.append(record.step)

    return Everything()


def test_no_hook_is_called_on_the_decode_path(verifier, real_plugins, make):
    """Hooks are resolved once at start; observers are called by the drain, in step order."""
    calls = []
    checker = verifier(
        plugins=real_plugins(every_hook(make, calls)), cost_table=TABLE, settings=DRAFTER_SIGNAL
    )
    at_start = list(calls)
    assert len(at_start) == 7
    for step in range(1, 21):
        state = state_of(step, [3, 3])
        checker.publish(step, state.slots, state.generations, torch.zeros(2, 3))
        plan = checker.plan(state)
        staged = checker.stage(plan, *tensors([3, 3], [4, 4]), table_of())
        checker.observe(outcome_of(state, plan, staged), plan)
        assert calls == at_start
    assert checker.drain() == 20
    assert calls == at_start + list(range(1, 21))


def test_a_full_queue_calls_observers_from_observe_and_a_broken_one_is_reported(verifier, real_plugins):
    """The queue is bounded; an observer that raises costs the engine nothing."""

    class Broken:
        @hookimpl
        def adaverify_step_recorded(self, record):
            raise OSError("disk full")

    settings = replace(DRAFTER_SIGNAL, plugins=PluginSettings(observer_queue=2))
    checker = verifier(plugins=real_plugins(Broken()), settings=settings)
    for step in (1, 2):
        state = state_of(step, [3])
        plan = checker.plan(state)
        staged = checker.stage(plan, *tensors([3], [4]), table_of())
        checker.observe(outcome_of(state, plan, staged), plan)
    assert checker.counters["observer-disabled:extra-0"] == 1
    assert [(item.plugin, item.step) for item in checker.disabled_observers] == [("extra-0", 1)]


def test_without_a_cost_table_everything_is_verified_and_said(verifier):
    """sglang #35413: no information is a named state, in the report and in every record."""
    checker = verifier(settings=DRAFTER_SIGNAL, mode="adaptive")
    assert any(note.startswith("unpriced: everything is verified") for note in checker.report.notes)
    state = state_of(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *tensors([3, 3], [4, 4]), table_of())
    record = checker.observe(outcome_of(state, plan, staged), plan)
    assert (plan.state, plan.budget, staged.strategy) == (PlanState.UNPRICED, 6, "uniform")
    assert record.state == "unpriced"
    assert "unpriced" in record.fallbacks
    assert checker.counters["unpriced"] == 1


def test_a_step_that_was_not_executed_as_planned_is_an_error_count(verifier):
    """sglang #30204: planned and verified are both reported, a difference is counted."""
    checker = verifier(mode="fixed")
    state = state_of(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *tensors([3, 3], [4, 4]), table_of())
    outcome = outcome_of(state, plan, staged)
    short = replace(outcome, admitted=np.array([3, 1]), accepted=np.array([0, 0]), emitted=2)
    record = checker.observe(short, plan)
    assert (record.planned, record.verified) == (6, 4)
    assert "verified-not-planned" in record.fallbacks
    assert checker.counters["verified-not-planned"] == 1


def test_an_undeclared_drafter_is_planned_strictly(verifier):
    """Without a declaration, sampled steps verify everything, and the report says why."""
    checker = verifier(drafter=None, cost_table=TABLE, settings=DRAFTER_SIGNAL)
    assert any("drafter: not declared" in note for note in checker.report.notes)
    plan = checker.plan(state_of(1, [3, 3, 3], sampled=True))
    assert plan.budget == 9
    assert checker.counters["lossless-downgrade"] == 1


def test_an_unsafe_pair_is_refused_when_the_setting_says_so(verifier):
    """The lossless rule as a start-up error."""
    settings = Settings(planner=PlannerSettings(signal="drafter", lossless="refuse"))
    with pytest.raises(LosslessError):
        verifier(drafter=None, settings=settings)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"strategy": "nowhere"}, UnknownNameError, "reference, uniform"),
        ({"strategy": "uniform", "mode": "adaptive"}, NoStrategyError, "does not read device lengths"),
        ({"settings": Settings(planner=PlannerSettings(signal="psychic"))}, UnknownNameError, "calibrated"),
        ({"settings": Settings(planner=PlannerSettings(policy="greed"))}, UnknownNameError, "ratio"),
        ({"settings": Settings(graphs=GraphSettings(backend="cuda"))}, CapabilityError, "device type is cpu"),
        ({"settings": Settings(graphs=GraphSettings(mode="varlen"))}, GraphError, "does not capture"),
        ({"mode": "sometimes"}, SettingsError, "none, fixed or adaptive"),
    ],
)
def test_what_the_user_named_is_used_or_it_is_an_error(verifier, options, error, words):
    """vllm #48277, #56626: nothing that was named is replaced in silence."""
    with pytest.raises(error, match=words):
        verifier(**options)


def test_settings_name_strategy_and_mode(verifier, monkeypatch):
    """The environment configures an engine that passes nothing."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_STRATEGY", "reference")
    monkeypatch.setenv("ADAVERIFY_PLANNER_MODE", "fixed")
    monkeypatch.setenv("ADAVERIFY_PLANER_MODE", "none")
    checker = verifier()
    assert checker.manager.mode == checker.report.mode == "fixed"
    assert "ragged: reference was named explicitly" in checker.report.notes
    assert checker.report.warnings == (
        "ADAVERIFY_PLANER_MODE is set and no setting reads it, did you mean ADAVERIFY_PLANNER_MODE?",
    )


def test_a_setting_reaches_the_part_it_is_for(verifier):
    """Planner and relay settings arrive as plain options of the manager."""
    planner = PlannerSettings(margin=0.3, hysteresis=0.2, warmup_steps=5, explore_share=0.0, mixed_tiers=True)
    options = verifier(settings=Settings(planner=planner)).manager.options
    assert (options.margin, options.hysteresis, options.warmup_steps) == (0.3, 0.2, 5)
    assert (options.explore_share, options.mixed_tiers, options.mode) == (0.0, True, "adaptive")


def test_the_report_is_json_and_lists_everything_with_its_owner(verifier, real_plugins, make):
    """One report: chosen or not, with reasons, distribution and version."""
    calls = []
    report = verifier(plugins=real_plugins(every_hook(make, calls))).report
    plain = json.loads(json.dumps(report.as_dict()))
    assert {item["name"]: item["chosen"] for item in plain["strategies"]} == {
        "reference": True,
        "uniform": True,
        "extra": False,
    }
    assert {item["name"] for item in plain["signals"]} >= {"optimistic", "calibrated", "drafter"}
    assert [item["name"] for item in plain["policies"] if item["chosen"]] == ["ratio"]
    assert {item["name"]: item["reasons"] for item in plain["backends"]}["cuda"] == [
        "device type is cpu, needs cuda or rocm"
    ]
    assert {item["name"]: item["outcome"] for item in plain["plugins"]}["reference"] == "loaded"
    assert {item["owner"] for item in plain["models"]} == {"extra-dist"}
    assert plain["capability"]["device_type"] == "cpu"
    assert plain["strategies"][0]["graph_support"] == "VARLEN_DECODE"
    assert plain["settings"]["planner"]["mode"] == "adaptive"
    assert plain["problems"] == []


def test_an_injected_capability_is_used_without_a_probe(verifier, real_plugins, make):
    """Every path is selectable on a CPU machine: no probe runs."""

    def forbidden(facts):
        raise AssertionError("probed")

    class Prober:
        @hookimpl
        def adaverify_register_probes(self):
            return (replace(make.probe("forbidden"), probe=forbidden),)

    capability = make.capability()
    checker = verifier(plugins=real_plugins(Prober()), capability=capability)
    assert checker.capability is capability


def test_a_strategy_that_refuses_the_limits_at_allocation_is_an_error(verifier, real_plugins, make):
    """A late refusal is no reason to take another strategy in silence."""
    from adaverify_contracts import LimitsError

    def refuse(limits, device, capability):
        raise LimitsError("page size is not served", arrived=limits.page_size)

    class Plugin:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (make.strategy("late", priority=50, allocate=refuse),)

    with pytest.raises(NoStrategyError, match="'late' was chosen and refused these limits"):
        verifier(plugins=real_plugins(Plugin()))


def test_a_failed_plugin_is_a_warning_of_the_report(verifier, real_plugins):
    """vllm #48277: the reason of a plugin that did not load is in the start-up report."""
    from adaverify_contracts import LoadOutcome
    from adaverify_runtime.plugins import PluginOutcome

    plugins = real_plugins()
    plugins.record(PluginOutcome("broken", "some-dist", "1", LoadOutcome.IMPORT_FAILED, "no module x"))
    (warning,) = verifier(plugins=plugins).report.warnings
    assert "broken of some-dist was not loaded (import failed): no module x" in warning


def test_an_override_is_visible_in_the_report(verifier):
    """ADAVERIFY_DEVICE_OVERRIDE marks the capability as assumed."""
    checker = verifier(settings=Settings(device=DeviceSettings(override="cpu")))
    assert checker.capability.assumed


def test_importing_the_package_touches_no_device_and_no_environment():
    """A child process imports everything: CUDA stays uninitialised and no variable of ours is read."""
    code = (
        "import os, sys\n"
        "read = []\n"
        "get = os.environ.__class__.__getitem__\n"
        "def spy(self, key):\n"
        "    read.append(key)\n"
        "    return get(self, key)\n"
        "os.environ.__class__.__getitem__ = spy\n"
        "import adaverify_runtime, torch\n"
        "assert not [key for key in read if key.startswith('ADAVERIFY')], read\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'triton' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_replay_without_graphs_says_so_by_returning_none(verifier):
    """The eager backend captures nothing; the report says it."""
    checker = verifier(mode="fixed")
    assert checker.capture(lambda staged, key: None) is None
    plan = checker.plan(state_of(1, [3]))
    assert checker.replay(plan, *tensors([3], [4]), table_of()) is None
    assert any("graphs: NEVER" in note and "does not capture" in note for note in checker.report.notes)


class Film:
    """A graph backend for CPUs: it keeps the step and plays it, and can run out of room at one size."""

    def __init__(self, device, fail_at=None):
        self.fail_at = fail_at

    def estimate(self, run):
        return 0

    def capture(self, run):
        if run() == self.fail_at:
            raise MemoryError("no room")
        return SimpleNamespace(replay=run)

    def pool_bytes(self):
        return 0


@pytest.fixture
def film(make):
    """A plugin that registers the film backend as one that captures."""

    def plugin(fail_at=None):
        class Plugin:
            @hookimpl
            def adaverify_register_graph_backends(self):
                backend = replace(
                    make.backend("film"),
                    captures=True,
                    priority=99,
                    factory=lambda device: Film(device, fail_at),
                )
                return (backend,)

        return Plugin()

    return plugin


def test_a_captured_step_serves_other_lengths_of_its_size(verifier, real_plugins, film):
    """What the graph replays equals what staging builds, for ragged lengths it was not captured with."""
    checker = verifier(plugins=real_plugins(film()), cost_table=TABLE, settings=DRAFTER_SIGNAL)
    seen = []

    def step(staged, key):
        seen.append([staged.rows.row_lens.flatten().clone(), staged.rows.block_table.clone()])
        return key.tokens

    report = checker.capture(step)
    assert report.complete
    assert [key.tokens for key in report.captured] == [16, 12, 8, 4]

    for number, hopeful in enumerate(([0, 2], [1, 2], [0], [0, 1, 2]), start=1):
        scores = torch.full((3, 3), HOPELESS)
        scores[hopeful] = SURE
        state = state_of(number, [3, 3, 3])
        checker.publish(number, state.slots, state.generations, scores)
        plan = checker.plan(state)
        assert plan.tier in (4, 8, 12)
        inputs = (*tensors([3, 3, 3], [7, 6, 8]), table_of())
        replayed = checker.replay(plan, *inputs)
        assert replayed.result == replayed.key.tokens == plan.tier
        lens, _ = seen[-1]
        key = replayed.key
        staged = checker.stage(plan, *inputs, padded_requests=key.requests, padded_tokens=key.tokens)
        if staged.strategy == "reference":
            assert torch.equal(lens, staged.rows.row_lens.flatten())
            assert int((lens > 0).sum()) == plan.tokens
        record = checker.observe(outcome_of(state, plan, staged), plan)
        assert record.fallbacks == ()
    assert checker.counters["graph replayed"] == 4


def test_a_size_that_fails_is_named_and_the_plan_uses_the_rest(verifier, real_plugins, film):
    """vllm-ascend #16761: one size fails, the others stay usable and are what is planned for."""
    checker = verifier(plugins=real_plugins(film(fail_at=8)), cost_table=TABLE, settings=DRAFTER_SIGNAL)
    report = checker.capture(lambda staged, key: key.tokens)
    assert [item.key.tokens for item in report.failed] == [8]
    assert "no room" in report.failed[0].cause
    plan = checker.plan(state_of(1, [1, 1, 1]))
    assert plan.tokens <= 12
    assert plan.tier in (4, 12)


def test_a_batch_with_a_prefill_chunk_never_enters_a_graph(verifier, real_plugins, film):
    """vllm #50532: the miss is counted by its reason and the step is staged."""
    checker = verifier(plugins=real_plugins(film()), mode="fixed")
    checker.capture(lambda staged, key: key.tokens)
    plan = checker.plan(state_of(1, [3], other_tokens=4))
    assert checker.replay(plan, *tensors([3], [4]), table_of()) is None
    assert checker.counters["graph missed: prefill"] == 1
    assert checker.stage(plan, *tensors([3], [4]), table_of()).strategy == "uniform"


def test_a_uniform_graph_mode_is_kept_and_serves_full_batches_only(verifier, real_plugins, film):
    """vllm #56626: the mode that was asked for is the mode in force."""
    settings = Settings(
        graphs=GraphSettings(mode="uniform"), planner=PlannerSettings(signal="drafter", warmup_steps=0)
    )
    checker = verifier(plugins=real_plugins(film()), settings=settings, mode="fixed")
    assert "graphs: UNIFORM_BATCH, as requested" in checker.report.notes
    report = checker.capture(lambda staged, key: (staged.strategy, staged.rows.row_lens.tolist()))
    assert {(key.tokens, key.requests) for key in report.captured} == {(4, 1), (8, 2), (12, 3), (16, 4)}
    plan = checker.plan(state_of(1, [3, 3]))
    replayed = checker.replay(plan, *tensors([3, 3], [4, 8]), table_of())
    assert replayed.result == ("uniform", [[5, 6, 7, 8], [9, 10, 11, 12]])
    ragged = checker.plan(state_of(2, [3, 2]))
    assert checker.replay(ragged, *tensors([3, 2], [4, 8]), table_of()) is None


@pytest.mark.parametrize("device", ["tpu", "gpu:0", ""])
def test_a_device_that_torch_does_not_know_is_a_typed_error(device):
    """The word that arrived and those that are allowed, not torch's own list of 40."""
    with pytest.raises(CapabilityError, match="auto, cpu, cuda"):
        assemble(Limits(max_requests=2, draft_tokens=3, max_model_len=32, page_size=4), device=device)
