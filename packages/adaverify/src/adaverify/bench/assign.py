"""Spending the budget on the device in one launch, beside topk and cumsum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from adaverify.bench.rows import OURS, PARTS, require_equal, time_columns, time_rows
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    BudgetReads,
    Limits,
    PolicyDescriptor,
    Seen,
    WrongValueError,
)
from adaverify_runtime.staging import StaticInputs
from adaverify_verification import (
    DRAFTER,
    Assigner,
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    RatioPolicy,
    VerificationManager,
    make_relay,
)
from adaverify_verification.assignment.reference import assign_reference

K = 7
BASELINE, CAPTURED = "topk + cumsum", "captured step"
REQUESTS = (1, 16, 64, 256)
SEEDS = 6
POISON = -77777
# topk ranks float32 survivals, ours 16 bits of them: near the cut they may differ by one level a draft.
TOLERANCE = 1e-3

# Nothing is planned here: the manager publishes and assigns only.
PRICES = [(tokens, 1, 128, 0.02 + 0.001 * tokens) for tokens in (1, 2 * K)]

Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check the assignment against its reference, then time it beside the torch formulation."""
    sizes = options.requests or REQUESTS
    for done, requests in enumerate(sizes):
        options.progress(done, 2 * len(sizes), f"checking {requests} requests")
        check(options, requests)
        check_captured(options, requests)
    rows: list[tuple[BenchmarkCell, ...]] = []
    for done, requests in enumerate(sizes):
        options.progress(len(sizes) + done, 2 * len(sizes), f"assigning for {requests} requests")
        case, tokens = make_case(options.device, requests, 1), requests * (K + 1)
        assigner = make_assigner(options, requests)
        budget = int(case[3])
        times = options.timer.time(
            {
                OURS: partial(assigner.assign, *case, tokens),
                BASELINE: topk_and_cumsum(case, budget, tokens),
            }
        )
        step = CapturedStep(options, requests)
        # Host work and one copy: there is nothing to capture.
        paid = options.timer.time({CAPTURED: partial(step.host, budget)}, captured=False)
        step.close()
        ordered = {OURS: times[OURS], CAPTURED: paid[CAPTURED], BASELINE: times[BASELINE]}
        rows += time_rows((requests, budget), ordered, *PARTS)
    return BenchmarkResult(
        columns=(BenchmarkColumn("requests"), BenchmarkColumn("budget"), *time_columns(*PARTS)),
        rows=tuple(rows),
        checks=(
            (
                f"every integer equals the reference over poisoned buffers, {SEEDS} cases a size, with ties, "
                "NaN, padding requests and budgets beyond what is scheduled, captured where there are graphs"
            ),
            "topk + cumsum admits as many drafts, of the same summed survival",
            "captured step: replays assign by the budget, and send to the ring entry, of their own command",
        ),
        data=f"K {K}, confidences uniform ** 0.3 (mean 0.77), budget uniform over what is scheduled, KV "
        "lengths uniform in 1..4000",
        cache="warm: every call reads the same inputs",
        notes=(
            "the baseline takes its budget from the host, so a graph of it serves one budget only",
            (
                "captured step: begin_publish, command and end_publish, the host's share of publishing and "
                "assigning in a step that is one replay; the replay is not counted"
            ),
        ),
    )


def make_assigner(options: BenchmarkOptions, requests: int) -> Assigner:
    """Return the assigner that serves this device."""
    backend = "torch" if options.device.startswith("cpu") else "triton"
    return Assigner(Limits(requests, K, 8192, 64), options.device, backend=backend)


class CapturedStep:
    """Publication and assignment of a step that is one replay.

    Args:
        options: device and timer.
        requests: decode requests.
    """

    def __init__(self, options: BenchmarkOptions, requests: int) -> None:
        limits, device = Limits(requests, K, 8192, 64), torch.device(options.device)
        self.relay = make_relay(limits, device)
        self.manager = VerificationManager(
            limits,
            device,
            signal=DRAFTER,
            policy=PolicyDescriptor("ratio", BudgetReads.HISTORY, RatioPolicy),
            cost=CostModel(CostTable.from_points(Fingerprint.from_mapping({"bench": 1}), PRICES)),
            tiers=(),
            options=ManagerOptions(),
            drafter_seen=Seen.PREFIX,
            drafter_deterministic=True,
            assign_backend="torch" if device.type == "cpu" else "triton",
            relay=self.relay,
        )
        self.inputs = StaticInputs(limits, device)
        self._slots, self._generations = np.arange(requests), np.zeros(requests, dtype=np.int64)
        self.inputs.slots.copy_(torch.from_numpy(self._slots))
        self._steps = count()

    def device(self) -> tuple[torch.Tensor, Any]:
        """Return the live confidences and the assignment; what the graph of a step holds."""
        inputs = self.inputs
        requests = len(inputs.scheduled)
        live = self.manager.capture_live(inputs.scores, inputs.slots, inputs.entry)
        assignment = self.manager.assign_captured(
            requests, requests * (K + 1), inputs.scheduled, inputs.kv_lens, inputs.budget
        )
        return live, assignment

    def host(self, budget: int, replay: Callable[[], Any] | None = None) -> Any:
        """Do what the host does for one step, around ``replay``; return what that returned."""
        entry = self.manager.begin_publish(next(self._steps), self._slots, self._generations)
        self.inputs.command(budget, entry, self._slots)
        found = None if replay is None else replay()
        self.manager.end_publish()
        return found

    def close(self) -> None:
        """Release the relay."""
        self.manager.close()


def make_case(device: str, requests: int, seed: int, levels: int | None = None) -> Case:
    """Return confidences, scheduled, kv_lens and budget on the device; ``levels`` makes ties and a NaN."""
    generator = torch.Generator().manual_seed(seed)
    confidences = torch.rand(requests, K, generator=generator) ** 0.3
    if levels:
        confidences = torch.ceil(confidences * levels) / levels
        confidences[0, 0] = float("nan")
    scheduled = torch.full((requests,), K, dtype=torch.int32)
    if requests > 4:
        scheduled[1], scheduled[2], scheduled[-1] = 0, K // 2, -1
    kv_lens = torch.randint(1, 4000, (requests,), generator=generator, dtype=torch.int32)
    total = int(scheduled.clamp(min=0).sum())
    budget = torch.randint(0, total + 1, (1,), generator=generator, dtype=torch.int32)
    return confidences.to(device), scheduled.to(device), kv_lens.to(device), budget.to(device)


def topk_and_cumsum(case: Case, budget: int, tokens: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return the obvious formulation: products, topk with a host budget, scatter, cumsum, row maps."""
    confidences, scheduled, kv_lens, _ = case
    requests = len(scheduled)
    position = torch.arange(K, device=scheduled.device)
    token = torch.arange(tokens, device=scheduled.device, dtype=torch.int32)

    def run_it() -> tuple[torch.Tensor, ...]:
        survival = torch.cumprod(confidences.nan_to_num(0.0).clamp(0, 1), dim=1)
        survival = survival.masked_fill(position >= scheduled[:, None], -1.0)
        best = torch.topk(survival.flatten(), budget).indices
        admitted = torch.zeros(requests, dtype=torch.int32, device=scheduled.device)
        admitted.scatter_add_(0, best // K, torch.ones_like(best, dtype=torch.int32))
        lens = torch.where(scheduled >= 0, admitted + 1, 0)
        starts = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
        owner = torch.searchsorted(starts[1:], token, right=True, out_int32=True)
        inside = token < starts[-1]
        offset = token - starts[owner.clamp(max=requests - 1)]
        seq_lens = torch.where(scheduled >= 0, kv_lens + lens, 0)
        return admitted, starts, seq_lens, torch.where(inside, owner, -1), torch.where(inside, offset, -1)

    return run_it


def check(options: BenchmarkOptions, requests: int) -> None:
    """Require the reference's integers from one captured assignment replayed with other values.

    Raises:
        WrongValueError: names size and field.
    """
    assigner, tokens = make_assigner(options, requests), requests * (K + 1)
    static = make_case(options.device, requests, 0)
    assign: Callable[[], Any] = options.timer.captured(lambda: assigner.assign(*static, tokens))
    for seed in range(SEEDS):
        case = make_case(options.device, requests, seed, levels=(None, 2, 5)[seed % 3])
        if seed == SEEDS - 1:
            case[3].fill_(10**6)
        for target, source in zip(static, case, strict=True):
            target.copy_(source)
        for buffer in assigner.buffers.values():
            buffer.fill_(POISON)
        found = assign()
        for name, expected in assign_reference(*case, tokens)._asdict().items():
            require_equal(f"assignment of {requests} requests: {name}", getattr(found, name), expected)
    case = make_case(options.device, requests, 1)
    ours = assigner.assign(*case, tokens).admitted
    theirs = topk_and_cumsum(case, int(case[3]), tokens)()[0]
    sums = [_survival(case[0], admitted) for admitted in (ours, theirs)]
    if int(ours.sum()) != int(theirs.sum()) or abs(sums[0] - sums[1]) > TOLERANCE * max(sums[1], 1.0):
        raise WrongValueError(
            f"topk + cumsum for {requests} requests admits something else, so its time says nothing",
            arrived=(int(theirs.sum()), sums[1]),
            allowed=f"{int(ours.sum())} drafts of summed survival {sums[0]:.4f}",
            remedy="report it with this command; no time was taken",
        )


def check_captured(options: BenchmarkOptions, requests: int) -> None:
    """Require that one captured publication and assignment follows every command.

    Raises:
        WrongValueError: names what a replay got wrong.
    """
    step = CapturedStep(options, requests)
    replay = options.timer.captured(step.device)
    slots = torch.arange(requests, dtype=torch.int32)
    for seed in range(SEEDS):
        scores, scheduled, kv_lens, budget = make_case(options.device, requests, seed)
        targets = (step.inputs.scores, step.inputs.scheduled, step.inputs.kv_lens)
        for target, source in zip(targets, (torch.logit(scores, eps=1e-6), scheduled, kv_lens), strict=True):
            target.copy_(source)
        for buffer in step.manager.buffers.values():
            buffer.fill_(POISON)
        live, found = step.host(int(budget), replay)
        options.timer.synchronize()
        what = f"captured step of {requests} requests"
        require_equal(f"{what}: budget", step.inputs.budget, budget)
        require_equal(f"{what}: row_slot", step.inputs.row_slot.cpu(), slots)
        expected = assign_reference(live.clone(), scheduled, kv_lens, budget, requests * (K + 1))
        for name, values in expected._asdict().items():
            require_equal(f"{what}: {name}", getattr(found, name), values)
        snapshot = step.relay.latest(seed)
        sent = None if snapshot is None else torch.tensor(snapshot.confidences)
        if snapshot is None or snapshot.step != seed or sent is None or not torch.equal(sent, live.cpu()):
            raise WrongValueError(
                f"{what}: what the relay holds is not what this replay sent",
                arrived=None if snapshot is None else snapshot.step,
                allowed=f"step {seed} and its live confidences",
                remedy="do not use captured steps here; no time was taken",
            )
    step.close()


def _survival(confidences: torch.Tensor, admitted: torch.Tensor) -> float:
    survival = torch.cumprod(confidences, dim=1)
    kept = torch.arange(K, device=admitted.device) < admitted[:, None]
    return float((survival * kept).sum())
