"""A whole verifier on the chip itself stages what the CPU stages, token by token."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from adaverify_contracts import DrafterDescriptor, Limits, Seen, StepState
from adaverify_runtime import PlannerSettings, PluginSettings, Settings, assemble, load_plugins
from adaverify_verification import CostTable, Fingerprint

pytestmark = pytest.mark.sm100

LIMITS = Limits(max_requests=8, draft_tokens=7, max_model_len=1024, page_size=64)
TABLE = CostTable.from_points(
    Fingerprint.from_mapping({"device": "a test"}),
    [(tokens, requests, 16, 0.01 + 0.001 * tokens) for tokens in (1, 8, 16, 32, 64) for requests in (1, 8)],
)
SETTINGS = Settings(planner=PlannerSettings(signal="drafter", warmup_steps=0, online=False, explore_share=0))
DRAFTER = DrafterDescriptor("echo", Seen.HISTORY, True, dict)
PLUGINS = ("capability", "graphs", "reference", "sm100_varlen", "verification")


def plugins():
    points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in PLUGINS]
    return load_plugins(PluginSettings(), entry_points=points)


def steps(count):
    """Random steps; every third schedules one draft count for all, so that a uniform batch can occur."""
    rng = np.random.default_rng(9)
    for step in range(1, count + 1):
        requests = int(rng.integers(1, LIMITS.max_requests + 1))
        scheduled = rng.integers(0, LIMITS.draft_tokens + 1, requests)
        if step % 3 == 0:
            scheduled[:] = scheduled[0]
        kv_lens = rng.integers(1, 1000, requests)
        state = StepState(
            step=step,
            slots=rng.permutation(LIMITS.max_requests)[:requests].astype(np.int64),
            generations=np.zeros(requests, dtype=np.int64),
            scheduled=scheduled.astype(np.int64),
            emitting=requests,
            kv_tokens=int(kv_lens.sum()),
        )
        scores = torch.from_numpy(rng.normal(2, 3, (requests, LIMITS.draft_tokens)).astype(np.float32))
        pages = rng.permutation(8 * LIMITS.table_width).reshape(8, -1).astype(np.int32)
        lens = (torch.from_numpy(scheduled).int(), torch.from_numpy(kv_lens).int())
        yield state, scores, lens, torch.from_numpy(pages)


def by_token(staged):
    """Return what each query token sees: its length, request and the pages of that length."""
    rows, bounds = staged.rows, staged.assignment
    real = int(bounds.query_start_loc[-1])
    slot = rows.token_slot[:real].long().cpu()
    row = slot // rows.tokens_per_row
    lens = rows.row_lens.cpu().flatten()[slot]
    reach = torch.arange(LIMITS.table_width) * LIMITS.page_size < lens[:, None]
    pages = torch.where(reach, rows.block_table.cpu()[row], -1)
    return lens, rows.row_request.cpu()[row], pages


@pytest.mark.parametrize("named", [None, "varlen"])
def test_every_token_sees_what_it_sees_on_the_cpu(here, named):
    """Trimmed and full steps, ragged and uniform; the strategies of this plugin serve them."""
    cpu, gpu = (
        assemble(
            LIMITS,
            device=device,
            plugins=plugins(),
            settings=SETTINGS,
            drafter=DRAFTER,
            cost_table=TABLE,
            strategy=name,
        )
        for device, name in (("cpu", "reference"), ("cuda", named))
    )
    used = set()
    for state, scores, lens, table in steps(40):
        staged = []
        for verifier in (cpu, gpu):
            device = verifier.device
            verifier.publish(state.step, state.slots, state.generations, scores.to(device))
            torch.cuda.synchronize()
            plan = verifier.plan(state)
            inputs = [item.to(device) for item in lens]
            staged.append(verifier.stage(plan, *inputs, table.to(device), padded_requests=8))
        used.add(staged[1].strategy)
        for left, right in zip(by_token(staged[0]), by_token(staged[1]), strict=True):
            assert torch.equal(left, right), state.step
    assert used == {"varlen", "uniform-varlen"}
    cpu.close()
    gpu.close()
