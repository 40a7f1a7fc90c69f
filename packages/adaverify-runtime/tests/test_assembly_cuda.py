"""The same verifier on a CUDA device: equal to the CPU, without a host wait, from a graph."""

import numpy as np
import pytest
import torch

from adaverify_contracts import DrafterDescriptor, Limits, Seen, StepState
from adaverify_runtime import PlannerSettings, Settings, assemble
from adaverify_verification import CostTable, Fingerprint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LIMITS = Limits(max_requests=8, draft_tokens=7, max_model_len=1024, page_size=16)
TABLE = CostTable.from_points(
    Fingerprint.from_mapping({"device": "a test"}),
    [(tokens, requests, 16, 0.01 + 0.001 * tokens) for tokens in (1, 8, 16, 32, 64) for requests in (1, 8)],
)
SETTINGS = Settings(planner=PlannerSettings(signal="drafter", warmup_steps=0, online=False, explore_share=0))
DRAFTER = DrafterDescriptor("echo", Seen.HISTORY, True, dict)
ROWS = ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot", "block_table")
BOUNDS = ("admitted", "query_start_loc", "seq_lens", "token_request", "token_offset")


@pytest.fixture
def pair(real_plugins):
    """One verifier on the CPU, one on the device, of the same options."""
    made = [
        assemble(
            LIMITS,
            device=device,
            plugins=real_plugins(),
            settings=SETTINGS,
            drafter=DRAFTER,
            cost_table=TABLE,
            strategy="reference",
        )
        for device in ("cpu", "cuda")
    ]
    yield made
    for item in made:
        item.close()


def steps(count):
    """Random steps: state, scores, KV lengths and block table, on the host."""
    rng = np.random.default_rng(7)
    for step in range(1, count + 1):
        requests = int(rng.integers(1, LIMITS.max_requests + 1))
        scheduled = rng.integers(0, LIMITS.draft_tokens + 1, requests)
        kv_lens = rng.integers(1, 1000, requests)
        state = StepState(
            step=step,
            slots=rng.permutation(LIMITS.max_requests)[:requests].astype(np.int64),
            generations=np.zeros(requests, dtype=np.int64),
            scheduled=scheduled.astype(np.int64),
            emitting=requests,
            kv_tokens=int(kv_lens.sum()),
        )
        scores = torch.from_numpy(rng.normal(0, 3, (requests, LIMITS.draft_tokens)).astype(np.float32))
        table = torch.from_numpy(
            rng.integers(0, 500, (LIMITS.max_requests, LIMITS.table_width)).astype(np.int32)
        )
        per_request = (torch.from_numpy(scheduled).int(), torch.from_numpy(kv_lens).int())
        yield state, scores, per_request, table


def test_the_parts_are_the_device_ones_and_the_report_says_so(pair):
    """Triton was executed here, and decode graphs are ragged."""
    notes = pair[1].report.notes
    assert any(note.startswith("assignment: triton") for note in notes)
    assert any(note.startswith("graphs: VARLEN_DECODE") for note in notes)


def test_the_device_stages_what_the_cpu_stages(pair):
    """Plans, boundaries and rows are equal integer by integer."""
    for state, scores, per_request, table in steps(12):
        plans, results = [], []
        for checker in pair:
            device = checker.device
            checker.publish(state.step, state.slots, state.generations, scores.to(device))
            torch.cuda.synchronize()
            plans.append(checker.plan(state))
            inputs = [item.to(device) for item in per_request]
            results.append(checker.stage(plans[-1], *inputs, table.to(device), padded_requests=8))
        assert plans[0].digest == plans[1].digest
        assert results[0].strategy == results[1].strategy
        for name in BOUNDS:
            left, right = (getattr(item.assignment, name).cpu() for item in results)
            assert torch.equal(left, right), (state.step, name)
        for name in ROWS[:-1]:
            left, right = (getattr(item.rows, name).cpu() for item in results)
            assert torch.equal(left, right), (state.step, name)


def test_a_replay_equals_the_cpu_and_waits_for_nothing(pair, refusing_waits):
    """Captured once, replayed with other lengths; the decode path never synchronises."""
    cpu, gpu = pair
    lens = torch.zeros(LIMITS.max_tokens, dtype=torch.int32, device="cuda")

    def step(staged, key):
        lens.zero_()
        lens[: key.tokens].copy_(staged.rows.row_lens.view(-1))
        return lens

    report = gpu.capture(step)
    assert report.complete, report.lines()
    cpu.manager.set_tiers(tuple(sorted(key.tokens for key in report.captured)))
    ran = 0
    for state, scores, per_request, table in steps(16):
        device_inputs = [item.cuda() for item in per_request]
        device_table, device_scores = table.cuda(), scores.cuda()
        torch.cuda.synchronize()
        gpu.publish(state.step, state.slots, state.generations, device_scores)
        torch.cuda.synchronize()
        with refusing_waits():
            plan = gpu.plan(state)
            replayed = gpu.replay(plan, *device_inputs, device_table)
        cpu.publish(state.step, state.slots, state.generations, scores)
        assert cpu.plan(state).digest == plan.digest
        assert replayed is not None
        ran += 1
        key = replayed.key
        staged = cpu.stage(plan, *per_request, table, padded_requests=key.requests, padded_tokens=key.tokens)
        if staged.strategy == "reference":
            torch.cuda.synchronize()
            assert torch.equal(lens.cpu()[: key.tokens], staged.rows.row_lens.view(-1)), state.step
        real = plan.requests + plan.budget
        assert int((lens > 0).sum()) == real
    assert gpu.counters["graph replayed"] == ran == 16


def test_publishing_waits_for_nothing(pair, refusing_waits):
    """The relay and the live confidences are enqueued only."""
    gpu = pair[1]
    for state, scores, _, _ in steps(6):
        device_scores = scores.cuda()
        torch.cuda.synchronize()
        with refusing_waits():
            gpu.publish(state.step, state.slots, state.generations, device_scores)
