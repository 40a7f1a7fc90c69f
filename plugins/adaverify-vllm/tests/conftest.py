"""A request state as vLLM keeps it, and managers over it, where vLLM is not installed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_verification import ManagerOptions, RatioPolicy
from adaverify_vllm.manager import BridgeManager, Choices
from adaverify_vllm.ranks import Alone

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class State:
    """The parts of vLLM's request state that the bridge reads; the contract tests use the real one."""

    def __init__(self, slots=16, drafts=7, most_tokens=512, device="cpu"):
        self.max_num_reqs, self.num_speculative_steps = slots, drafts
        self.max_num_batched_tokens, self.device = most_tokens, torch.device(device)
        self.req_id_to_index = {}
        self.num_computed_tokens_np = np.zeros(slots, dtype=np.int32)
        self.prefill_len = SimpleNamespace(np=np.zeros(slots, dtype=np.int32))
        self.total_len = SimpleNamespace(gpu=torch.zeros(slots, dtype=torch.int32, device=device))

    def put(self, name, slot, prompt=10, computed=None):
        """Let a request into a slot."""
        self.req_id_to_index[name] = slot
        self.prefill_len.np[slot] = prompt
        self.total_len.gpu[slot] = prompt
        self.num_computed_tokens_np[slot] = prompt if computed is None else computed


class Sample(SimpleNamespace):
    """A timing as vLLM's profiling makes it."""


class Driver:
    """A manager driven step by step."""

    def __init__(
        self,
        *,
        ranks=None,
        agreement="rank0",
        observer=None,
        rows_limit=10**6,
        slots=16,
        device="cpu",
        backend="torch",
        **options,
    ):
        self.device = torch.device(device)
        self.state = State(slots, device=device)
        self.boundaries = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        choices = Choices(
            options=ManagerOptions(**({"mixed_tiers": True} | options)),
            policy=RatioPolicy(),
            backend=backend,
            agreement=agreement,
            depth=4,
            context=8192,
            facts={"device": "cpu"},
            strategy="vllm",
            observer=observer,
            counts=lambda host, event: (host, event),
        )
        self.manager = BridgeManager(
            self.state, self.boundaries, 1, rows_limit, ranks=ranks or Alone(), choices=choices
        )

    def add(self, *names, **more):
        """Let requests in, in the first free slots."""
        for name in names:
            taken = set(self.state.req_id_to_index.values())
            slot = min(set(range(self.state.max_num_reqs)) - taken)
            self.state.put(name, slot, **more)
            self.manager.add_request(slot)

    def price(self, milliseconds, sizes=SIZES, drafting=0.1):
        """Profile with these forward times."""
        runs = list(self.manager.batches_to_profile(list(sizes)))
        most = sizes[-1] if sizes else 0
        self.manager.set_initial_cost_curves(
            [
                Sample(
                    forward_ms=milliseconds(run["num_tokens"]),
                    drafter_ms=drafting,
                    num_target_tokens=run["num_tokens"],
                    num_reqs=1,
                    full_cudagraph=run["num_tokens"] <= most,
                )
                for run in runs
            ]
        )

    def step(self, drafts, extra=()):
        """Run the decode path of one step; return (total, admitted by name, boundaries)."""
        tokens = {name: count + 1 for name, count in drafts.items()} | dict(extra)
        lists = {name: [-1] * count for name, count in drafts.items() if count}
        total = self.manager.get_num_tokens(tokens, lists)
        names = sorted(tokens, key=lambda name: not lists.get(name))
        drafted = np.array([len(lists.get(name, ())) for name in names], dtype=np.int32)
        scheduled = np.array([tokens[name] for name in names], dtype=np.int32)
        offsets = np.concatenate([[0], np.cumsum(drafted + 1)]).astype(np.int32)
        lengths, _ = self.manager.compact_batch(drafted, scheduled, offsets)
        assert int(lengths.sum()) == total
        slots = [self.state.req_id_to_index[name] for name in names]
        rows = torch.tensor(slots, dtype=torch.int64).to(self.device)
        logits, _, budget, _ = self.manager.reallocate_drafts(names, rows)
        admitted = (torch.diff(logits) - 1).tolist()
        assert sum(admitted) == budget
        return total, dict(zip(names, admitted, strict=True)), self.boundaries.tolist()

    def record(self, confidences, grown=1):
        """End the step: requests by name with their next confidences."""
        names = list(confidences)
        slots = np.array([self.state.req_id_to_index[name] for name in names], dtype=np.intp)
        more = dict.fromkeys(names, grown) if isinstance(grown, int) else grown
        for name, slot in zip(names, slots, strict=True):
            self.state.total_len.gpu[slot] += more[name]
            self.state.num_computed_tokens_np[slot] += more[name]
        table = torch.zeros((self.state.max_num_reqs, self.state.num_speculative_steps))
        for row, values in enumerate(confidences.values()):
            table[row] = torch.as_tensor(values, dtype=torch.float32)
        rows = torch.from_numpy(slots.astype(np.int64)).to(self.device)
        batch = SimpleNamespace(num_reqs=len(names), idx_mapping=rows, idx_mapping_np=slots)
        self.manager.record_confidences(table.to(self.device), batch)


@pytest.fixture
def drive():
    """A maker of drivers; without margins unless asked."""

    def make(**options):
        return Driver(**({"margin": 0.0, "hysteresis": 0.0, "explore_share": 0.0, "online": False} | options))

    return make
